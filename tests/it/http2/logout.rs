//! How clients leave: a stream that its client has no more use for is a tunnel that has ended, unless bytes are lost.

use rustix::process::Signal;

use super::raw::{DATA, END_HEADERS, END_STREAM, Frame, HEADERS, RST_STREAM, Raw, connect, frame};
use crate::harness::allow;
use crate::harness::authority::Authority;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Process, Server, Settings, switchboard_with_hangup};
use crate::harness::proxy::Proxy;
use crate::harness::target::Target;

struct Logout {
    proxy: Proxy,
    raw: Raw,
    target: Peer,
}

impl Logout {
    fn open() -> Self {
        let target = Target::listen();
        let proxy = Proxy::start(&allow(&[("box:22", target.address())]));
        let mut raw = Raw::connect(proxy.public());
        raw.send(&frame(HEADERS, END_HEADERS, 1, &connect("box:22")));
        let target = target.accept();
        assert_eq!(raw.next().kind, HEADERS);
        Self { proxy, raw, target }
    }

    fn finish(&mut self) {
        self.raw.send(&frame(DATA, END_STREAM, 1, b""));
    }

    fn reset(&mut self, code: u8) {
        self.raw.send(&frame(RST_STREAM, 0, 1, &[0, 0, 0, code]));
    }

    #[track_caller]
    fn expect_end_stream(&mut self) {
        let Frame { kind, flags, .. } = self.raw.next();
        assert_eq!((kind, flags & END_STREAM), (DATA, END_STREAM));
    }

    /// It is counted as that, and as nothing else.
    #[track_caller]
    fn was(self, reason: &str, by: &str) {
        // Its end is counted when the next tunnel of the connection, which follows it, is refused.
        self.proxy.settles(
            "tunnels_active{target_namespace=\"static\",target_service=\"box:22\"}",
            0.0,
        );
        let closed = self.proxy.scrape().counted("tunnels_closed_total");
        assert_eq!(closed, [(format!(r#"by="{by}",reason="{reason}""#), 1.0)]);
    }
}

/// nghttp2 and hyper reset a stream that they drop, when both sides have finished or before.
#[test]
fn a_stream_that_is_reset_behind_both_ends_has_ended_in_order() {
    for code in [NO_ERROR, CANCEL, INTERNAL_ERROR] {
        let mut logout = Logout::open();
        logout.finish();
        logout.target.expect_end();
        logout.target.finish();
        logout.expect_end_stream();
        logout.reset(code);
        logout.was("eof", "client");
    }
}

#[test]
fn a_client_that_cancels_behind_its_targets_end_has_ended_in_order() {
    for code in [NO_ERROR, CANCEL] {
        let mut logout = Logout::open();
        logout.target.finish();
        logout.expect_end_stream();
        logout.reset(code);
        logout.target.expect_end();
        logout.was("eof", "target");
    }
}

#[test]
fn a_client_that_cancels_behind_its_own_end_has_ended_in_order_if_its_target_does() {
    for code in [NO_ERROR, CANCEL] {
        let mut logout = Logout::open();
        logout.finish();
        logout.reset(code);
        logout.target.expect_end();
        logout.target.finish();
        logout.was("eof", "client");
    }
}

#[test]
fn a_client_that_cancels_what_its_target_still_sends_has_reset_it() {
    for code in [NO_ERROR, CANCEL] {
        let mut logout = Logout::open();
        logout.finish();
        logout.reset(code);
        logout.target.expect_end();
        logout.target.send("more");
        logout.was("reset", "client");
    }
    // Its target's end is behind bytes for which it has opened no window.
    let mut logout = Logout::open();
    logout.target.send(vec![7; 70_000]);
    logout.target.finish();
    let mut came = 0;
    while came < 65_535 {
        came += logout.raw.next().payload.len();
    }
    logout.reset(CANCEL);
    logout.was("reset", "client");
}

#[test]
fn any_other_reset_in_front_of_both_ends_is_one() {
    let mut logout = Logout::open();
    logout.target.finish();
    logout.expect_end_stream();
    logout.reset(INTERNAL_ERROR);
    logout.target.expect_reset();
    logout.was("reset", "client");

    let mut logout = Logout::open();
    logout.finish();
    logout.target.expect_end();
    logout.reset(INTERNAL_ERROR);
    logout.was("reset", "client");

    let mut logout = Logout::open();
    logout.reset(CANCEL);
    logout.target.expect_reset();
    logout.was("reset", "client");
}

/// ssh sends its ProxyCommand a SIGHUP when it exits, and closes what the two share only then.
#[test]
fn a_proxy_command_that_is_hung_up_at_a_logout_still_ends_its_tunnel() {
    let (authority, target) = (Authority::new(), Target::listen());
    let settings = format!(
        "listen: {{address: \"127.0.0.1:0\", tls: optional}}\ntls: {{certificates: [{}]}}\n{}",
        authority.server("server", &["localhost"]).setting(),
        allow(&[("box:22", target.address())])
    );
    let mut server = Server::with(&Settings::new(&settings));
    for scheme in ["https", "http"] {
        let proxy = format!("{scheme}://localhost:{}", server.public().port());
        let ca = authority.ca();
        let trust = ["--ca", ca.to_str().unwrap()];
        let trust = if scheme == "https" { &trust[..] } else { &[] };
        let arguments = ["connect", "--proxy", &proxy, "box:22"];
        let mut command = switchboard_with_hangup(&[&arguments, trust].concat());
        let (input, to_input) = std::io::pipe().unwrap();
        let mut client = Process::spawn_from(&mut command, input);
        drop(command);
        let mut service = target.accept();
        service.send("begun\n");
        client.stdout.next().unwrap();
        client.signal(Signal::HUP);
        drop(to_input);
        service.expect_end();
        service.finish();
        assert_eq!(client.exit_status(), 0);
        assert_eq!(client.stderr.rest(), Vec::<String>::new());
        let line = server.process.stdout.next().unwrap();
        assert!(line.contains(r#""reason":"eof","closed_by":"client""#), "{line}");
    }
}

/// A stdin that nothing ends, such as a terminal; a pipe that is open is that of an ssh that goes on.
#[test]
fn a_proxy_command_that_is_hung_up_ends_soon_without_a_word() {
    let target = Target::listen();
    let server = Server::with(&Settings::new(&allow(&[("box:22", target.address())])));
    let proxy = format!("http://{}", server.public());
    let mut command = switchboard_with_hangup(&["connect", "--proxy", &proxy, "box:22"]);
    let terminal = std::fs::File::open("/dev/ptmx").unwrap();
    let mut client = Process::spawn_from(&mut command, terminal);
    // Kept until the end: when the target closes, the tunnel, and so the client, ends in order.
    let mut service = target.accept();
    service.send("begun\n");
    client.stdout.next().unwrap();
    client.signal(Signal::HUP);
    assert_eq!(client.exit_status(), 1);
    assert_eq!(client.stderr.rest(), Vec::<String>::new());
    drop(service);
}

const NO_ERROR: u8 = 0;
const INTERNAL_ERROR: u8 = 2;
const CANCEL: u8 = 8;
