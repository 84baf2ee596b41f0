//! The clients of the table: what a user starts, and all that is then on the terminal.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use super::jsch;
use super::refusals::Asked;
use crate::openssh::clients;
use crate::openssh::process::{program, quiet, run};

/// A client of the table.
pub(super) struct Program {
    pub(super) name: &'static str,
    login: Login,
}

/// How a user logs in.
enum Login {
    /// By ssh with this ProxyCommand.
    Ssh(&'static clients::Client),
    /// By a session of PuTTY.
    Plink,
    /// By Java.
    Jsch,
}

pub(super) const CLIENTS: [Program; 9] = [
    by_ssh("`connect`", &clients::SWITCHBOARD),
    by_ssh("proxytunnel", &clients::PROXYTUNNEL),
    by_ssh("nc", &clients::NC),
    by_ssh("ncat", &clients::NCAT),
    by_ssh("corkscrew", &clients::CORKSCREW),
    by_ssh("connect-proxy", &clients::CONNECT_PROXY),
    by_ssh("socat", &clients::SOCAT),
    Program {
        name: "plink",
        login: Login::Plink,
    },
    Program {
        name: "JSch",
        login: Login::Jsch,
    },
];

const fn by_ssh(name: &'static str, client: &'static clients::Client) -> Program {
    Program {
        name,
        login: Login::Ssh(client),
    }
}

impl Program {
    /// All that is on the terminal at the end of a login.
    pub(super) fn terminal(&self, asked: &Asked) -> String {
        let directory = TempDir::new().unwrap();
        match self.login {
            Login::Ssh(client) => ssh(client, asked, directory.path()),
            Login::Plink => plink(asked, directory.path()),
            Login::Jsch => jsch::terminal(asked, directory.path()),
        }
    }
}

/// With the settings of a user, but for the machine's own keys and hosts.
fn ssh(client: &clients::Client, asked: &Asked, directory: &Path) -> String {
    let mut command = quiet(program("ssh", "openssh-client"));
    command.args(["-F", "/dev/null"]);
    for setting in [
        &format!("ProxyCommand={}", client.command(asked.proxy)),
        &format!("ConnectTimeout={}", asked.timeout),
        "BatchMode=yes",
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
        "GlobalKnownHostsFile=/dev/null",
        "IdentityAgent=none",
        "IdentityFile=/dev/null",
    ] {
        command.args(["-o", setting]);
    }
    command.args(["-p", &asked.port.to_string(), &format!("user@{}", asked.host), "true"]);
    run(&mut command, &[], directory, PATIENCE).stderr
}

fn plink(asked: &Asked, directory: &Path) -> String {
    let sessions = directory.join(".putty/sessions");
    fs::create_dir_all(&sessions).unwrap();
    let session = format!(
        "HostName={}\nPortNumber={}\nProtocol=ssh\nUserName=user\nProxyMethod=3\nProxyHost={}\nProxyPort={}\nProxyDNS=2\n\
         ProxyLocalhost=1\n",
        asked.host,
        asked.port,
        asked.proxy.ip(),
        asked.proxy.port()
    );
    fs::write(sessions.join("proxied"), session).unwrap();
    let mut plink = quiet(program("plink", "putty-tools"));
    plink
        .env("HOME", directory)
        .args(["-batch", "-load", "proxied", "true"]);
    // It has no timeout of its own.
    let mut limited = quiet(program("timeout", "coreutils"));
    limited
        .arg(asked.timeout)
        .arg(plink.get_program())
        .args(plink.get_args());
    limited.env("HOME", directory);
    let finished = run(&mut limited, &[], directory, PATIENCE);
    finished.stdout + &finished.stderr
}

/// Longer than any wait of a login.
pub(super) const PATIENCE: Duration = Duration::from_secs(240);
