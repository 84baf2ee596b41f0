//! The way down of the real binary: signals in, exit status out, and what clients see meanwhile.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

#[path = "harness/harness.rs"]
#[expect(dead_code, reason = "each file of tests uses a part of it")]
mod harness;

use harness::allow;
use harness::ports::Ports;
use harness::process::{Server, Settings};
use harness::target::Target;
use rustix::process::Signal;

/// A process with one target, `devbox:22`.
fn server_to(target: &Target, drain: &str) -> Server {
    let list = allow(&[("devbox:22", target.address())]);
    Server::with(&Settings::new(&format!("{list}drain: {drain}\n")))
}

#[test]
fn after_a_signal_it_is_not_ready_but_still_accepts() {
    for signal in [Signal::TERM, Signal::INT] {
        let target = Target::listen();
        let mut server = server_to(&target, "{delay: 1h}");
        server.process.signal(signal);
        server.becomes(NOT_READY);
        assert_eq!(server.scrape().value("draining"), 1.0);
        let (mut client, mut service) = server.tunnel("devbox:22", &target);
        client.send("up");
        service.expect("up");
        // No second signal: what it says of the configuration still holds.
        server.process.signal(Signal::HUP);
        service.send("down");
        client.expect("down");
        drop((client, service));
        server.settles("connections_active", 0.0);
        server.process.signal(signal);
        assert_eq!(server.process.exit_status(), 0);
    }
}

#[test]
fn tunnels_run_on_and_when_they_end_it_exits_with_0() {
    let target = Target::listen();
    let mut server = server_to(&target, "{delay: 0s, timeout: 1h}");
    let (mut client, mut service) = server.tunnel("devbox:22", &target);
    server.process.signal(Signal::TERM);
    server.stops_accepting();
    let bytes = vec![b'x'; 2_000_000];
    let mut sending = client.again();
    let sent = bytes.clone();
    let upload = std::thread::spawn(move || sending.send(sent));
    service.expect(&bytes);
    upload.join().unwrap();
    service.send("down");
    client.expect("down");
    client.finish();
    service.expect_end();
    service.finish();
    client.expect_end();
    assert_eq!(server.process.exit_status(), 0);
    let line = server.process.stdout.next().unwrap();
    assert!(
        line.contains(r#""reason":"eof","closed_by":"client","bytes_sent":4,"bytes_received":2000000"#),
        "{line}"
    );
}

#[test]
fn past_the_deadline_it_cuts_tunnels_gently_and_exits_with_3() {
    const BYTES: usize = 64 * 1024;
    let target = Target::listen();
    let mut server = server_to(&target, "{delay: 0s, timeout: 100ms, spread: 300ms}");
    let mut tunnels: Vec<_> = (0..8).map(|_| server.tunnel("devbox:22", &target)).collect();
    for (client, service) in &mut tunnels {
        client.send(vec![b'u'; BYTES]);
        service.send(vec![b'd'; BYTES]);
    }
    // All of it has been relayed, and nobody has read a byte of it yet.
    for direction in ["upload", "download"] {
        let labels = format!(r#"direction="{direction}",target_namespace="static",target_service="devbox:22""#);
        let all = f64::from(u32::try_from(8 * BYTES).unwrap());
        server.settles(&format!("tunnel_bytes_total{{{labels}}}"), all);
    }
    server.process.signal(Signal::TERM);
    assert_eq!(server.process.exit_status(), 3);
    for (client, service) in &mut tunnels {
        assert!(client.rest() == vec![b'd'; BYTES]);
        assert!(service.rest() == vec![b'u'; BYTES]);
    }
    let lines = server.process.stdout.rest();
    assert_eq!(lines.len(), 8);
    for line in lines {
        assert!(line.contains(r#""reason":"drained","closed_by":"proxy""#), "{line}");
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    for (first, second) in [
        (Signal::TERM, Signal::TERM),
        (Signal::INT, Signal::INT),
        (Signal::TERM, Signal::INT),
    ] {
        for (delay, open, status) in [("1h", false, 0), ("1h", true, 3), ("0s", true, 3)] {
            let target = Target::listen();
            let mut server = server_to(&target, &format!("{{delay: {delay}, timeout: 1h, spread: 1h}}"));
            let tunnel = open.then(|| server.tunnel("devbox:22", &target));
            server.process.signal(first);
            server.becomes(NOT_READY);
            server.process.signal(second);
            assert_eq!(server.process.exit_status(), status, "delay {delay}, open {open}");
            if let Some((mut client, mut service)) = tunnel {
                client.expect_end();
                service.expect_end();
                let line = server.process.stdout.next().unwrap();
                assert!(line.contains(r#""reason":"drained","closed_by":"proxy""#), "{line}");
            }
        }
    }
}

#[test]
fn a_silent_client_does_not_hold_the_process_longer_than_its_head_may_take() {
    let list = "timeouts: {head: 300ms}\ndrain: {delay: 0s, timeout: 1h}\n";
    let mut server = Server::with(&Settings::new(list));
    let _silent = server.client("");
    server.settles("connections_active", 1.0);
    server.process.signal(Signal::TERM);
    assert_eq!(server.process.exit_status(), 0);
}

const NOT_READY: u16 = 503;
