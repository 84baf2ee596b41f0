//! `connect`: the ProxyCommand.

use std::process::ExitCode;
use std::time::Duration;

use clap::builder::FalseyValueParser;
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use switchboard::client;
use switchboard::client::known_hosts::{self, HostKeyOutput};
use switchboard::client::proxy_settings::ProxySettings;

use crate::cli::client_flags::ClientFlags;

/// The arguments of `connect`.
#[derive(Args)]
pub(crate) struct Connect {
    #[command(flatten)]
    settings: ProxySettings,
    /// Retry for up to DURATION when the proxy answers 429 or 503, after its Retry-After; 5m without a value
    #[arg(
        long,
        env = "SWITCHBOARD_WAIT",
        value_name = "DURATION",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "5m",
        value_parser = humantime::parse_duration
    )]
    wait: Option<Duration>,
    /// Print a failure on stderr even if ssh prints it, too
    #[arg(long, short, env = "SWITCHBOARD_VERBOSE", value_parser = FalseyValueParser::new())]
    verbose: bool,
    /// Write published host keys under this HostKeyAlias of ssh, too (repeatable)
    #[arg(long, value_name = "NAME", value_parser = known_hosts::alias)]
    host_key_alias: Vec<String>,
    /// The target to reach through the proxy; `%h %p` in a ProxyCommand
    #[arg(value_name = "HOST:PORT|HOST")]
    target: String,
    /// The port of the target, if it is not after the host
    #[arg(value_name = "PORT")]
    port: Option<String>,
}

/// Relays stdin and stdout.
pub(crate) fn connect(options: Connect, given: ArgMatches) -> anyhow::Result<ExitCode> {
    refuse_a_stray_duration(&options)?;
    let settings = options.settings;
    let mut reached = ClientFlags { settings, given }.options(joined(options.target, options.port))?;
    if let Some(HostKeyOutput::File(known)) = &mut reached.host_keys {
        known.names.extend(options.host_key_alias);
    }
    Ok(client::command(&client::Options {
        wait: options.wait,
        verbose: options.verbose,
        ..reached
    }))
}

/// Returns the settings of a `connect` with these words, the first of which is its name.
pub(super) fn settings(words: impl Iterator<Item = String>) -> Result<ClientFlags, clap::Error> {
    let command = Connect::augment_args(Command::new("connect")).args_override_self(true);
    let given = command.try_get_matches_from(words)?;
    let Connect { settings, .. } = Connect::from_arg_matches(&given)?;
    Ok(ClientFlags { settings, given })
}

/// Refuses `--wait 5m`, which has no `=`: clap takes the duration for the host, and the target for the port.
fn refuse_a_stray_duration(options: &Connect) -> Result<(), clap::Error> {
    let is_port = |port: &String| port.bytes().all(|byte| byte.is_ascii_digit());
    let is_stray = options.wait.is_some()
        && options.port.as_ref().is_some_and(|port| !is_port(port))
        && humantime::parse_duration(&options.target).is_ok();
    if is_stray {
        let meant = format!("--wait takes its duration after `=`: --wait={}", options.target);
        return Err(clap::Error::raw(ErrorKind::ValueValidation, meant));
    }
    Ok(())
}

/// Returns the target as one argument. With `%h %p` an IPv6 address has no brackets yet.
fn joined(host: String, port: Option<String>) -> String {
    match port {
        None => host,
        Some(port) if host.contains(':') && !host.starts_with('[') => format!("[{host}]:{port}"),
        Some(port) => format!("{host}:{port}"),
    }
}

/// For `--help`.
pub(crate) const CONNECT_EXAMPLE: &str = "\
In ~/.ssh/config:
  Host *.svc.cluster.local
    ProxyCommand switchboard connect --proxy https://ssh.example.com --context prod %h:%p

A session whose connection is lost goes on over another one, if the target has an anchor (--resume). ssh must not end \
first: set ServerAliveInterval 0 (the default, but Debian's ssh has 300 with BatchMode).

SWITCHBOARD_TOKEN in the environment is sent as a bearer token if neither the proxy's URL nor an option has credentials.

Exit status: 0 the tunnel ended normally, 1 it did not open or failed, 2 usage";
