//! The user's credentials for the proxy: from the environment, a file, a command or a kubeconfig.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::time::Instant;

pub(crate) use self::authorization::Credentials;
use super::dial::deadline::Deadline;
use crate::base::platform;
use crate::base::secret::Secret;

mod authorization;
mod exec_credential;
pub(super) mod kubeconfig;
mod process;
pub(super) mod user;

pub use self::kubeconfig::Files;

/// The source of the credentials, and how they may be used.
#[derive(Clone, Debug)]
pub struct Options {
    /// The source; `None` if only the credentials of the proxy's URL are used.
    pub source: Option<Source>,
    /// True if they may be sent in clear to a proxy that is not on this host.
    pub cleartext: bool,
    /// The time for all that a source may need, such as a login in a browser. See [`DEFAULT_TIMEOUT`].
    pub timeout: Duration,
}

/// The default of [`Options::timeout`]: five minutes, the time of a person with a second factor at hand.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

impl Default for Options {
    fn default() -> Self {
        Self {
            source: None,
            cleartext: false,
            timeout: DEFAULT_TIMEOUT,
        }
    }
}

/// A source of credentials.
#[derive(Clone, Debug)]
pub enum Source {
    /// A token, from SWITCHBOARD_TOKEN.
    Token(Secret),
    /// A file with a token.
    TokenFile(PathBuf),
    /// A line for the system's shell that prints a token or an ExecCredential.
    TokenCommand(String),
    /// The user of a context in a kubeconfig.
    Context {
        /// The files.
        files: Files,
        /// The context that names the user; `None` is the current one.
        context: Option<String>,
    },
}

impl Options {
    /// Returns the options with that context of the kubeconfig, unless they name one.
    pub(crate) fn of_context(&self, known: Option<String>) -> Self {
        let mut options = self.clone();
        if let Some(Source::Context { context, .. }) = &mut options.source {
            *context = context.take().or(known);
        }
        options
    }

    /// Gets the credentials. A program of the source runs each time.
    pub(crate) async fn obtain(&self) -> anyhow::Result<Credentials> {
        let deadline = Deadline::after(self.timeout).at;
        match &self.source {
            None => Ok(Credentials::default()),
            Some(Source::Token(token)) => Credentials::of_token("SWITCHBOARD_TOKEN", token.expose()),
            Some(Source::TokenFile(path)) => Credentials::of_file(path),
            Some(Source::TokenCommand(line)) => {
                let obtained = Box::pin(of_command(line, deadline)).await;
                let obtained = obtained.context("the command of --token-command")?;
                Ok(obtained.of_program())
            }
            Some(Source::Context { files, context }) => {
                let resolved = files.resolve(context.as_deref()).context("the kubeconfig")?;
                resolved.known_user().context("the kubeconfig")?;
                let credentials = Box::pin(user::obtain(&resolved, deadline, user::Input::OfSsh)).await?;
                let name = &resolved.user_name;
                let is_empty = credentials == Credentials::default();
                ensure!(!is_empty, "the user {name} of the kubeconfig has no credentials");
                Ok(credentials)
            }
        }
    }
}

/// Runs the user's command line in a shell, as ssh does: quotation marks, pipes and variables work.
async fn of_command(line: &str, deadline: Instant) -> anyhow::Result<Credentials> {
    let printed = process::output(platform::shell(line), false, deadline).await?;
    if let Some(read) = exec_credential::read_any(&printed) {
        return read;
    }
    let token = Credentials::bearer(&String::from_utf8_lossy(&printed));
    token.context("its output is not a token")
}
