//! `anchor`: its arguments, and its end by a signal.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::builder::FalseyValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
use switchboard::anchor;
use switchboard::base::authority::Authority;
use switchboard::client::proxy_settings::{ProxySettings, SecretUrl};
use switchboard::daemon::process_size::ProcessSize;
use switchboard::uplink::{self, ProxyUrl};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::client_flags::ClientFlags;
use crate::cli::start::{LogFlags, start, stopped};

/// The arguments of `anchor`.
#[derive(Args)]
pub(crate) struct Anchor {
    #[command(flatten)]
    options: anchor::Options,
    #[command(flatten, next_help_heading = "Dial in")]
    dial_in: DialIn,
    #[command(flatten, next_help_heading = None)]
    log: LogFlags,
}

/// The connections of an anchor that dials in. The settings are those of `connect`.
#[derive(Args)]
struct DialIn {
    /// Dial this proxy, http://HOST[:PORT] or https://HOST[:PORT], each of its replicas, and serve the clients that it sends
    #[arg(
        long,
        env = "SWITCHBOARD_ANCHOR_DIAL",
        value_name = "URL",
        hide_env_values = true,
        value_parser = SecretUrl("--dial <URL>' or SWITCHBOARD_ANCHOR_DIAL"),
        requires = "serve"
    )]
    dial: Option<ProxyUrl>,
    /// Serve clients that ask the proxy for this name
    #[arg(long, env = "SWITCHBOARD_ANCHOR_SERVE", value_name = "NAME:PORT", requires = "dial")]
    serve: Option<Authority>,
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
    /// Do not go through the proxy that HTTPS_PROXY, HTTP_PROXY or ALL_PROXY names (NO_PROXY exempts hosts)
    #[arg(long, env = "SWITCHBOARD_NO_ENV_PROXY", value_parser = FalseyValueParser::new())]
    no_env_proxy: bool,
    /// Send the bearer token in this file, which is read at each dial
    #[arg(long, env = "SWITCHBOARD_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Send the bearer token that this line for `sh -c` prints, bare or as an ExecCredential
    #[arg(long, env = "SWITCHBOARD_TOKEN_COMMAND", value_name = "COMMAND")]
    token_command: Option<String>,
    /// Send the credentials of this kubeconfig's user [default: KUBECONFIG or ~/.kube/config, with --context]
    #[arg(long, env = "SWITCHBOARD_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Send the credentials of this context's user, not the current one's
    #[arg(long, env = "SWITCHBOARD_CONTEXT", value_name = "NAME")]
    context: Option<String>,
    /// Send credentials in clear, too, to an http:// proxy that is not on this host
    #[arg(long, env = "SWITCHBOARD_ALLOW_CLEARTEXT", value_parser = FalseyValueParser::new())]
    allow_cleartext: bool,
}

impl DialIn {
    /// The connection to the proxy, and the name that is served; `None` for an anchor that listens only.
    fn options(self, given: ArgMatches) -> anyhow::Result<Option<(uplink::Options, Authority)>> {
        let Some((proxy, serves)) = self.dial.zip(self.serve) else {
            let is_typed = |name: &&&str| given.value_source(name) == Some(ValueSource::CommandLine);
            return match OF_THE_CONNECTION.iter().find(is_typed) {
                Some(name) => {
                    let message = format!("--{} is for an anchor with --dial", name.replace('_', "-"));
                    Err(clap::Error::raw(ErrorKind::ArgumentConflict, message).into())
                }
                None => Ok(None),
            };
        };
        let settings = ProxySettings {
            proxy: Some(proxy),
            ca: self.ca,
            cert: self.cert,
            key: self.key,
            server_name: self.server_name,
            no_env_proxy: self.no_env_proxy,
            token_file: self.token_file,
            token_command: self.token_command,
            kubeconfig: self.kubeconfig,
            context: self.context,
            allow_cleartext: self.allow_cleartext,
            ..ProxySettings::default()
        };
        let options = ClientFlags { settings, given }.options(serves.to_string())?;
        if uplink::is_in_clear(&options.uplink) {
            return Err(clap::Error::raw(ErrorKind::ArgumentConflict, IN_CLEAR).into());
        }
        Ok(Some((options.uplink, serves)))
    }
}

/// The settings of the connection to the proxy.
const OF_THE_CONNECTION: [&str; 10] = [
    "ca",
    "cert",
    "key",
    "server_name",
    "no_env_proxy",
    "token_file",
    "token_command",
    "kubeconfig",
    "context",
    "allow_cleartext",
];
const IN_CLEAR: &str = "each host on the way to an http:// proxy can read and use a credential: use https://, or --allow-cleartext \
                        where the way is encrypted otherwise";

/// Serves until a signal.
pub(crate) fn anchor(arguments: Anchor, given: ArgMatches) -> anyhow::Result<ExitCode> {
    let dial_in = arguments.dial_in.options(given)?;
    let (runtime, logging) = start(&arguments.log, ProcessSize::ANCHOR)?;
    runtime.block_on(async {
        let stopped = stopped().context("cannot listen for signals")?;
        // A terminal that is closed is no reason to end sessions: a handler that does nothing.
        let _hangup = signal(SignalKind::hangup()).context("cannot listen for signals")?;
        let anchor = anchor::Anchor::start(arguments.options, dial_in, logging.logs.clone())?;
        // On a worker thread, as its connections are: in the main thread it would accept faster than they begin.
        tokio::spawn(anchor.run(stopped)).await.context("the anchor has failed")
    })?;
    runtime.shutdown_background();
    drop(logging);
    Ok(ExitCode::SUCCESS)
}

/// For `--help`.
pub(crate) const ANCHOR_EXITS: &str = "Exit status: 0 stopped by a signal or by POST /drain, 1 runtime error, 2 usage";
