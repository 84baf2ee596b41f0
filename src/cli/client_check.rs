//! `check` of the build without the proxy, where the client's file is the only one to check.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::cli::client_file;

/// The arguments of `check`.
#[derive(Args)]
pub(crate) struct Check {
    /// The file of the client. Without one: SWITCHBOARD_CLIENT_CONFIG, or else ~/.config/switchboard/config.yaml
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// As in the build with the proxy; here there is no other file to check
    // Unread, because the flag changes nothing here.
    #[arg(long = "client")]
    _client: bool,
}

/// Prints what is wrong with the client's file.
pub(crate) fn check(options: Check) -> anyhow::Result<ExitCode> {
    client_file::check(options.file)
}

/// For `--help`.
pub(crate) const CHECK_EXAMPLE: &str = "\
The way to a name, up to its SSH server:
  switchboard config --proxy https://ssh.example.com --check devbox.team-a.svc.cluster.local

Exit status: 0 `connect` accepts the file, 2 usage, or a file with faults, or one that cannot be read";
