//! The user's credentials for the proxy: from the environment, a file, a command or a kubeconfig.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use tokio::time::Instant;

use self::authorization::{Authorization, Token};
use super::Deadline;
use super::dial::tls::KeyPair;
use crate::base::file;
use crate::base::platform;
use crate::base::secret::Secret;

mod authorization;
mod exec_credential;
mod kubeconfig;
mod process;
mod user;

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

/// The proxy is reached in clear.
#[derive(Debug, thiserror::Error)]
#[error(
    "each host on the way to an http:// proxy can read and use a credential: use https://, or --allow-cleartext where the \
     way is encrypted otherwise"
)]
pub(super) struct Cleartext;

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
    pub(super) async fn obtain(&self) -> anyhow::Result<Credentials> {
        let deadline = Deadline::after(self.timeout).at;
        match &self.source {
            Source::None => Ok(Credentials::default()),
            Source::Token(token) => bearer("SWITCHBOARD_TOKEN", token.expose()),
            Source::TokenFile(path) => of_file(path),
            Source::TokenCommand(line) => {
                let obtained = Box::pin(of_command(line, deadline)).await;
                obtained.context("the command of --token-command")
            }
            Source::Kubeconfig { files, context } => {
                let resolved = files.resolve(context.as_deref()).context("the kubeconfig")?;
                Box::pin(user::obtain(&resolved, deadline)).await
            }
        }
    }
}

/// Runs a line of the user's. ssh has handed over a shell line, too: quotation marks, pipes and variables are expected.
async fn of_command(line: &str, deadline: Instant) -> anyhow::Result<Credentials> {
    let printed = process::output(platform::shell(line), deadline).await?;
    if let Some(read) = exec_credential::read_any(&printed) {
        return read;
    }
    let token = str::from_utf8(&printed).map_or(Err(authorization::TokenFault::Character), Token::parse);
    Ok(Credentials::bearer(token.context("what it printed is no token")?))
}

fn of_file(path: &std::path::Path) -> anyhow::Result<Credentials> {
    let bytes = file::read(path, LARGEST_FILE).map(zeroize::Zeroizing::new);
    let bytes = bytes.with_context(|| format!("cannot read the token in {}", path.display()))?;
    bearer(&path.display().to_string(), &String::from_utf8_lossy(&bytes))
}

fn bearer(origin: &str, text: &str) -> anyhow::Result<Credentials> {
    let token = Token::parse(text).with_context(|| format!("the token in {origin} cannot be sent"))?;
    Ok(Credentials::bearer(token))
}

/// A token has at most 12 KiB.
const LARGEST_FILE: u64 = 1 << 20;
