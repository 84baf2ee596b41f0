//! The switchboard binary on ports of its own, with everything it says kept for the test.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use super::lines::Lines;
use super::login::{CLOSED, GUARDED, HOST, PORT};
use super::process::{Process, quiet, until};
use crate::harness::authority::Authority;
use crate::harness::target::Closed;

/// A running `switchboard serve`.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    stdout: Lines,
    stderr: Lines,
    process: Process,
    configuration: PathBuf,
    _authority: Authority,
    _closed_port: Closed,
}

impl Proxy {
    /// Starts it with one port for all clients and a drain that does not wait for load balancers. What users need of
    /// its authority is in `directory`: `ca.crt`, and `alice.crt` with `alice.key`.
    pub(crate) fn start(directory: &Path, target: SocketAddr) -> Self {
        Self::start_at(
            "address: \"127.0.0.1:0\", websocket: {path: /ssh}",
            directory,
            target,
            "",
        )
    }

    /// The same at that port, which has these keys of `listen`, and with more in the file behind the targets.
    pub(crate) fn start_at(listen: &str, directory: &Path, target: SocketAddr, more: &str) -> Self {
        let authority = Authority::new();
        let alice = authority.client("alice", &["alice@example.com"], 7);
        for (file, name) in [
            (authority.ca(), "ca.crt"),
            (alice.cert, "alice.crt"),
            (alice.key, "alice.key"),
        ] {
            fs::copy(file, directory.join(name)).unwrap();
        }
        let [by_address, by_name] = [("address", &[][..]), ("name", &["ssh.example.com"])]
            .map(|(file, names)| authority.server(file, names).setting());
        let (ca, closed_port) = (authority.ca(), Closed::bind());
        let closed = closed_port.address();
        let text = format!(
            "listen: {{{listen}, tls: optional}}\n\
             tls: {{certificates: [{by_address}, {by_name}], client_auth: optional, client_ca: \"{}\"}}\n\
             admin: \"127.0.0.1:0\"\n\
             allowlist:\n  static:\n    \
             - {{name: \"{HOST}:{PORT}\", addresses: [\"{target}\"]}}\n    \
             - {{name: \"{GUARDED}:{PORT}\", addresses: [\"{target}\"], allowed_clients: [alice@example.com]}}\n    \
             - {{name: \"{CLOSED}:{PORT}\", addresses: [\"{closed}\"]}}\n{more}\
             drain: {{delay: 0s, timeout: 30s, spread: 0s}}\n",
            ca.display(),
        );
        let configuration = directory.join("switchboard.yaml");
        fs::write(&configuration, text).unwrap();
        let mut command = quiet(env!("CARGO_BIN_EXE_switchboard"));
        command
            .arg("serve")
            .arg("--config")
            .arg(&configuration)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = Process::start_server(&mut command);
        let stdout = Lines::of(process.child().stdout.take().unwrap());
        let stderr = Lines::of(process.child().stderr.take().unwrap());
        let port = |which| {
            let said = stderr.wait(SOON, |lines| lines.iter().find_map(|line| address_after(line, which)));
            said.unwrap_or_else(|said| panic!("switchboard does not listen: {said}"))
        };
        let proxy = Self {
            address: port("public port "),
            admin: port("admin port "),
            stdout,
            stderr,
            process,
            configuration,
            _authority: authority,
            _closed_port: closed_port,
        };
        // Its ports are open a moment before.
        let is_ready = || proxy.page("/readyz").starts_with("HTTP/1.1 200 ");
        until(SOON, "the proxy is ready", || is_ready().then_some(()));
        proxy
    }

    /// Adds a setting to its configuration, and has it read.
    pub(crate) fn set(&self, more: &str) {
        let mut text = fs::read_to_string(&self.configuration).unwrap();
        text += more;
        fs::write(&self.configuration, text).unwrap();
        self.reload();
    }

    /// Replaces a text of its configuration, and has it read.
    pub(crate) fn replace(&self, old: &str, new: &str) {
        let text = fs::read_to_string(&self.configuration).unwrap();
        assert!(text.contains(old), "{text} is without {old}");
        fs::write(&self.configuration, text.replace(old, new)).unwrap();
        self.reload();
    }

    /// Waits until `count` tunnels and refusals are in the access log, and gives their lines.
    pub(crate) fn access_lines(&self, count: usize) -> Vec<String> {
        self.stdout
            .wait(SOON, |lines| {
                let lines = ended(lines);
                (lines.len() >= count).then_some(lines)
            })
            .unwrap_or_else(|said| panic!("{count} access lines expected: {said}\n{}", self.log()))
    }

    /// The lines of all tunnels and refusals, once it has ended.
    pub(crate) fn all_access_lines(&self) -> Vec<String> {
        ended(&self.stdout.whole(SOON))
    }

    /// Asks it to stop, as Kubernetes does.
    pub(crate) fn terminate(&self) {
        self.process.signal(Signal::TERM);
    }

    /// Ends it without a word.
    pub(crate) fn kill(&mut self) {
        self.process.signal(Signal::KILL);
        self.process.wait(SOON);
    }

    /// Has it read its configuration again, and waits until it has.
    pub(crate) fn reload(&self) {
        let reloads = |lines: &[String]| {
            lines
                .iter()
                .filter(|line| line.contains("configuration reloaded"))
                .count()
        };
        let before = reloads(&self.stderr.all());
        self.process.signal(Signal::HUP);
        let reloaded = self.stderr.wait(SOON, |lines| (reloads(lines) > before).then_some(()));
        reloaded.unwrap_or_else(|said| panic!("it does not reload: {said}"));
    }

    /// A page of the admin port, with its head.
    pub(crate) fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.process.wait(SOON)
    }

    /// Waits for a message on stderr.
    pub(crate) fn says(&self, text: &str) {
        self.stderr
            .wait(SOON, |lines| lines.iter().any(|line| line.contains(text)).then_some(()))
            .unwrap_or_else(|said| panic!("{text:?} is not said: {said}"));
    }

    /// Its messages and access lines, for the message of a failing test.
    pub(crate) fn log(&self) -> String {
        format!("{}\n{}", self.stderr.all().join("\n"), self.stdout.all().join("\n"))
    }
}

/// The access lines but for those of the beginnings of tunnels.
fn ended(lines: &[String]) -> Vec<String> {
    let is_end = |line: &&String| !line.contains(r#""event":"open""#);
    lines.iter().filter(is_end).cloned().collect()
}

fn address_after(line: &str, words: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once(words)?;
    rest.split_whitespace().next()?.parse().ok()
}

const SOON: Duration = Duration::from_secs(120);
