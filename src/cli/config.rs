//! `config`: puts the proxy into OpenSSH's configuration, and checks it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{ArgMatches, Args};
use switchboard::client::known_hosts::{HostKeyOutput, KnownHosts};
use switchboard::client::proxy_settings::ProxySettings;
use switchboard::client::ssh_config::{Block, ConfigPaths, Route, System, installed};
use switchboard::client::{self, check};
use switchboard::uplink::ProxyUrl;

use crate::cli::client_flags::ClientFlags;
use crate::cli::connect;
use crate::cli::output::{print, to_stderr};

/// The arguments of `config`.
#[derive(Args)]
pub(crate) struct ConfigFlags {
    #[command(flatten)]
    settings: ProxySettings,
    /// The names that are reached through the proxy, as a pattern of ssh_config(5) (repeatable)
    #[arg(long, value_name = "PATTERN", default_value = "*.svc.cluster.local")]
    name: Vec<String>,
    /// Let ssh reach NAME as ALIAS, too (repeatable)
    #[arg(long, value_name = "ALIAS=NAME", value_parser = alias)]
    alias: Vec<(String, String)>,
    /// Reach the names through this jump host, [USER@]HOST[:PORT], with no other program than ssh
    #[arg(long, value_name = "HOST")]
    jump: Option<String>,
    /// The account on the targets
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Let ssh connect only where the host key is published or known, without a question
    #[arg(long)]
    strict: bool,
    /// Let further logins to a target share the connection of the first
    #[arg(long)]
    control_master: bool,
    /// Install the block in a file beside FILE, and include that file from FILE [default: ~/.ssh/config]
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with = "check")]
    write: Option<Option<PathBuf>>,
    /// Install the block in FILE itself, for programs that read FILE without its Include, such as paramiko and some editors
    #[arg(long, requires = "write")]
    inline: bool,
    /// Remove the block of these names
    #[arg(long, conflicts_with = "check")]
    remove: bool,
    /// Log in to this name, NAME or NAME:PORT, up to the SSH identification, and report which step fails
    #[arg(long, value_name = "NAME")]
    check: Option<String>,
}

/// Prints, installs or removes the block, or checks the way to a name.
pub(crate) fn config(flags: &ConfigFlags, given: ArgMatches) -> anyhow::Result<ExitCode> {
    let client = ClientFlags {
        settings: flags.settings.clone(),
        given,
    };
    if let (Some(jump), Some(name)) = (&flags.jump, &flags.check) {
        text(&of_jump_host(jump, flags, &client)?)?;
        return Ok(check::jump_host::command(jump, &with_port(name)));
    }
    if let Some(name) = &flags.check {
        let (client, target) = as_ssh_connects(name, client)?;
        return Ok(check::command(&client.options(target)?));
    }
    if flags.remove {
        report(&find_paths(&flags.write)?.remove(&flags.name)?);
        return Ok(ExitCode::SUCCESS);
    }
    let block = match &flags.jump {
        Some(jump) => of_jump_host(jump, flags, &client)?,
        None => block(flags, &client)?,
    };
    let text = text(&block)?;
    if flags.write.is_none() {
        print(text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let paths = find_paths(&flags.write)?;
    let changed = paths.install(&flags.name, &text, flags.inline)?;
    report(&changed);
    if !flags.inline && !changed.is_empty() {
        let file = paths.config.display();
        to_stderr(format_args!(
            "switchboard: programs that read {file} without its Include, such as paramiko and some editors, need --inline"
        ));
    }
    is_used(&block, &paths)
}

fn text(block: &Block) -> anyhow::Result<String> {
    let text = block.text();
    Ok(text.map_err(|fault| clap::Error::raw(ErrorKind::ValueValidation, fault))?)
}

/// Returns the settings and the target of a name: those of the block that ssh uses, unless a flag names the proxy or a file.
fn as_ssh_connects(name: &str, client: ClientFlags) -> anyhow::Result<(ClientFlags, String)> {
    let target = with_port(name);
    let (host, port) = match target.rsplit_once(':') {
        Some((host, port)) if target == name => (host, Some(port)),
        _ => (name, None),
    };
    if client.is_typed("proxy") || client.is_typed("config") {
        return Ok((client, target));
    }
    let Some((mut words, target)) = installed(host, port) else {
        return Ok((client, target));
    };
    to_stderr(format_args!(
        "switchboard: as ssh connects to {name}, by {}",
        words.join(" ")
    ));
    words.extend(client.to_words(|flag| client.is_typed(flag))?);
    Ok((
        connect::settings(words.into_iter().skip(1).chain([target.clone()]))?,
        target,
    ))
}

/// Asks ssh whether it uses the block, and reports the names for which it does not.
pub(super) fn is_used(block: &Block, paths: &ConfigPaths) -> anyhow::Result<ExitCode> {
    let mut status = ExitCode::SUCCESS;
    let expected = match &block.route {
        Route::Command(_) => block.command()?,
        Route::Jump(jump) => jump.replace(['[', ']'], ""),
        Route::Port { address, .. } => format!("{} port {}", address.ip(), address.port()),
    };
    let aliases = block.aliases.iter().map(|(alias, _)| alias);
    let names = block.names.iter().filter(|name| !name.starts_with('!'));
    for host in names.chain(aliases).map(|name| example(name)) {
        let (used, what) = match &block.route {
            Route::Command(_) => (paths.proxy_command(&host), "its ProxyCommand there is:"),
            Route::Jump(_) => (paths.proxy_jump(&host), "its ProxyJump there is:"),
            Route::Port { .. } => (paths.destination(&host), "it connects to"),
        };
        let reason = match used {
            Some(Ok(used)) if used != expected => format!("{what} {used}"),
            Some(Err(error)) => error,
            Some(Ok(_)) | None => continue,
        };
        to_stderr(format_args!(
            "switchboard: ssh does not use this block for {host}: {reason}"
        ));
        status = ExitCode::FAILURE;
    }
    Ok(status)
}

fn alias(text: &str) -> Result<(String, String), &'static str> {
    let parts = text
        .split_once('=')
        .ok_or("write ALIAS=NAME, such as box=devbox.team-a")?;
    Ok((parts.0.to_owned(), parts.1.to_owned()))
}

/// Returns a name that matches a pattern.
pub(super) fn example(pattern: &str) -> String {
    pattern.replace('*', "switchboard").replace('?', "x")
}

/// Returns the block for a jump host, at which nothing of `connect` is used.
fn of_jump_host(jump: &str, flags: &ConfigFlags, client: &ClientFlags) -> anyhow::Result<Block> {
    if let Some(unused) = client.to_words(|flag| client.is_typed(flag))?.first() {
        let message = format!("{unused} is for `switchboard connect`, which --jump does without");
        return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message).into());
    }
    Ok(Block {
        names: flags.name.clone(),
        aliases: flags.alias.clone(),
        route: Route::Jump(jump.to_owned()),
        is_resumable: false,
        known_hosts: Vec::new(),
        is_strict: flags.strict,
        user: flags.user.clone(),
        control_master: flags.control_master,
        system: System::OWN,
    })
}

/// Returns the block that the arguments describe. Where no proxy is named, the client's file has to have one for the names.
fn block(flags: &ConfigFlags, client: &ClientFlags) -> anyhow::Result<Block> {
    let proxy = client.settings.proxy.as_ref();
    if proxy.is_some_and(ProxyUrl::has_credentials) {
        return Err(clap::Error::raw(ErrorKind::ArgumentConflict, PASSWORD).into());
    }
    // A contradiction of the arguments is reported now, and not at the first login.
    let (mut is_resumable, mut last) = (true, None);
    let names = flags.name.iter().filter(|name| !name.starts_with('!'));
    let hosts = names.clone().chain(flags.alias.iter().map(|(alias, _)| alias));
    let examples = hosts.flat_map(|name| [example(name), name.replace('*', "other").replace('?', "y")]);
    let mut hosts: Vec<_> = examples.collect();
    hosts.dedup();
    for name in names {
        // Each name needs a proxy: of a flag, a variable, or an entry of the file.
        let options = client.options(format!("{}:22", example(name)))?;
        is_resumable &= options.session.is_some();
        last = Some(options);
    }
    let paths = find_paths(&flags.write).ok();
    let files = last
        .map(|options| known_hosts(paths.as_ref(), &hosts, &options))
        .transpose()?;
    let program = find_program().context("cannot tell the path of this program")?;
    let program = program.to_str().context("the path of this program is not UTF-8")?;
    let mut words = vec![program.to_owned(), "connect".to_owned()];
    words.extend(client.to_words(|_| true)?);
    Ok(Block {
        names: flags.name.clone(),
        aliases: flags.alias.clone(),
        route: Route::Command(words),
        is_resumable,
        known_hosts: files.unwrap_or_default(),
        is_strict: flags.strict,
        user: flags.user.clone(),
        control_master: flags.control_master,
        system: System::OWN,
    })
}

/// Returns the files in which ssh is to look host keys up: those that it has for the hosts, and that of published keys.
/// Empty if published keys are not written, or those of the hosts cannot be known.
pub(super) fn known_hosts(
    paths: Option<&ConfigPaths>,
    hosts: &[String],
    options: &client::Options,
) -> anyhow::Result<Vec<String>> {
    let Some(HostKeyOutput::File(known)) = &options.host_keys else {
        return Ok(Vec::new());
    };
    let file = known.file.to_str().context("the path of --known-hosts is not UTF-8")?;
    // ssh expands `~` by the home of passwd(5), and our file is in that of HOME.
    let is_default = KnownHosts::default_file().as_ref() == Some(&known.file);
    let published = match is_default && ConfigPaths::of_user().is_some_and(|own| own.is_default) {
        true => "~/.ssh/switchboard_known_hosts",
        false => file,
    };
    match paths.map(|paths| paths.known_hosts(hosts, file)).transpose() {
        Ok(own) => {
            let mut files = own
                .flatten()
                .unwrap_or_else(|| DEFAULT_KNOWN_HOSTS.map(str::to_owned).into());
            files.push(published.to_owned());
            Ok(files)
        }
        Err(doubt) => {
            to_stderr(format_args!(
                "switchboard: {doubt}, so the block leaves it as it is: add the published keys to it by hand, as in \
                 `UserKnownHostsFile YOURS \"{published}\"`"
            ));
            Ok(Vec::new())
        }
    }
}

/// Returns the place that --write names, or the file that ssh reads.
pub(super) fn find_paths(write: &Option<Option<PathBuf>>) -> anyhow::Result<ConfigPaths> {
    Ok(match write.as_ref().and_then(Option::as_ref) {
        Some(config) => ConfigPaths {
            config: std::path::absolute(config).context("cannot tell the working folder")?,
            is_default: false,
        },
        None => ConfigPaths::of_user().context("there is no home folder")?,
    })
}

/// Names the files that have been changed.
pub(super) fn report(changed: &[PathBuf]) {
    for path in changed {
        to_stderr(format_args!("switchboard: changed {}", path.display()));
    }
    if changed.is_empty() {
        to_stderr("switchboard: nothing to change");
    }
}

/// Returns a name with its port, which is 22 unless it has one.
pub(super) fn with_port(name: &str) -> String {
    // An IPv6 address has colons, too.
    let port = name.rsplit_once(':');
    let port = port.filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
    format!("{name}{}", if port.is_some() { "" } else { ":22" })
}

/// Returns the path by which this program was started, symbolic links included: those of a package manager point to the next
/// version after an upgrade.
fn find_program() -> std::io::Result<PathBuf> {
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

/// The files that ssh reads by default (ssh_config(5)).
const DEFAULT_KNOWN_HOSTS: [&str; 2] = ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"];
const PASSWORD: &str = "the proxy's URL has a password, which a ProxyCommand would show in the list of processes: put the URL \
                        into the configuration file of the client, or take a token";
/// For `--help`.
pub(crate) const CONFIG_EXAMPLE: &str = "\
From a URL to a login:
  switchboard config --proxy https://ssh.example.com --write
  ssh devbox.team-a.svc.cluster.local

And if it does not work:
  switchboard config --proxy https://ssh.example.com --check devbox.team-a.svc.cluster.local

Exit status: 0 printed, installed or reached, 1 not, or ssh does not use the block, 2 usage";
