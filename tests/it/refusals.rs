//! The refusals that clients get, and when.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings, switchboard_with_descriptors};
use crate::harness::proxy::Proxy;
use crate::harness::target::{Blackhole, Closed, Echo, Target};
use crate::harness::{CONFIRMATION, allow, refusal, refused, request};
use switchboard::tunnel::drain::DrainResult;
use switchboard::tunnel::outcome::RefusalReason;

/// The answers to the letter: other tests take the phrases from the table of refusals.
#[test]
fn each_refusal_has_its_answer() {
    let target = Target::listen();
    let (closed, blackhole) = (Closed::bind(), Blackhole::open());
    let list = allow(&[
        ("here:22", target.address()),
        ("refuses:22", closed.address()),
        ("silent:22", blackhole.address()),
    ]);
    let proxy = Proxy::start(&format!("{list}timeouts: {{dial: 300ms, connect: 200ms}}\n"));
    let not_allowed = refusal(403, "the target is not on the allowlist", "http_request_denied", "");
    let table = [
        ("nowhere:22", "not_allowed", not_allowed.clone()),
        // The same answer: it must not reveal which names exist.
        ("here:23", "not_allowed", not_allowed),
        (
            "refuses:22",
            "target_refused",
            refusal(502, "the target refused the connection", "connection_refused", ""),
        ),
        (
            "silent:22",
            "dial_timeout",
            refusal(504, "the target did not answer in time", "connection_timeout", ""),
        ),
    ];
    for (name, reason, expected) in table {
        let status = &expected[9..12];
        let series = format!(r#"connect_requests_total{{code="{status}",reason="{reason}"}}"#);
        let before = proxy.scrape().value(&series);
        assert_eq!(proxy.answer(name), expected, "{name}");
        proxy.settles(&series, before + 1.0);
    }
    proxy.settles("connections_active", 0.0);
    assert_eq!(proxy.scrape().value("dial_duration_seconds_count"), 2.0);
    blackhole.expect_dials(0);
    target.expect_no_connection();
}

#[test]
fn the_next_address_is_dialled_when_one_fails() {
    let (target, closed, blackhole) = (Target::listen(), Closed::bind(), Blackhole::open());
    let addresses = format!(
        "\"{}\", \"{}\", \"{}\"",
        closed.address(),
        blackhole.address(),
        target.address()
    );
    let proxy = Proxy::start(&format!(
        "allowlist: {{static: [{{name: \"many:22\", addresses: [{addresses}]}}]}}\ntimeouts: {{connect: 200ms}}\n"
    ));
    for _ in 0..6 {
        proxy.tunnel("many:22", &target);
    }
}

/// The kernel's timing decides whether the reset comes before the 200 or after it.
#[test]
fn a_reset_of_the_target_is_a_502_or_a_reset_of_the_tunnel() {
    let target = Target::listen();
    let proxy = Proxy::start(&allow(&[("resets:22", target.address())]));
    let target_refused = refused(RefusalReason::TargetRefused);
    for _ in 0..50 {
        let mut client = proxy.client(request("resets:22"));
        target.accept().reset();
        let answer = client.read_once();
        if answer == CONFIRMATION.as_bytes() {
            client.expect_reset();
        } else {
            assert_eq!(String::from_utf8(answer).unwrap(), target_refused);
        }
    }
    proxy.settles("connections_active", 0.0);
    let page = proxy.scrape();
    let reset = page.value(r#"tunnels_closed_total{by="target",reason="reset"}"#);
    let refused = page.value(r#"connect_requests_total{code="502",reason="target_refused"}"#);
    assert_eq!(reset + refused, 50.0);
}

#[test]
fn a_trickling_head_is_refused_at_its_deadline_from_the_accept() {
    const HEAD: Duration = Duration::from_millis(700);
    let proxy = Proxy::start("timeouts: {request_header: 700ms}\n");
    let trickles = [
        Vec::new(),
        b"CONNECT devbox:22 HT".to_vec(),
        // Without a pause, and long enough for ten times the deadline.
        [b"CONNECT devbox:22 HTTP/1.1\r\nX: ".as_slice(), &[b'y'; 700]].concat(),
    ];
    for trickle in trickles {
        let start = Instant::now();
        let mut client = Peer::connect(proxy.public());
        let mut answer = None;
        for byte in trickle {
            client.send([byte]);
            answer = client.read_within(HEAD / 70);
            if answer.is_some() {
                break;
            }
        }
        let answer = answer.unwrap_or_else(|| client.read_once());
        assert_eq!(
            String::from_utf8(answer).unwrap(),
            refused(RefusalReason::RequestHeaderTimeout)
        );
        client.expect_end();
        assert!(start.elapsed() >= HEAD);
    }
    proxy.settles(
        r#"connect_requests_total{code="408",reason="request_header_timeout"}"#,
        3.0,
    );
    proxy.settles("connections_active", 0.0);
}

#[test]
fn a_request_completed_during_the_drain_is_refused_with_retry_after() {
    let target = Target::listen();
    let list = allow(&[("devbox:22", target.address())]);
    let proxy = Proxy::start(&format!("{list}drain: {{delay: 0s, timeout: 1h, spread: 0s}}\n"));
    let request = request("devbox:22");
    let (start, end) = request.split_at(20);
    let mut client = proxy.client(start);
    proxy.settles("connections_active", 1.0);
    proxy.stop();
    // A request that is complete before this phase still has its tunnel.
    proxy.drains_to(r#"{"phase":"draining""#);
    client.send(end);
    assert_eq!(client.rest_as_text(), refused(RefusalReason::Draining));
    drop(client);
    assert_eq!(proxy.drained(), DrainResult::Clean);
    target.expect_no_connection();
}

#[test]
fn a_full_descriptor_table_pauses_accepting_but_not_tunnels() {
    const DESCRIPTORS: u32 = 128;
    let echo = Echo::listen();
    let list = allow(&[("echo:22", echo.address())]);
    let settings = Settings::new(&format!("{list}timeouts: {{request_header: 1h}}\n"));
    let arguments = ["serve", "--config", settings.path()];
    let mut server = Server::start(switchboard_with_descriptors(DESCRIPTORS, &arguments));
    let started = Instant::now();
    let mut running = server.open("echo:22");
    let mut next = server.client("");
    server.settles("connections_unfinished", 1.0);
    // The caps keep the connections of both ports within the limit, so that it is lowered under them.
    server.process.limit_descriptors(0, DESCRIPTORS);
    let paused = |address: SocketAddr| {
        format!("cannot accept, pausing error=Too many open files (os error 24) address={address}")
    };
    let page = Peer::connect(server.admin());
    server.process.stderr.find(&paused(server.admin()));
    let waiting = server.client("");
    server.process.stderr.find(&paused(server.public()));
    running.send("still here");
    running.expect("still here");
    // It was accepted, but there is no descriptor left for its target.
    next.send(request("echo:22"));
    assert_eq!(next.rest_as_text(), refused(RefusalReason::OutOfSockets));
    server.process.limit_descriptors(DESCRIPTORS, DESCRIPTORS);
    drop((page, waiting));
    let mut next = server.open("echo:22");
    next.send("back again");
    next.expect("back again");
    running.send("all the time");
    running.expect("all the time");
    let page = server.scrape();
    assert!(page.value("accept_paused_total") >= 1.0);
    assert_eq!(page.values["process_max_fds"], f64::from(DESCRIPTORS));
    // A pause is a tenth of a second, on each of two ports: a loop that spins would have counted far more of them.
    let most = 2.0 * (started.elapsed().as_secs_f64() * 10.0 + 1.0);
    assert!(page.value("accept_paused_total") <= most, "{page:?}");
}
