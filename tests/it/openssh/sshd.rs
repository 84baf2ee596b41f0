//! A throwaway sshd: own keys, own configuration, own port, and the user who runs the test as its only account.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use super::lines::Lines;
use super::process::{Process, program, quiet, run};

/// A running sshd. Its keys are in the directory that it was given: `host_key`, `client_key` and their `.pub`.
pub(crate) struct Sshd {
    pub(crate) address: SocketAddr,
    pub(crate) user: String,
    log: Lines,
    _process: Process,
}

impl Sshd {
    /// Makes the keys and starts it. Another process may take the port that was found free: then it tries the next.
    pub(crate) fn start(directory: &Path) -> Self {
        let binary = program("sshd", "openssh-server");
        make_key(directory, "host_key");
        make_key(directory, "client_key");
        if rustix::process::geteuid().is_root() {
            // Where sshd locks its unprivileged half up. The service script makes it at boot; a container has no boot.
            fs::create_dir_all("/run/sshd").unwrap();
        }
        let user = run(quiet("id").arg("-un"), &[], directory, SOON).succeeded().stdout;
        for _ in 0..TRIES {
            let address = free_address();
            match try_start(&binary, directory, address) {
                Ok((process, log)) => {
                    return Self {
                        address,
                        user: user.trim().to_owned(),
                        log,
                        _process: process,
                    };
                }
                Err(said) => assert!(said.contains("Address already in use"), "sshd does not start: {said}"),
            }
        }
        panic!("no port for sshd after {TRIES} tries");
    }

    /// The number of connections that it has accepted.
    pub(crate) fn connections(&self) -> usize {
        self.log
            .all()
            .iter()
            .filter(|line| line.starts_with("Connection from "))
            .count()
    }

    /// Its log, for the message of a failing test.
    pub(crate) fn log(&self) -> String {
        self.log.all().join("\n")
    }
}

/// An address of this host whose port was free a moment ago.
pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn try_start(binary: &Path, directory: &Path, address: SocketAddr) -> Result<(Process, Lines), String> {
    let configuration = directory.join("sshd_config");
    let text = include_str!("sshd_config")
        .replace("@PORT@", &address.port().to_string())
        .replace("@DIRECTORY@", directory.to_str().unwrap());
    fs::write(&configuration, text).unwrap();
    // -D: stays our child; -e: logs to stderr, which also says when it listens.
    let mut command = quiet(binary);
    command
        .arg("-D")
        .arg("-e")
        .arg("-f")
        .arg(&configuration)
        .stderr(Stdio::piped());
    let mut process = Process::start_server(&mut command);
    let log = Lines::of(process.child().stderr.take().unwrap());
    let listening = format!("Server listening on {} port {}", address.ip(), address.port());
    log.wait(SOON, |lines| {
        lines.iter().any(|line| line.contains(&listening)).then_some(())
    })?;
    Ok((process, log))
}

fn make_key(directory: &Path, name: &str) {
    let file: PathBuf = directory.join(name);
    let mut command = quiet(program("ssh-keygen", "openssh-client"));
    command
        .args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"])
        .arg(file);
    run(&mut command, &[], directory, SOON).succeeded();
}

const TRIES: usize = 8;
const SOON: Duration = Duration::from_secs(120);
