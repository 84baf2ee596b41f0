//! `forward`: ports of this host for programs without a ProxyCommand.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::error::ErrorKind;
use clap::{ArgMatches, Args};
use switchboard::base::authority::Authority;
use switchboard::client::forward::{self, Port};
use switchboard::client::proxy_settings::ProxySettings;
use switchboard::client::ssh_config::{Block, Route, System};

use super::client_flags::ClientFlags;
use super::config::{find_paths, is_used, known_hosts, report, with_port};
use super::output::{print, to_stderr};

/// The arguments of `forward`.
#[derive(Args)]
pub(crate) struct Forward {
    #[command(flatten)]
    settings: ProxySettings,
    /// Listen at this address, and at a free port for 0, for each name that has no LOCALPORT
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Allow --listen an address that other hosts reach: each of them can reach the SSH servers with your credentials
    #[arg(long)]
    listen_anywhere: bool,
    /// Install a block `Host NAME-local` for each name (`NAME-PORT-local` beside port 22), as `config --write` does [default: ~/.ssh/config]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    write: Option<Option<PathBuf>>,
    /// Remove the blocks of --write, and exit
    #[arg(long)]
    remove: bool,
    /// The names to reach through the proxy; the port there is 22, and the one here that of --listen, unless they are given
    #[arg(value_name = "NAME[:PORT][=LOCALPORT]", required = true)]
    names: Vec<String>,
}

/// A target, and the port of this host that leads to it.
struct End {
    /// The target as it was typed.
    name: String,
    target: Authority,
    /// `None`: that of --listen.
    port: Option<u16>,
}

/// Serves the ports, or removes their blocks.
pub(crate) fn forward(flags: Forward, given: ArgMatches) -> anyhow::Result<ExitCode> {
    let ends = (1..).zip(&flags.names).map(|(number, name)| {
        // The text may be a part of a URL with a password.
        let message = |fault| format!("argument {number} is not NAME[:PORT][=LOCALPORT]: {fault}");
        end(name).map_err(|fault| clap::Error::raw(ErrorKind::ValueValidation, message(fault)))
    });
    let ends: Vec<_> = ends.collect::<Result<_, _>>()?;
    if flags.remove {
        let paths = find_paths(&flags.write)?;
        for end in &ends {
            report(&paths.remove(&[end.alias()])?);
        }
        return Ok(ExitCode::SUCCESS);
    }
    refuse_listen(&flags, &ends)?;
    serve(flags, &ends, given)
}

/// Opens the ports, installs their blocks, and serves them.
fn serve(flags: Forward, ends: &[End], given: ArgMatches) -> anyhow::Result<ExitCode> {
    let client = ClientFlags {
        settings: flags.settings,
        given,
    };
    let (mut ports, mut blocks, mut lines) = (Vec::new(), Vec::new(), String::new());
    for end in ends {
        let options = client.options(end.target.to_string())?;
        let is_resumable = options.session.is_some();
        let known_hosts = match flags.write {
            Some(_) => known_hosts(Some(&find_paths(&flags.write)?), &[end.alias()], &options)?,
            None => Vec::new(),
        };
        let mut address = flags.listen;
        address.set_port(end.port.unwrap_or(address.port()));
        let port = Port::bind(address, options)?;
        let address = port.address()?;
        lines += &format!("listening on {address} for {}\n", end.name);
        if !address.ip().is_loopback() {
            to_stderr(format_args!(
                "switchboard: every host that reaches {address} reaches {} with your credentials",
                end.name
            ));
        }
        blocks.push(end.block(address, is_resumable, known_hosts));
        ports.push(port);
    }
    // Once all ports are open: no block leads to another program's.
    for block in blocks.iter().filter(|_| flags.write.is_some()) {
        let paths = find_paths(&flags.write)?;
        report(&paths.install(&block.names, &block.text()?, false)?);
        is_used(block, &paths)?;
    }
    print(lines)?;
    forward::command(ports)
}

/// Refuses addresses that other hosts reach, one port for several names, and one block for several ports.
fn refuse_listen(flags: &Forward, ends: &[End]) -> Result<(), clap::Error> {
    let address = flags.listen;
    if !address.ip().is_loopback() && !flags.listen_anywhere {
        let message = format!("--listen {address}: other hosts reach that address, which --listen-anywhere allows");
        return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
    }
    if address.port() != 0 && ends.iter().filter(|end| end.port.is_none()).count() > 1 {
        let message = format!("--listen {address}: a port leads to one name: write NAME=LOCALPORT for the others");
        return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
    }
    let (mut names, mut blocks) = (HashMap::new(), HashSet::new());
    for end in ends {
        if flags.write.is_some() && !blocks.insert(end.alias()) {
            let message = format!("{} is given twice, and --write has one block for each name", end.name);
            return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
        }
        let port = end.port.unwrap_or(address.port());
        if let Some(other) = names.insert(port, &end.name).filter(|_| port != 0) {
            let message = format!(
                "port {port} is given to {other} and to {}: a port leads to one name",
                end.name
            );
            return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
        }
    }
    Ok(())
}

fn end(text: &str) -> anyhow::Result<End> {
    let (name, port) = match text.split_once('=') {
        Some((name, port)) => (
            name,
            Some(port.parse().map_err(|_| anyhow!("LOCALPORT must be 0 to 65535"))?),
        ),
        None => (text, None),
    };
    Ok(End {
        name: name.to_owned(),
        target: with_port(name).parse()?,
        port,
    })
}

impl End {
    /// Returns the name of its block.
    fn alias(&self) -> String {
        match self.target.port() {
            22 => format!("{}-local", self.target.host()),
            port => format!("{}-{port}-local", self.target.host()),
        }
    }

    /// Returns its block, for the address at which it listens.
    fn block(&self, address: SocketAddr, is_resumable: bool, known_hosts: Vec<String>) -> Block {
        let (host, port) = (self.target.host(), self.target.port());
        Block {
            names: vec![self.alias()],
            aliases: Vec::new(),
            route: Route::Port {
                address,
                // As known_hosts has a host (sshd(8)).
                host_key: if port == 22 {
                    host.to_owned()
                } else {
                    format!("[{host}]:{port}")
                },
            },
            is_resumable,
            known_hosts,
            is_strict: false,
            user: None,
            control_master: false,
            system: System::OWN,
        }
    }
}

/// For `--help`.
pub(crate) const FORWARD_EXAMPLE: &str = "\
A port for one name, and its block in ~/.ssh/config:
  switchboard forward --proxy https://ssh.example.com devbox.team-a.svc.cluster.local=40122 --write
  ssh devbox.team-a.svc.cluster.local-local

Every user of this host can connect to the port; the SSH server still asks for a login.

Exit status: 0 ended by a signal, 1 a port is taken, 2 usage";
