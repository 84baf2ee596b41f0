//! A user's side: ssh, scp and sftp with the options that keep them away from the machine's own keys and settings.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use tempfile::TempDir;

use super::clients::Client;
use super::process::{Finished, program, quiet, run};
use super::proxy::Proxy;
use super::sshd::Sshd;
use crate::anchor::Anchor;

/// A proxy, an sshd behind it, and a user who reaches it through one client. Everything goes when this is dropped: the
/// proxy first, which ends the sessions, then sshd, then the files.
pub(crate) struct Login {
    pub(crate) proxy: Proxy,
    /// Behind a lock only because a login is shared by threads.
    anchor: Option<Mutex<Anchor>>,
    pub(crate) sshd: Sshd,
    options: Vec<OsString>,
    directory: TempDir,
}

impl Login {
    /// Starts all of it.
    pub(crate) fn through(client: &Client) -> Self {
        Self::start(client, |_| None)
    }

    /// The same with an anchor in front of sshd.
    pub(crate) fn through_an_anchor(client: &Client) -> Self {
        Self::start(client, |sshd| Some(Anchor::start(sshd.address, &[])))
    }

    fn start(client: &Client, anchor: impl FnOnce(&Sshd) -> Option<Anchor>) -> Self {
        let directory = tempfile::Builder::new().prefix("switchboard-").tempdir().unwrap();
        let sshd = Sshd::start(directory.path());
        let anchor = anchor(&sshd);
        let target = anchor.as_ref().map_or(sshd.address, Anchor::address);
        let proxy = Proxy::start(directory.path(), target);
        let options = options(directory.path(), &sshd.user, &client.command(proxy.address));
        Self {
            proxy,
            anchor: anchor.map(Mutex::new),
            sshd,
            options,
            directory,
        }
    }

    /// Returns whether the client has a session at an anchor.
    pub(crate) fn has_session(&self, client: &Client) -> bool {
        self.anchor.is_some() && client.program == "switchboard"
    }

    /// `ssh`, `scp` or `sftp`, ready for its own arguments.
    pub(crate) fn command(&self, name: &str) -> Command {
        self.command_with(name, &self.options)
    }

    /// The same by another way through the proxy.
    pub(crate) fn command_by(&self, proxy_command: &str, name: &str) -> Command {
        self.command_with(name, &options(self.directory.path(), &self.sshd.user, proxy_command))
    }

    fn command_with(&self, name: &str, options: &[OsString]) -> Command {
        let mut command = quiet(program(name, "openssh-client"));
        command.args(options).current_dir(self.directory.path());
        command
    }

    /// Runs it to its end, which must be 0.
    pub(crate) fn run(&self, command: &mut Command, input: &[u8]) -> Finished {
        let finished = self.attempt(command, input);
        let logs = format!("--- switchboard\n{}\n--- sshd\n{}", self.proxy.log(), self.sshd.log());
        assert!(finished.status.success(), "{finished}\n{logs}");
        finished
    }

    /// Runs it to its end, whatever that is.
    pub(crate) fn attempt(&self, command: &mut Command, input: &[u8]) -> Finished {
        run(command, input, self.directory.path(), PATIENCE)
    }

    /// A file in the temporary directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes a file there.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        path
    }
}

/// The name as a user types it. No resolver knows it: only the proxy does.
pub(crate) const HOST: &str = "svc-a.ns.svc.cluster.local";

/// The same sshd, for a user with alice's certificate only.
pub(crate) const GUARDED: &str = "guarded.ns.svc.cluster.local";

/// Nothing listens there.
pub(crate) const CLOSED: &str = "closed.ns.svc.cluster.local";

/// The port of the names.
pub(crate) const PORT: u16 = 80;

/// `size` bytes that repeat nowhere near, so that a lost, doubled or moved block shows.
pub(crate) fn noise(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        // xorshift64 (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

/// The arguments of ssh for that user and ProxyCommand, with the keys in `directory`.
pub(crate) fn options(directory: &Path, user: &str, proxy_command: &str) -> Vec<OsString> {
    // A strict and exact entry: a session that reached any other server would not begin.
    let host_key = fs::read_to_string(directory.join("host_key.pub")).unwrap();
    let known_hosts = directory.join("known_hosts");
    fs::write(&known_hosts, format!("[{HOST}]:{PORT},[{GUARDED}]:{PORT} {host_key}")).unwrap();
    let settings = [
        format!("User={user}"),
        format!("Port={PORT}"),
        format!("IdentityFile={}", directory.join("client_key").display()),
        format!("UserKnownHostsFile={}", known_hosts.display()),
        format!("ProxyCommand={proxy_command}"),
        "GlobalKnownHostsFile=/dev/null".to_owned(),
        "IdentitiesOnly=yes".to_owned(),
        "IdentityAgent=none".to_owned(),
        "StrictHostKeyChecking=yes".to_owned(),
        "BatchMode=yes".to_owned(),
        // VS Code passes this.
        "ConnectTimeout=15".to_owned(),
    ];
    let mut options = vec!["-F".into(), "/dev/null".into()];
    for setting in settings {
        options.extend(["-o".into(), setting.into()]);
    }
    options
}

/// Long enough for 64 MiB on a busy machine, short enough to show a hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
