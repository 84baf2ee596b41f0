//! The binary's `anchor` on a port of its own.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::process::anchors;
use crate::harness::target::Closed;
use crate::openssh::lines::Lines;
use crate::openssh::process::{Process, quiet};

/// A running `switchboard anchor`.
pub(crate) struct Anchor {
    pub(crate) address: SocketAddr,
    log: Lines,
    process: Process,
    /// Keeps the port when the process is killed.
    _port: Option<Closed>,
}

impl Anchor {
    /// Starts one beside that SSH server.
    pub(crate) fn start(to: SocketAddr) -> Self {
        let port = Closed::bind();
        let anchor = Self::start_at(port.address(), to);
        Self {
            _port: Some(port),
            ..anchor
        }
    }

    /// The same at a known address.
    pub(crate) fn start_at(listen: SocketAddr, to: SocketAddr) -> Self {
        let mut command = quiet(anchors());
        command
            .args(["anchor", "--listen", &listen.to_string(), "--to", &to.to_string()])
            .stderr(Stdio::piped());
        let mut process = Process::start_server(&mut command);
        let log = Lines::of(process.child().stderr.take().unwrap());
        let address = log.wait(SOON, |lines| {
            let line = lines.iter().find_map(|line| line.split_once("public port "))?;
            line.1.split_whitespace().next()?.parse().ok()
        });
        Self {
            address: address.unwrap_or_else(|said| panic!("the anchor does not listen: {said}")),
            log,
            process,
            _port: None,
        }
    }

    /// Ends it without a word.
    pub(crate) fn kill(&mut self) {
        self.process.signal(Signal::KILL);
        self.process.wait(SOON);
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Returns its log, for the message of a failing test.
    pub(crate) fn log(&self) -> String {
        self.log.all().join("\n")
    }
}

const SOON: Duration = Duration::from_secs(120);
