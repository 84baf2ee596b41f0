//! The switchboard binary on ports of its own, with everything it says kept for the test.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use super::lines::Lines;
use super::process::{Process, quiet};

/// A running `switchboard serve`.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    stdout: Lines,
    stderr: Lines,
    process: Process,
}

impl Proxy {
    /// Starts it with one name on the allowlist, one port for plain and TLS clients, and a drain that does not wait for
    /// load balancers.
    pub(crate) fn start(directory: &Path, name: &str, target: SocketAddr) -> Self {
        let configuration = directory.join("switchboard.yaml");
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        fs::write(directory.join("tls.crt"), made.cert.pem()).unwrap();
        fs::write(directory.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
        let [certificate, key] = ["tls.crt", "tls.key"].map(|name| directory.join(name).display().to_string());
        let text = format!(
            "listen: {{address: \"127.0.0.1:0\", tls: optional}}\n\
             tls: {{certificates: [{{cert: \"{certificate}\", key: \"{key}\"}}]}}\n\
             admin: \"127.0.0.1:0\"\n\
             allowlist:\n  static:\n    - {{name: \"{name}\", addresses: [\"{target}\"]}}\n\
             drain: {{delay: 0s, timeout: 30s, spread: 0s}}\n"
        );
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
        let address = stderr
            .wait(SOON, |lines| {
                lines.iter().find_map(|line| address_after(line, "public port "))
            })
            .unwrap_or_else(|said| panic!("switchboard does not listen: {said}"));
        Self {
            address,
            stdout,
            stderr,
            process,
        }
    }

    /// Waits until `count` tunnels and refusals are in the access log, and gives their lines.
    pub(crate) fn access_lines(&self, count: usize) -> Vec<String> {
        self.stdout
            .wait(SOON, |lines| (lines.len() >= count).then(|| lines.to_vec()))
            .unwrap_or_else(|said| panic!("{count} access lines expected: {said}\n{}", self.log()))
    }

    /// Asks it to stop, as Kubernetes does.
    pub(crate) fn terminate(&self) {
        self.process.terminate();
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

    /// What it has said, for the message of a failing test.
    pub(crate) fn log(&self) -> String {
        format!("{}\n{}", self.stderr.all().join("\n"), self.stdout.all().join("\n"))
    }
}

fn address_after(line: &str, words: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once(words)?;
    rest.split_whitespace().next()?.parse().ok()
}

const SOON: Duration = Duration::from_secs(20);
