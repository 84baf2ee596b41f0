//! The drain of the real binary: signals in, exit status out, and what clients see.

use std::thread;
use std::time::{Duration, Instant};

use crate::harness::authority::Authority;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Process, Server, Settings, switchboard};
use crate::harness::target::{Blackhole, Closed, Target};
use crate::harness::{DEADLINE, allow, refused, request};
use rustix::process::Signal;
use switchboard::tunnel::outcome::RefusalReason;

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
fn tunnels_run_on_and_after_the_last_the_status_is_0() {
    let target = Target::listen();
    let mut server = server_to(&target, "{delay: 0s, timeout: 1h}");
    let (mut client, mut service) = server.tunnel("devbox:22", &target);
    server.process.signal(Signal::TERM);
    server.stops_accepting();
    let bytes = vec![b'x'; 2_000_000];
    let mut sending = client.again();
    let sent = bytes.clone();
    let upload = thread::spawn(move || sending.send(sent));
    service.expect(&bytes);
    upload.join().unwrap();
    service.send("down");
    client.expect("down");
    client.finish();
    service.expect_end();
    service.finish();
    client.expect_end();
    assert_eq!(server.process.exit_status(), 0);
    // In front of it may stand a connection that has found the port open, and was refused for the drain.
    let line = server.process.stdout.find(r#""status":200"#);
    assert!(
        line.contains(r#""reason":"eof","closed_by":"client","bytes_sent":4,"bytes_received":2000000"#),
        "{line}"
    );
}

#[test]
fn past_the_deadline_tunnels_end_without_loss_and_the_status_is_3() {
    const BYTES: usize = 64 * 1024;
    let target = Target::listen();
    let mut server = server_to(&target, "{delay: 0s, timeout: 100ms, spread: 300ms}");
    let mut tunnels: Vec<_> = (0..8).map(|_| server.tunnel("devbox:22", &target)).collect();
    for (client, service) in &mut tunnels {
        client.send(vec![b'u'; BYTES]);
        service.send(vec![b'd'; BYTES]);
    }
    // All of it has been relayed, and no byte of it was read yet.
    for direction in ["upload", "download"] {
        let labels = format!(r#"direction="{direction}",target_namespace="static",target_service="devbox:22""#);
        let all = f64::from(u32::try_from(8 * BYTES).unwrap());
        server.settles(&format!("tunnel_bytes_total{{{labels}}}"), all);
    }
    server.process.signal(Signal::TERM);
    assert_eq!(server.process.exit_status(), 3);
    for (client, service) in &mut tunnels {
        assert!(client.rest_before_reset() == vec![b'd'; BYTES]);
        assert!(service.rest_before_reset() == vec![b'u'; BYTES]);
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
                client.expect_reset();
                service.expect_reset();
                let line = server.process.stdout.next().unwrap();
                assert!(line.contains(r#""reason":"drained","closed_by":"proxy""#), "{line}");
            }
        }
    }
}

/// A port for TLS and for HTTP/2, and no target that answers.
fn server_without_an_answering_target(authority: &Authority, target: &Blackhole, drain: &str) -> Server {
    let certificate = authority.server("server", &[]).setting();
    let list = allow(&[("devbox:22", target.address())]);
    Server::with(&Settings::new(&format!(
        "listen: {{address: \"127.0.0.1:0\", tls: optional}}\ntls: {{certificates: [{certificate}]}}\n{list}\
         timeouts: {{request_header: 1h, tls_handshake: 1h, dial: 1h, connect: 1h}}\ndrain: {drain}\n"
    )))
}

/// Clients that have come and have no tunnel: silent ones, and others in the middle of a head, of a TLS handshake, of
/// the start of HTTP/2, and without a request on it.
fn clients_without_a_request(server: &Server) -> Vec<Peer> {
    let clients: Vec<_> = WITHOUT_A_REQUEST.map(|said| server.client(said)).into();
    server.settles("connections_unfinished", WITHOUT_A_REQUEST.len() as f64);
    clients
}

#[test]
fn a_drain_refuses_connections_without_a_request() {
    let (authority, target) = (Authority::new(), Blackhole::open());
    let mut server = server_without_an_answering_target(&authority, &target, "{delay: 0s, timeout: 1h}");
    let mut clients = clients_without_a_request(&server);
    server.process.signal(Signal::TERM);
    assert_eq!(server.process.exit_status(), 0);
    let told = refused(RefusalReason::Draining);
    assert_eq!(clients[0].rest_as_text(), told);
    assert_eq!(clients[1].rest_as_text(), told);
    are_refused_for_the_drain(&mut server, WITHOUT_A_REQUEST.len());
}

/// Each goes on sending after its refusal, and neither reads nor closes.
#[test]
fn refused_clients_that_stay_do_not_hold_a_drain() {
    let mut server = Server::with(&Settings::new("drain: {delay: 0s, timeout: 1h}\n"));
    let mut clients: Vec<Peer> = [
        "CONNECT devbox:22 HTTP/1.1\r\n\r\n",
        "SSH-2.0-x\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ]
    .map(|first| server.client(first))
    .into();
    server.process.signal(Signal::TERM);
    let start = Instant::now();
    while server.process.is_running() {
        assert!(start.elapsed() < DEADLINE, "they hold it");
        for client in &mut clients {
            client.try_send("Host: x\r\n").ok();
        }
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.process.exit_status(), 0);
}

#[test]
fn a_second_signal_does_not_wait_for_connections_without_a_tunnel() {
    let (authority, target) = (Authority::new(), Blackhole::open());
    let mut server = server_without_an_answering_target(&authority, &target, "{delay: 1h}");
    let _clients = clients_without_a_request(&server);
    let _dialling = server.client(request("devbox:22"));
    target.expect_dials(1);
    server.process.signal(Signal::TERM);
    server.becomes(NOT_READY);
    server.process.signal(Signal::TERM);
    assert_eq!(server.process.exit_status(), 0);
    are_refused_for_the_drain(&mut server, WITHOUT_A_REQUEST.len() + 1);
}

#[test]
fn a_dial_at_the_deadline_of_the_drain_is_refused_and_counts_as_no_cut_tunnel() {
    let (authority, target) = (Authority::new(), Blackhole::open());
    let mut server = server_without_an_answering_target(&authority, &target, "{delay: 0s, timeout: 100ms, spread: 1h}");
    let mut dialling = server.client(request("devbox:22"));
    target.expect_dials(1);
    server.process.signal(Signal::TERM);
    assert!(
        dialling
            .rest_as_text()
            .starts_with("HTTP/1.1 503 the proxy is shutting down")
    );
    drop(dialling);
    assert_eq!(server.process.exit_status(), 0);
    are_refused_for_the_drain(&mut server, 1);
}

/// Each of them has its line, and the process waited for all of them.
#[track_caller]
fn are_refused_for_the_drain(server: &mut Server, clients: usize) {
    let lines = server.process.stdout.rest();
    let refused = r#""status":503,"reason":"draining","closed_by":"proxy""#;
    assert!(lines.iter().all(|line| line.contains(refused)), "{lines:#?}");
    assert_eq!(lines.len(), clients, "{lines:#?}");
    let messages = server.process.stderr.rest();
    let given_up = messages.iter().any(|message| message.contains("not all of them ended"));
    assert!(!given_up, "{messages:#?}");
}

#[test]
fn a_drain_by_the_admin_port_is_like_one_by_a_signal() {
    let target = Target::listen();
    let mut server = server_to(&target, "{delay: 0s, timeout: 1h}");
    let (mut client, mut service) = server.tunnel("devbox:22", &target);
    let idle = server.ask_admin("GET", "/drain");
    assert_eq!(
        idle.body,
        "{\"phase\":\"serving\",\"tunnels\":1,\"resumable\":0,\"connections\":1}\n"
    );
    assert!(idle.head.contains("content-type: application/json"), "{}", idle.head);
    for _ in 0..2 {
        assert_eq!(server.ask_admin("POST", "/drain").status, 202);
    }
    server.becomes(NOT_READY);
    server.stops_accepting();
    assert_eq!(server.scrape().value("draining"), 1.0);
    // Kubernetes signals when the hook is through, which is the first signal and no second.
    server.process.signal(Signal::TERM);
    server.process.stderr.find("waiting for tunnels to end");
    client.send("up");
    service.expect("up");
    server.drains_to(r#"{"phase":"draining","tunnels":1,"resumable":0,"connections":1}"#);
    drop((client, service));
    assert_eq!(server.process.exit_status(), 0);
}

#[test]
fn after_a_drain_by_the_admin_port_the_second_signal_ends_it_at_once() {
    let target = Target::listen();
    let mut server = server_to(&target, "{delay: 1h}");
    let _tunnel = server.tunnel("devbox:22", &target);
    assert_eq!(server.ask_admin("POST", "/drain").status, 202);
    server.becomes(NOT_READY);
    server.process.signal(Signal::TERM);
    server.process.signal(Signal::INT);
    assert_eq!(server.process.exit_status(), 3);
}

/// `switchboard drain` for that process.
fn drain(server: &Server, arguments: &[&str]) -> Process {
    let admin = server.admin().to_string();
    Process::spawn(switchboard(&[&["drain", "--admin", &admin], arguments].concat()))
}

#[test]
fn the_command_waits_until_few_enough_tunnels_are_left() {
    let target = Target::listen();
    let mut server = server_to(&target, "{delay: 0s, timeout: 1h}");
    let (first, second) = (server.tunnel("devbox:22", &target), server.tunnel("devbox:22", &target));
    let mut asking = drain(&server, &[]);
    assert_eq!(asking.exit_status(), 0);
    assert!(
        asking
            .stdout
            .next()
            .unwrap()
            .ends_with(": 2 tunnels (moves 0, cuts 2), 2 connections")
    );

    let mut to_one = drain(&server, &["--wait", "--at-most", "1", "--timeout", "1h"]);
    let mut to_none = drain(&server, &["--wait"]);
    // Behind the closed port comes the next phase, and the end of the last connection that has found it open.
    server.stops_accepting();
    server.drains_to(r#"{"phase":"draining","tunnels":2,"resumable":0,"connections":2}"#);
    let mut impatient = drain(&server, &["--wait", "--at-most", "1", "--timeout", "10ms"]);
    assert_eq!(impatient.exit_status(), 3);
    assert_eq!(
        impatient.stdout.next().unwrap(),
        "draining: 2 tunnels (moves 0, cuts 2), 2 connections"
    );
    assert!(to_one.is_running());
    drop(first);
    assert_eq!(to_one.exit_status(), 0);
    // The connection of a tunnel that has ended may be about to.
    let told = to_one.stdout.next().unwrap();
    assert!(told.starts_with("draining: 1 tunnels (moves 0, cuts 1), "), "{told}");
    server.drains_to(r#"{"phase":"draining","tunnels":1,"resumable":0,"connections":1}"#);
    assert!(to_none.is_running());
    drop(second);
    // Told by the process itself: in a container it would end with that.
    assert_eq!(to_none.exit_status(), 0);
    let told = to_none.stdout.next().unwrap();
    assert!(told.contains(": 0 tunnels, "), "{told}");
    assert_eq!(server.process.exit_status(), 0);
}

#[test]
fn the_command_reports_an_unreachable_admin_port() {
    let target = Target::listen();
    let server = server_to(&target, "{delay: 0s}");
    let public = server.public().to_string();
    let refused = format!(
        "switchboard: cannot ask {public} to drain: does not answer as switchboard does: status 405: {}",
        RefusalReason::MethodNotAllowed.phrase()
    );
    let port = Closed::bind();
    let closed = port.address().to_string();
    let unreachable = format!("switchboard: cannot ask {closed} to drain: cannot be reached: Connection refused");
    for (admin, expected) in [(&public, refused), (&closed, unreachable)] {
        let mut asking = Process::spawn(switchboard(&["drain", "--wait", "--admin", admin]));
        assert_eq!(asking.exit_status(), 1);
        let told = asking.stderr.rest().join("\n");
        assert!(told.starts_with(&expected), "{told}");
    }
    for usage in [["--at-most", "1"], ["--timeout", "1s"], ["--wait", "--timeout=soon"]] {
        assert_eq!(drain(&server, &usage).exit_status(), 2, "{usage:?}");
    }
}

const NOT_READY: u16 = 503;
const WITHOUT_A_REQUEST: [&[u8]; 6] = [
    b"",
    b"CONNECT devbox:22 HTTP/1.1\r\nHost: devb",
    b"\x16",
    b"\x16\x03\x01\x02\x00\x01",
    b"PRI * HTTP/2.0\r\n\r\nS",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
];
