//! `known-hosts`: the published host keys of names, for other programs than ssh.

use std::process::ExitCode;
use std::sync::Arc;

use clap::{ArgMatches, Args};
use switchboard::client::check::print_host_keys;
use switchboard::client::known_hosts::HostKeyOutput;
use switchboard::client::proxy_settings::ProxySettings;

use crate::cli::client_flags::ClientFlags;
use crate::cli::config::with_port;

/// The arguments of `known-hosts`.
#[derive(Args)]
pub(crate) struct KnownHostsFlags {
    #[command(flatten)]
    settings: ProxySettings,
    /// The names, NAME or NAME:PORT; each must be reachable now
    #[arg(value_name = "NAME[:PORT]", required = true)]
    names: Vec<String>,
}

/// Prints the keys of all names.
pub(crate) fn known_hosts(flags: KnownHostsFlags, given: ArgMatches) -> anyhow::Result<ExitCode> {
    let settings = flags.settings;
    let client = ClientFlags { settings, given };
    let mut status = ExitCode::SUCCESS;
    for name in flags.names {
        let mut options = client.options(with_port(&name))?;
        options.host_keys = Some(HostKeyOutput::Memory(Arc::default()));
        options.no_wake = true;
        if print_host_keys(&options) != ExitCode::SUCCESS {
            status = ExitCode::FAILURE;
        }
    }
    Ok(status)
}

/// For `--help`.
pub(crate) const KNOWN_HOSTS_EXAMPLE: &str = "\
For a program that reads its own file of known_hosts(5):
  switchboard known-hosts --proxy https://ssh.example.com devbox.team-a.svc.cluster.local >>~/.ssh/known_hosts

Over http:// a proxy is believed on this host only. No workload is started.

Exit status: 0 all are printed, 1 a name is not reached or has none, 2 usage";
