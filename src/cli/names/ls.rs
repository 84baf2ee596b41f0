//! `ls`: the names that the user may reach.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use clap::{ArgMatches, Args};
use switchboard::client::listing::{self, ReachableNames};
use switchboard::client::proxy_settings::ProxySettings;
use switchboard::client::ssh_config::ConfigPaths;
use switchboard::uplink::is_unauthenticated;

use crate::cli::client_flags::ClientFlags;
use crate::cli::config::{example, find_paths, report};
use crate::cli::output::{print, to_stderr};

/// The arguments of `ls`.
#[derive(Args)]
pub(crate) struct LsFlags {
    #[command(flatten)]
    settings: ProxySettings,
    /// The names of the block of `config`, which are listed where a target has several (repeatable)
    #[arg(long, value_name = "PATTERN", default_value = "*.svc.cluster.local")]
    name: Vec<String>,
    /// Install a `Host` line for each of these names, and remove those of names that are gone: for programs that show no patterns [default: ~/.ssh/config]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    write: Option<Option<PathBuf>>,
    /// Remove the lines of --write, and exit
    #[arg(long)]
    remove: bool,
    /// List only names that contain this text
    #[arg(value_name = "TEXT", default_value = "", hide_default_value = true)]
    text: String,
}

/// Lists the names, and installs them.
pub(crate) fn ls(flags: LsFlags, given: ArgMatches) -> anyhow::Result<ExitCode> {
    let client = ClientFlags {
        settings: flags.settings,
        given,
    };
    let mut patterns = flags.name.iter().filter(|name| !name.starts_with('!'));
    let host = patterns.next().map(|name| example(name)).unwrap_or_default();
    let options = client.options(format!("{host}:22"))?.uplink;
    let title = listing::title(&options.proxy, &flags.text);
    if flags.remove {
        report(&find_paths(&flags.write)?.remove(&title)?);
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(
        flags.write.is_none() || !is_unauthenticated(&options),
        "--write needs an https:// proxy, or one on this host: anybody on the way could send other names and ports"
    );
    let names = listing::fetch(&options, &flags.text)?;
    print(names.table(&flags.name))?;
    if let Some(reason) = names.incomplete() {
        to_stderr(format_args!("switchboard: {reason}"));
    }
    match &flags.write {
        Some(_) => write(&names, &flags.name, &title, &find_paths(&flags.write)?),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Installs the names that ssh reaches by the block of `config`.
fn write(
    names: &ReachableNames,
    patterns: &[String],
    title: &[String],
    paths: &ConfigPaths,
) -> anyhow::Result<ExitCode> {
    let (hosts, unmatched) = names.hosts(patterns);
    let first = hosts.iter().next().map(str::to_owned);
    report(&hosts.install(paths, title, names.incomplete().is_none())?);
    if unmatched > 0 {
        let patterns = patterns.join(" ");
        to_stderr(format_args!(
            "switchboard: {unmatched} targets have no name that matches --name ({patterns}) and are not written"
        ));
    }
    if unmatched > 0 && first.is_none() {
        return Ok(ExitCode::FAILURE);
    }
    let command = first.as_ref().and_then(|host| paths.proxy_command(host));
    if let (Some(host), Some(Ok(command))) = (first, command)
        && command == "none"
    {
        to_stderr(format_args!(
            "switchboard: ssh does not connect to {host} by a proxy yet: `switchboard config --write` installs that"
        ));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// For `--help`.
pub(crate) const LS_EXAMPLE: &str = "\
The names for the pickers of editors, after `switchboard config --write`:
  switchboard ls --proxy https://ssh.example.com --write

States: ready, asleep (a login starts it), unready, stopped, cordoned. The operator of the proxy has to allow lists.

Exit status: 0 listed, 1 not, or no name is written, or ssh does not connect to the names by a proxy, 2 usage";
