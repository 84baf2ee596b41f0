//! The user's credentials for the proxy: from the environment, a file, a command or a kubeconfig.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;

use self::authorization::{Authorization, Token};
use self::error::ProgramFault;
use super::Deadline;
use super::dial::tls::KeyPair;
use crate::base::file;
use crate::base::platform;
use crate::base::secret::Secret;

mod authorization;
mod error;
mod exec_credential;
mod kubeconfig;
mod process;
mod user;

pub use self::error::CredentialError;
pub use self::kubeconfig::Files;

/// Where the credentials come from, and what may be done with them.
#[derive(Clone, Debug)]
pub struct Options {
    /// Their source.
    pub source: Source,
    /// Whether they are sent in clear, too, to a proxy that is not on this host.
    pub cleartext: bool,
    /// The time for all that a source may need, such as a login in a browser. See [`DEFAULT_TIMEOUT`].
    pub timeout: Duration,
}

/// The default of [`Options::timeout`]: five minutes, the time of a person with a second factor at hand.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

impl Default for Options {
    fn default() -> Self {
        Self {
            source: Source::None,
            cleartext: false,
            timeout: DEFAULT_TIMEOUT,
        }
    }
}

/// Where the credentials come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// There are none but those of the proxy's URL.
    None,
    /// This token, which SWITCHBOARD_TOKEN had.
    Token(Secret),
    /// A file with a token.
    TokenFile(PathBuf),
    /// A line for `sh -c` that prints a token or an ExecCredential.
    TokenCommand(String),
    /// A user of a kubeconfig.
    Kubeconfig {
        /// The files.
        files: Files,
        /// The context that names the user; `None` is the current one.
        context: Option<String>,
    },
}

/// What the proxy is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Credentials {
    /// For `Proxy-Authorization`.
    pub(super) authorization: Option<Authorization>,
    /// For a proxy that asks for a certificate.
    pub(super) certificate: Option<KeyPair>,
}

impl Credentials {
    /// A token, and no certificate.
    fn bearer(token: Token) -> Self {
        Self {
            authorization: Some(Authorization::Bearer(token)),
            certificate: None,
        }
    }
}

impl Options {
    /// Whether there is a source beside the proxy's URL.
    pub(super) fn has_source(&self) -> bool {
        !matches!(self.source, Source::None)
    }

    /// Gets the credentials. A program of the source runs each time.
    pub(super) async fn obtain(&self) -> Result<Credentials, CredentialError> {
        let deadline = Deadline::after(self.timeout).at;
        match &self.source {
            Source::None => Ok(Credentials::default()),
            Source::Token(token) => bearer("SWITCHBOARD_TOKEN", token.expose()),
            Source::TokenFile(path) => of_file(path),
            Source::TokenCommand(line) => Box::pin(of_command(line, deadline)).await,
            Source::Kubeconfig { files, context } => {
                let resolved = files.resolve(context.as_deref()).map_err(CredentialError::Kubeconfig)?;
                Box::pin(user::obtain(&resolved, deadline)).await
            }
        }
    }
}

/// Runs a line of the user's. ssh has handed over a shell line, too: quotation marks, pipes and variables are expected.
async fn of_command(line: &str, deadline: Instant) -> Result<Credentials, CredentialError> {
    let printed = process::output(platform::shell(line), deadline).await;
    let fault = |fault| CredentialError::Command { fault };
    let printed = printed.map_err(|error| fault(ProgramFault::Process(error)))?;
    if let Some(read) = exec_credential::read_any(&printed) {
        return read.map_err(|error| fault(ProgramFault::Output(error)));
    }
    let token = str::from_utf8(&printed).map_or(Err(authorization::TokenFault::Character), Token::parse);
    let token = token.map_err(|error| fault(ProgramFault::Token(error)))?;
    Ok(Credentials::bearer(token))
}

fn of_file(path: &std::path::Path) -> Result<Credentials, CredentialError> {
    let bytes = file::read(path, LARGEST_FILE).map(zeroize::Zeroizing::new);
    let bytes = bytes.map_err(|source| CredentialError::File {
        path: path.to_owned(),
        source,
    })?;
    bearer(&path.display().to_string(), &String::from_utf8_lossy(&bytes))
}

fn bearer(origin: &str, text: &str) -> Result<Credentials, CredentialError> {
    let token = Token::parse(text).map_err(|fault| CredentialError::Token {
        origin: origin.to_owned(),
        fault,
    })?;
    Ok(Credentials::bearer(token))
}

/// A token has at most 12 KiB.
const LARGEST_FILE: u64 = 1 << 20;
