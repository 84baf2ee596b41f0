//! The user's credentials for the proxy: from the environment, a file, a command or a kubeconfig.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use self::authorization::{Authorization, Token};
use self::cache::{Cache, Key};
use self::error::ProgramFault;
use super::Deadline;
use super::dial::tls::KeyPair;
use crate::base::file;
use crate::base::platform;
use crate::base::secret::Secret;

mod api;
mod api_server;
mod authorization;
mod cache;
mod error;
mod exec_credential;
mod jwt;
mod kubeconfig;
mod process;
mod token_request;
mod user;

pub(super) use self::api::Api;
pub(super) use self::api_server::Question;
pub use self::error::{ApiFault, CredentialError};
pub use self::kubeconfig::Files;

/// Where the credentials come from, and what may be done with them.
#[derive(Clone, Debug)]
pub struct Options {
    /// Their source.
    pub source: Source,
    /// Whether they are sent in clear, too, to a proxy that is not on this host.
    pub cleartext: bool,
    /// The folder in which those with an expiry are kept; `None` keeps none.
    pub cache: Option<PathBuf>,
    /// The time for all that a source may need: a login in a browser, or another process that is at it. See
    /// [`DEFAULT_TIMEOUT`].
    pub timeout: Duration,
}

/// The default of [`Options::timeout`]: five minutes, the time of a person with a second factor at hand.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

impl Default for Options {
    fn default() -> Self {
        Self {
            source: Source::None,
            cleartext: false,
            cache: None,
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
        /// The audience of a token to ask the API server for, in place of the user's own.
        audience: Option<String>,
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
    /// Whether the proxy would see the same: the certificate decides only where there is nothing else.
    fn is_same_login(&self, other: &Self) -> bool {
        self.authorization == other.authorization
            && (self.authorization.is_some() || self.certificate == other.certificate)
    }
}

/// Credentials with the end of their validity, in seconds since 1970, as far as it is known.
#[derive(Clone, Debug, Default)]
struct Issued {
    credentials: Credentials,
    expires: Option<i64>,
}

impl Options {
    /// Whether there is a source beside the proxy's URL.
    pub(super) fn has_source(&self) -> bool {
        !matches!(self.source, Source::None)
    }

    /// Gets the credentials. Those that the proxy has refused are not taken from the cache again.
    pub(super) async fn obtain(&self, refused: Option<&Credentials>) -> Result<Credentials, CredentialError> {
        let store = || Store {
            cache: self.cache.as_deref().and_then(Cache::open),
            deadline: Deadline::after(self.timeout).at,
        };
        match &self.source {
            Source::None => Ok(Credentials::default()),
            Source::Token(token) => bearer("SWITCHBOARD_TOKEN", token.expose()),
            Source::TokenFile(path) => of_file(path),
            Source::TokenCommand(line) => Box::pin(store().of_command(line, refused)).await,
            Source::Kubeconfig {
                files,
                context,
                audience,
            } => {
                let store = store();
                let resolved = files.resolve(context.as_deref()).map_err(CredentialError::Kubeconfig)?;
                match audience {
                    None => Box::pin(store.of_user(files, &resolved, refused)).await,
                    Some(audience) => Box::pin(store.of_audience(files, &resolved, audience, refused)).await,
                }
            }
        }
    }
}

/// What all sources share: the cache, if there is one, and the deadline.
struct Store {
    cache: Option<Cache>,
    deadline: Instant,
}

impl Store {
    /// The credentials of that key: from the cache, or from `issue`, which one process at a time runs.
    async fn cached(
        &self,
        key: &Key,
        refused: Option<&Credentials>,
        issue: impl Future<Output = Result<Issued, CredentialError>>,
    ) -> Result<Credentials, CredentialError> {
        let Some(cache) = &self.cache else {
            return Ok(issue.await?.credentials);
        };
        // Another process may have replaced what the proxy refused.
        let is_new = |issued: &Issued| refused.is_none_or(|refused| !issued.credentials.is_same_login(refused));
        if let Some(found) = cache.read(key).filter(is_new) {
            return Ok(found.credentials);
        }
        let lock = cache.lock(key, self.deadline).await?;
        if let Some(found) = cache.read(key).filter(is_new) {
            return Ok(found.credentials);
        }
        let issued = issue.await.inspect_err(|_| lock.note_failure())?;
        cache.write(key, &issued);
        Ok(issued.credentials)
    }

    /// Runs a line of the user's. ssh has handed over a shell line, too: quotation marks, pipes and variables are expected.
    async fn of_command(&self, line: &str, refused: Option<&Credentials>) -> Result<Credentials, CredentialError> {
        let key = Key::of(
            [&b"token-command"[..], line.as_bytes()]
                .into_iter()
                .chain(user::identity_variables().iter().map(Vec::as_slice)),
        );
        let issue = async {
            let printed = process::output(platform::shell(line), self.deadline).await;
            let fault = |fault| CredentialError::Command { fault };
            let printed = printed.map_err(|error| fault(ProgramFault::Process(error)))?;
            if let Some(read) = exec_credential::read_any(&printed) {
                return read.map_err(|error| fault(ProgramFault::Output(error)));
            }
            let token = str::from_utf8(&printed).map_or(Err(authorization::TokenFault::Character), Token::parse);
            let token = token.map_err(|error| fault(ProgramFault::Token(error)))?;
            Ok(exec_credential::of_token(token))
        };
        Box::pin(self.cached(&key, refused, issue)).await
    }
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
    Ok(Credentials {
        authorization: Some(Authorization::Bearer(token)),
        certificate: None,
    })
}

/// Seconds since 1970, by the system's clock.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

/// A token has at most 12 KiB.
const LARGEST_FILE: u64 = 1 << 20;
