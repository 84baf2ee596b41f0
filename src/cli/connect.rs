//! The arguments of `connect`, and what the environment adds to them.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, ValueEnum};
use switchboard::client::credentials::{self, Files, Source};
use switchboard::client::{self, Identity, ProxyUrl, Trust};
use switchboard::platform;
use switchboard::resume::{LARGEST_WINDOW, SMALLEST_WINDOW};
use switchboard::units::{Size, UnitError};

use crate::cli::CommandLine;
use crate::cli::proxy::SecretUrl;

/// The arguments of `connect`.
#[derive(Args)]
pub(crate) struct Connect {
    /// The proxy: http://HOST[:PORT] or https://HOST[:PORT], with USER:PASSWORD@ if it requires a password
    #[arg(
        long,
        env = "SWITCHBOARD_PROXY",
        value_name = "URL",
        hide_env_values = true,
        value_parser = SecretUrl
    )]
    proxy: ProxyUrl,
    /// Trust the certificates of this PEM file instead of the system's for an https:// proxy
    #[arg(long, env = "SWITCHBOARD_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Show this client certificate (PEM, with its intermediate certificates) to an https:// proxy that asks for one
    #[arg(long, env = "SWITCHBOARD_CERT", value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The private key of --cert (PEM, not encrypted)
    #[arg(long, env = "SWITCHBOARD_KEY", value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Expect this name in the proxy's certificate, and ask for it, instead of the host of the URL
    #[arg(long, env = "SWITCHBOARD_SERVER_NAME", value_name = "NAME")]
    server_name: Option<String>,
    /// Offer only HTTP/1.1 to an https:// proxy, not HTTP/2; to an http:// proxy it is always HTTP/1.1
    #[arg(long = "http1.1")]
    http1: bool,
    /// Ask again for up to DURATION when the proxy answers 429 or 503, as its Retry-After says; 5m without a value
    #[arg(
        long,
        value_name = "DURATION",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "5m",
        value_parser = humantime::parse_duration
    )]
    wait: Option<Duration>,
    /// Print a failure on stderr, too, where ssh prints it; without it ssh's own line is the only one
    #[arg(long, short)]
    verbose: bool,
    /// The target to reach through the proxy
    #[arg(value_name = "HOST:PORT")]
    target: String,
    #[command(flatten, next_help_heading = "Credentials")]
    credentials: CredentialFlags,
    #[command(flatten, next_help_heading = "Sessions")]
    session: SessionFlags,
}

/// How the session of ssh outlives its connection.
#[derive(Args)]
struct SessionFlags {
    /// Whether the session goes on over another connection when its own is lost, where the target has an anchor
    #[arg(long, env = "SWITCHBOARD_RESUME", value_name = "WHEN", default_value = "auto")]
    resume: Resume,
    /// How long a session waits for another connection
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = humantime::parse_duration)]
    grace: Duration,
    /// How much of each direction is kept to be sent again, 4KiB to 64MiB: what is read while there is no connection
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = window)]
    window: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Resume {
    /// Where the target announces an anchor
    Auto,
    /// Never
    Off,
}

impl SessionFlags {
    fn into_settings(self) -> Option<client::Settings> {
        let Self { resume, grace, window } = self;
        (resume == Resume::Auto).then(|| client::Settings {
            window,
            grace,
            ..client::Settings::default()
        })
    }
}

#[derive(Args)]
struct CredentialFlags {
    /// Send the bearer token in this file
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["token_command", "kubeconfig", "context", "audience"]
    )]
    token_file: Option<PathBuf>,
    /// Send the bearer token that this line for `sh -c` prints, bare or as an ExecCredential
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["kubeconfig", "context", "audience"])]
    token_command: Option<String>,
    /// Send the credentials of this kubeconfig's user [default: KUBECONFIG or ~/.kube/config, with --context or --audience]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Send the credentials of this context's user, not the current one's
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Ask the context's API server for a token with this audience, for a user that is a ServiceAccount
    #[arg(long, value_name = "NAME")]
    audience: Option<String>,
    /// Send credentials in clear, too, to an http:// proxy that is not on this host
    #[arg(long)]
    allow_cleartext: bool,
}

/// Carries stdin and stdout, or says which arguments contradict each other.
pub(crate) fn connect(options: Connect) -> ExitCode {
    match options.into_options() {
        Ok(options) => client::command(&options),
        Err(fault) => fault.exit(),
    }
}

impl Connect {
    /// The settings of the tunnel, with the credentials of the environment if there are no others.
    fn into_options(self) -> Result<client::Options, clap::Error> {
        let identity = self.cert.zip(self.key);
        let session = self.session.into_settings();
        let credentials = self.credentials.into_options(&self.proxy);
        let credentials =
            credentials.ok_or_else(|| CommandLine::command().error(ErrorKind::ArgumentConflict, TWO_CREDENTIALS))?;
        Ok(client::Options {
            proxy: self.proxy,
            trust: Trust {
                ca: self.ca,
                server_name: self.server_name,
                identity: identity.map(|(certificate, key)| Identity { certificate, key }),
            },
            http2: !self.http1,
            credentials,
            target: self.target,
            timeout: client::DEFAULT_TIMEOUT,
            session,
            wait: self.wait,
            verbose: self.verbose,
        })
    }
}

impl CredentialFlags {
    /// The source that the flags name, or the environment. `None` if the proxy's URL has credentials beside those of a flag.
    fn into_options(self, proxy: &ProxyUrl) -> Option<credentials::Options> {
        let by_kubeconfig = self.kubeconfig.is_some() || self.context.is_some() || self.audience.is_some();
        let named = if let Some(path) = self.token_file {
            Some(Source::TokenFile(path))
        } else if let Some(line) = self.token_command {
            Some(Source::TokenCommand(line))
        } else if by_kubeconfig {
            Some(Source::Kubeconfig {
                files: self.kubeconfig.map_or_else(listed_files, Files::One),
                context: self.context,
                audience: self.audience,
            })
        } else {
            None
        };
        let source = match named {
            Some(_) if proxy.has_credentials() => return None,
            Some(named) => named,
            None if proxy.has_credentials() => Source::None,
            None => variable("SWITCHBOARD_TOKEN").map_or(Source::None, |token| {
                Source::Token(token.to_string_lossy().into_owned().into())
            }),
        };
        Some(credentials::Options {
            source,
            cleartext: self.allow_cleartext,
            cache: platform::cache_folder(),
            timeout: credentials::DEFAULT_TIMEOUT,
        })
    }
}

/// The kubeconfig files that kubectl reads without a flag.
pub(crate) fn listed_files() -> Files {
    let listed = variable("KUBECONFIG").map(|list| env::split_paths(&list).collect());
    let mut files: Vec<PathBuf> = listed.unwrap_or_default();
    files.retain(|file| !file.as_os_str().is_empty());
    if files.is_empty() {
        files.extend(platform::home().map(|home| home.join(".kube").join("config")));
    }
    Files::Listed(files)
}

/// A variable of the environment that is not empty.
fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// A number of bytes that a session may keep, at `connect` and at `anchor`.
pub(crate) fn window(text: &str) -> Result<u32, String> {
    let size: Size = text.parse().map_err(|error: UnitError| error.to_string())?;
    let window = u32::try_from(size.get()).ok();
    let window = window.filter(|window| (SMALLEST_WINDOW..=LARGEST_WINDOW).contains(window));
    window.ok_or_else(|| "a window has 4KiB to 64MiB".to_owned())
}

const TWO_CREDENTIALS: &str =
    "the proxy's URL has a user, and an option names other credentials: only one of them can be sent";
/// For `--help`.
pub(crate) const CONNECT_EXAMPLE: &str = "\
In ~/.ssh/config:
  Host *.svc.cluster.local
    ProxyCommand switchboard connect --proxy https://ssh.example.com --context prod %h:%p

A session whose connection is lost goes on over another one, if the target has an anchor (--resume). ssh must wait as \
long: leave ServerAliveInterval at 0, its default.

SWITCHBOARD_TOKEN in the environment is a bearer token, for a proxy whose URL has no user, without options for \
credentials.

Exit status: 0 the tunnel ended in order, 1 it did not open or broke off, 2 usage";
