//! `config`: what OpenSSH is told of the proxy, and whether it works.

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{Args, ValueEnum};
use switchboard::base::platform;
use switchboard::client::check;
use switchboard::client::ssh_config::{Block, ForeignClient, Place, ProxyCommand, System, plan};

use crate::cli::client_flags::{ClientFlags, Unusable};
use crate::cli::misspelt_variables::warn_of_misspelt_variables;
use crate::cli::to_stderr;

/// The arguments of `config`.
#[derive(Args)]
pub(crate) struct ConfigFlags {
    #[command(flatten)]
    client: ClientFlags,
    /// The names that are reached through the proxy, as a pattern of ssh_config(5) (repeatable)
    #[arg(long, value_name = "PATTERN", default_value = "*.svc.cluster.local")]
    name: Vec<String>,
    /// The account on the targets
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Have further logins to a target share the connection of the first
    #[arg(long)]
    control_master: bool,
    /// Write the line of this client, for a machine without switchboard
    #[arg(
        long = "client",
        id = "program",
        value_name = "CLIENT",
        default_value = "switchboard"
    )]
    program: Client,
    /// Install the block: beside FILE, which includes it [default: ~/.ssh/config]
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with = "check")]
    write: Option<Option<PathBuf>>,
    /// Remove the block of these names
    #[arg(long, conflicts_with = "check")]
    remove: bool,
    /// Show what --write or --remove would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Log in to this name, NAME or NAME:PORT, up to the SSH identification, and say which step fails
    #[arg(long, value_name = "NAME")]
    check: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Client {
    /// `switchboard connect`, by the path of this program
    Switchboard,
    /// proxytunnel
    Proxytunnel,
    /// nc of OpenBSD
    Nc,
    /// ncat of nmap
    Ncat,
    /// socat
    Socat,
    /// corkscrew
    Corkscrew,
}

/// Prints, installs or removes the block, or checks the way to a name.
pub(crate) fn config(flags: ConfigFlags) -> anyhow::Result<ExitCode> {
    warn_of_misspelt_variables();
    if let Some(name) = &flags.check {
        let target = if has_port(name) {
            name.clone()
        } else {
            format!("{name}:22")
        };
        return Ok(match flags.client.into_options(target) {
            Ok(options) => check::command(&options),
            Err(unusable) => unusable.report(),
        });
    }
    if flags.remove {
        return install(&flags, None);
    }
    let block = match block(&flags)? {
        Ok(block) => block,
        Err(unusable) => return Ok(unusable.report()),
    };
    match block.text() {
        Err(fault) => Ok(Unusable::arguments(ErrorKind::ValueValidation, fault).report()),
        Ok(text) if flags.write.is_some() || flags.dry_run => install(&flags, Some(&text)),
        Ok(text) => {
            write!(std::io::stdout(), "{text}")?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The block that the arguments describe. Where no proxy is named, the client's file has to have one for the names.
fn block(flags: &ConfigFlags) -> anyhow::Result<Result<Block, Unusable>> {
    let refuse = |message: String| Ok(Err(Unusable::arguments(ErrorKind::ArgumentConflict, message)));
    let client = &flags.client;
    let command = match flags.program.foreign() {
        None => {
            if client.proxy.as_ref().is_some_and(|proxy| proxy.has_credentials()) {
                return refuse(PASSWORD.to_owned());
            }
            // A contradiction of the arguments is said now, and not at the first login.
            let mut is_resumable = true;
            for name in flags.name.iter().filter(|name| !name.starts_with('!')) {
                let example = name.replace(['*', '?'], "x");
                match client.clone().into_options(format!("{example}:22")) {
                    // By a flag, a variable, or the entry of the file.
                    Ok(options) => is_resumable &= options.session.is_some(),
                    Err(unusable) => return Ok(Err(unusable)),
                }
            }
            let program = program().context("cannot tell the path of this program")?;
            let program = program
                .into_os_string()
                .into_string()
                .ok()
                .context("the path of this program is not UTF-8")?;
            let mut words = vec![program, "connect".to_owned()];
            words.extend(client.to_words()?);
            ProxyCommand::Switchboard { words, is_resumable }
        }
        Some(foreign) if !client.is_only_a_proxy() => {
            return refuse(format!(
                "{} has none of the options of `connect`: only --proxy can be given",
                foreign.program()
            ));
        }
        Some(foreign) => match client.proxy.clone() {
            Some(proxy) => ProxyCommand::Foreign(foreign, proxy),
            None => return refuse("--client needs --proxy URL".to_owned()),
        },
    };
    Ok(Ok(Block {
        names: flags.name.clone(),
        command,
        user: flags.user.clone(),
        control_master: flags.control_master,
        system: System::OWN,
    }))
}

/// Installs the text, or removes what is installed, and shows the difference.
fn install(flags: &ConfigFlags, text: Option<&str>) -> anyhow::Result<ExitCode> {
    let named = flags.write.clone().flatten();
    let place = match named {
        Some(config) => Place {
            config: std::path::absolute(config).context("cannot tell the working folder")?,
            is_default: false,
        },
        None => {
            let home = platform::home().context("there is no home folder")?;
            warn_of_another_home(&home);
            Place {
                config: home.join(".ssh").join("config"),
                is_default: true,
            }
        }
    };
    let edits = plan(&place, &flags.name, text)?;
    for edit in &edits {
        write!(std::io::stdout(), "{}", edit.difference())?;
    }
    if edits.is_empty() {
        to_stderr("switchboard: nothing to change");
    } else if flags.dry_run {
        to_stderr("switchboard: nothing was changed (--dry-run)");
    }
    if !flags.dry_run {
        for edit in &edits {
            edit.apply()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Says that ssh does not read the file below HOME, as with `sudo -E` and in containers.
fn warn_of_another_home(home: &Path) {
    let is_another = |other: &PathBuf| std::fs::canonicalize(other).ok() != std::fs::canonicalize(home).ok();
    if let Some(other) = platform::home_of_ssh().filter(is_another) {
        let file = other.join(".ssh").join("config");
        to_stderr(format_args!(
            "switchboard: ssh reads {file}, in the home of passwd(5), and not below HOME, which is {}: --write={file} writes there",
            home.display(),
            file = file.display()
        ));
    }
}

impl Client {
    fn foreign(self) -> Option<ForeignClient> {
        match self {
            Self::Switchboard => None,
            Self::Proxytunnel => Some(ForeignClient::Proxytunnel),
            Self::Nc => Some(ForeignClient::Nc),
            Self::Ncat => Some(ForeignClient::Ncat),
            Self::Socat => Some(ForeignClient::Socat),
            Self::Corkscrew => Some(ForeignClient::Corkscrew),
        }
    }
}

fn has_port(name: &str) -> bool {
    // An IPv6 address has colons, too.
    name.rsplit_once(':')
        .is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'))
}

/// The path by which this program was started: through the symbolic links of a package manager, which lead to the next
/// version after an upgrade, and not to this one.
fn program() -> std::io::Result<PathBuf> {
    let own = env::current_exe()?;
    let is_own = |path: &PathBuf| std::fs::canonicalize(path).ok() == std::fs::canonicalize(&own).ok();
    let named = env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let started = if named.components().count() > 1 {
        std::path::absolute(named).ok()
    } else {
        let folders = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&folders)
            .map(|folder| folder.join(&named))
            .find(|path| Path::is_absolute(path) && path.is_file())
    };
    Ok(started.filter(is_own).unwrap_or(own))
}

const PASSWORD: &str = "the proxy's URL has a password, which a ProxyCommand would show in the list of processes: put the URL \
                        into the configuration file of the client, or take a token";
/// For `--help`.
pub(crate) const CONFIG_EXAMPLE: &str = "\
From a URL to a login:
  switchboard config --proxy https://ssh.example.com --write
  ssh devbox.team-a.svc.cluster.local

And if it does not work:
  switchboard config --proxy https://ssh.example.com --check devbox.team-a.svc.cluster.local

Exit status: 0 printed, installed or reached, 1 not, 2 usage";
