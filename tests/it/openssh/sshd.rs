//! A throwaway sshd: own keys, own configuration, own port, and the user who runs the test as its only account.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use super::lines::Lines;
use super::process::{Process, program, quiet, run};
use crate::harness::target::Closed;

/// A running sshd. Its keys are in the directory that it was given: `host_key`, `client_key` and their `.pub`.
pub(crate) struct Sshd {
    pub(crate) address: SocketAddr,
    pub(crate) user: String,
    log: Lines,
    _process: Process,
    _port: Closed,
}

impl Sshd {
    /// Makes the keys and starts it.
    pub(crate) fn start(directory: &Path) -> Self {
        Self::start_with_keys(directory, &["-t", "ed25519"])
    }

    /// The same with keys that ssh-keygen makes by these arguments.
    pub(crate) fn start_with_keys(directory: &Path, keys: &[&str]) -> Self {
        let binary = program("sshd", "openssh-server");
        make_key(directory, "host_key", keys);
        make_key(directory, "client_key", keys);
        if rustix::process::geteuid().is_root() {
            // Where sshd locks its unprivileged half up. The service script makes it at boot; a container has no boot.
            fs::create_dir_all("/run/sshd").unwrap();
        }
        let user = run(quiet("id").arg("-un"), &[], directory, SOON).succeeded().stdout;
        let port = Closed::bind();
        let address = port.address();
        let started = try_start(&binary, directory, address);
        let (process, log) = started.unwrap_or_else(|said| panic!("sshd does not start: {said}"));
        Self {
            address,
            user: user.trim().to_owned(),
            log,
            _process: process,
            _port: port,
        }
    }

    /// Waits until it has told of so many connections, and expects that they are all. It tells of one when it accepts it.
    #[track_caller]
    pub(crate) fn expect_connections(&self, count: usize) {
        let told = |lines: &[String]| {
            let accepted = lines.iter().filter(|line| line.starts_with("Connection from "));
            Some(accepted.count()).filter(|accepted| *accepted >= count)
        };
        let accepted = self.log.wait(SOON, told).unwrap_or_else(|said| panic!("{said}"));
        assert_eq!(accepted, count, "{}", self.log());
    }

    /// Its log, for the message of a failing test.
    pub(crate) fn log(&self) -> String {
        self.log.all().join("\n")
    }
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

fn make_key(directory: &Path, name: &str, arguments: &[&str]) {
    let file: PathBuf = directory.join(name);
    let mut command = quiet(program("ssh-keygen", "openssh-client"));
    command
        .arg("-q")
        .args(arguments)
        .args(["-N", "", "-C", name, "-f"])
        .arg(file);
    run(&mut command, &[], directory, SOON).succeeded();
}

const SOON: Duration = Duration::from_secs(120);
