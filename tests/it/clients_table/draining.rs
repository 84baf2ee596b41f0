//! A proxy that shuts down while it dials for a request.

use std::net::SocketAddr;
use std::thread;

use rustix::process::Signal;

use super::programs::Program;
use super::refusals::Asked;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings};
use crate::harness::target::Blackhole;

/// Returns the terminal of a client whose proxy drains, with that value of `refusals`.
pub(super) fn terminal(client: &Program, mode: &str, asked: impl FnOnce(SocketAddr) -> Asked) -> String {
    let target = Blackhole::open();
    let settings = Settings::new(&format!(
        "listen: {{address: \"127.0.0.1:0\", refusals: {mode}}}\nssh_only: true\ntimeouts: {{dial: 1h, connect: 1h}}\n\
         drain: {{delay: 0s, timeout: 100ms, spread: 0s}}\nallowlist: {{static: [{{name: \"blackhole.team-a:22\", \
         addresses: [\"{}\"]}}]}}\n",
        target.address()
    ));
    let server = Server::with(&settings);
    let asked = asked(server.public());
    let drains = thread::spawn(move || {
        target.expect_dials(1);
        server.process.signal(Signal::TERM);
        (server, target)
    });
    let terminal = client.terminal(&asked);
    drop(drains.join().unwrap());
    terminal
}
