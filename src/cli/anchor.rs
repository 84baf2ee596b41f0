//! `anchor`: its arguments, and its end by a signal.

use std::process::ExitCode;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command};
use switchboard::anchor;
use switchboard::base::authority::Authority;
use switchboard::client::proxy_settings::{ProxySettings, SecretUrl};
use switchboard::daemon::process::ProcessSize;
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

/// The connections of an anchor that dials in. Further arguments are some of those of `connect`.
#[derive(Args)]
#[command(args = connection_args())]
struct DialIn {
    /// Dial each replica of this proxy, http://HOST[:PORT] or https://HOST[:PORT], and serve the clients that it sends
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
}

impl DialIn {
    /// Returns the connection to the proxy, and the name that is served; `None` for an anchor that listens only.
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
            ca: value(&given, "ca"),
            cert: value(&given, "cert"),
            key: value(&given, "key"),
            server_name: value(&given, "server_name"),
            no_env_proxy: given.get_flag("no_env_proxy"),
            token_file: value(&given, "token_file"),
            token_command: value(&given, "token_command"),
            kubeconfig: value(&given, "kubeconfig"),
            context: value(&given, "context"),
            allow_cleartext: given.get_flag("allow_cleartext"),
            ..ProxySettings::default()
        };
        let options = ClientFlags { settings, given }.options(serves.to_string())?;
        if uplink::is_in_clear(&options.uplink) {
            return Err(clap::Error::raw(ErrorKind::ArgumentConflict, IN_CLEAR).into());
        }
        Ok(Some((options.uplink, serves)))
    }
}

/// Returns the arguments of `connect` for the connection to the proxy.
fn connection_args() -> Vec<Arg> {
    let of_connect = ProxySettings::augment_args(Command::new("connect"));
    let arguments = of_connect.get_arguments();
    let taken = arguments.filter(|argument| OF_THE_CONNECTION.contains(&argument.get_id().as_str()));
    // After the anchor's own arguments.
    let place = |(place, argument): (usize, Arg)| argument.help_heading("Dial in").display_order(FIRST + place);
    taken.cloned().enumerate().map(place).collect()
}

fn value<T: Clone + Send + Sync + 'static>(given: &ArgMatches, name: &str) -> Option<T> {
    given.get_one(name).cloned()
}

/// The place of the first argument of `connect`: the anchor has fewer arguments of its own.
const FIRST: usize = 100;
/// The names of the arguments that are taken from `connect`.
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

/// Serves until a signal or a drain.
pub(crate) fn anchor(arguments: Anchor, given: ArgMatches) -> anyhow::Result<ExitCode> {
    let dial_in = arguments.dial_in.options(given)?;
    let (runtime, logging) = start(&arguments.log, ProcessSize::ANCHOR)?;
    runtime.block_on(async {
        let stopped = stopped().context("cannot listen for signals")?;
        // A handler that does nothing, because a closed terminal is no reason to end sessions.
        let _hangup = signal(SignalKind::hangup()).context("cannot listen for signals")?;
        let anchor = anchor::Anchor::start(arguments.options, dial_in, logging.logs.clone())?;
        // On a worker thread, as its connections are: the main thread would accept faster than connections begin.
        tokio::spawn(anchor.run(stopped)).await.context("the anchor has failed")
    })?;
    runtime.shutdown_background();
    drop(logging);
    Ok(ExitCode::SUCCESS)
}

/// For `--help`.
pub(crate) const ANCHOR_EXITS: &str = "Exit status: 0 stopped by a signal or by POST /drain, 1 runtime error, 2 usage";
