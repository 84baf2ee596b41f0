//! The program `anchor` as a process: plain clients, sessions over connections that are cut, and peers that misbehave.

pub(crate) mod client;
mod plain;
mod scarcity;
mod sessions;
mod slowness;
mod strangers;

use std::net::SocketAddr;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::eventually;
use crate::harness::ports::Ports as _;
use crate::harness::process::{Server, anchor, with_descriptors};
use crate::harness::seccomp::Call;

/// A running anchor.
#[derive(Debug)]
pub(crate) struct Anchor(pub(crate) Server);

impl Anchor {
    /// In front of that target, with these arguments as well.
    pub(crate) fn start(to: SocketAddr, arguments: &[&str]) -> Self {
        Self(Server::start(anchor(&Self::arguments(to, arguments).each())))
    }

    /// In front of the target at that port of a name.
    fn start_by_name(name: &str, port: u16) -> Self {
        let (any, to) = ("127.0.0.1:0", format!("{name}:{port}"));
        let arguments = ["anchor", "--listen", any, "--admin", any, "--to", &to];
        Self(Server::start(anchor(&arguments)))
    }

    /// The same with so many descriptors.
    fn start_with_descriptors(max: u32, to: SocketAddr, arguments: &[&str]) -> Self {
        let command = anchor(&Self::arguments(to, arguments).each());
        Self(Server::start(with_descriptors(max, &command)))
    }

    /// The same, and the kernel refuses it that call.
    fn start_refusing(call: Call, to: SocketAddr) -> Self {
        let command = anchor(&Self::arguments(to, &[]).each());
        Self(Server::start_refusing(call, libc::EPERM, command))
    }

    fn arguments(to: SocketAddr, more: &[&str]) -> Arguments {
        let any = SocketAddr::new(to.ip(), 0).to_string();
        let ports = ["anchor", "--listen", &any, "--admin", &any, "--to", &to.to_string()];
        Arguments([&ports, more].concat().iter().map(|&text| text.to_owned()).collect())
    }

    /// Its address for clients.
    pub(crate) fn address(&self) -> SocketAddr {
        self.0.public()
    }

    /// Waits until a series, without its prefix, has that value.
    #[track_caller]
    fn counts(&self, series: &str, value: f64) {
        eventually(series, || {
            let page = self.0.scrape();
            (page.value(&format!("anchor_{series}")) == value).then_some(())
        });
    }

    /// The next access line.
    #[track_caller]
    fn access_line(&mut self) -> Value {
        serde_json::from_str(&self.0.process.stdout.next().unwrap()).unwrap()
    }

    /// Stops it, and expects a clean exit.
    #[track_caller]
    fn stop(&mut self) {
        self.0.process.signal(Signal::TERM);
        assert_eq!(self.0.process.exit_status(), 0);
    }
}

struct Arguments(Vec<String>);

impl Arguments {
    fn each(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}
