//! The clients of the table: what a user starts, and all that is then on the terminal.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::jsch;
use super::refusals::{Asked, PASSWORD, USER};
use crate::openssh::clients;
use crate::openssh::process::{Process, program, quiet, run};

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
        &format!("ProxyCommand={}", proxy_command(client, asked, directory)),
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
    if asked.is_known && client.program == "connect-proxy" {
        command.env("HTTP_PROXY_PASSWORD", PASSWORD);
    }
    if asked.is_known && client.program == "nc" {
        return typed(&command);
    }
    run(&mut command, &[], directory, PATIENCE).stderr
}

/// The client's line, with the user's name and password as each client takes them.
fn proxy_command(client: &clients::Client, asked: &Asked, directory: &Path) -> String {
    let line = client.command(asked.proxy);
    if !asked.is_known {
        return line;
    }
    match client.program {
        "switchboard" => line.replace("http://", &format!("http://{USER}:{PASSWORD}@")),
        "proxytunnel" => format!("{line} -P {USER}:{PASSWORD}"),
        // It asks for the password at the terminal, and has no other way.
        "nc" => line.replace(" -X connect", &format!(" -X connect -P {USER}")),
        "ncat" => line.replace(
            " --proxy-type http",
            &format!(" --proxy-type http --proxy-auth {USER}:{PASSWORD}"),
        ),
        "corkscrew" => {
            let file = directory.join("auth");
            fs::write(&file, format!("{USER}:{PASSWORD}\n")).unwrap();
            format!("{line} {}", file.display())
        }
        "connect-proxy" => line.replace("-H ", &format!("-H {USER}@")),
        "socat" => format!("{line},proxyauth={USER}:{PASSWORD}"),
        other => panic!("how does {other} take a password?"),
    }
}

/// Runs a command at a terminal, where it is told the password that it asks for, and gives all that is shown.
fn typed(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let line: Vec<_> = words
        .map(|word| format!("'{}'", word.to_str().unwrap().replace('\'', r"'\''")))
        .collect();
    let mut script = quiet(program("script", "bsdutils"));
    script.args(["-qec", &line.join(" "), "/dev/null"]);
    let mut script = Process::start(script.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut keys = script.child().stdin.take().unwrap();
    let mut screen = script.child().stdout.take().unwrap();
    let (mut shown, mut chunk, mut is_asked) = (Vec::new(), [0; 1024], false);
    // ssh ends it by its ConnectTimeout.
    while let Ok(read @ 1..) = screen.read(&mut chunk) {
        shown.extend(&chunk[..read]);
        if !is_asked && String::from_utf8_lossy(&shown).contains("assword") {
            is_asked = true;
            keys.write_all(format!("{PASSWORD}\n").as_bytes()).unwrap();
        }
    }
    String::from_utf8_lossy(&shown).into_owned()
}

fn plink(asked: &Asked, directory: &Path) -> String {
    let sessions = directory.join(".putty/sessions");
    fs::create_dir_all(&sessions).unwrap();
    let session = format!(
        "HostName={}\nPortNumber={}\nProtocol=ssh\nUserName=user\nProxyMethod=3\nProxyHost={}\nProxyPort={}\nProxyDNS=2\n\
         ProxyLocalhost=1\n{}",
        asked.host,
        asked.port,
        asked.proxy.ip(),
        asked.proxy.port(),
        match asked.is_known {
            true => format!("ProxyUsername={USER}\nProxyPassword={PASSWORD}\n"),
            false => String::new(),
        },
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
