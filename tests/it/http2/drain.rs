//! The ends of connections: by a drain, without a tunnel, without a request.

use std::thread;
use std::time::Duration;

use switchboard::tunnel::drain::DrainResult;

use super::peer::{Peer, code};
use super::raw::{END_HEADERS, END_STREAM, HEADERS, Raw, connect, frame};
use crate::harness::allow;
use crate::harness::ports::Ports;
use crate::harness::proxy::Proxy;
use crate::harness::target::{Echo, Target};
use crate::resumable::{ANCHOR, hello};

#[test]
fn a_drain_sends_goaway_refuses_new_tunnels_and_waits_for_the_others() {
    let echo = Echo::listen();
    let proxy = Proxy::start(&(allow(&[("box:22", echo.address())]) + "drain: {delay: 0s, timeout: 1h}\n"));
    let mut peer = Peer::connect(proxy.public());
    peer.open(1, "box:22");
    proxy.stop();
    // The first says that the end is near, the second which streams are served (RFC 9113 section 6.8).
    let goaway = peer.event("goaway", 0);
    assert_eq!(
        (&goaway["code"], &goaway["last"]),
        (&code::NO_ERROR.into(), &0x7fff_ffff_u32.into())
    );
    assert_eq!(peer.event("goaway", 0)["last"], 1);
    peer.expect_echo(1);
    peer.tell("end 1");
    peer.expect_end(1);
    assert_eq!(peer.event("closed", 0)["how"], "end");
    assert_eq!(proxy.drained(), DrainResult::Clean);
}

/// It neither answers the PING that precedes the last GOAWAY, nor stops asking.
#[test]
fn a_client_without_a_tunnel_does_not_hold_a_drain_by_requests_that_are_refused() {
    let proxy = Proxy::start("drain: {delay: 0s, timeout: 1h}\n");
    let mut raw = Raw::connect(proxy.public());
    raw.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &connect("unknown:22")));
    assert_eq!(raw.next().kind, HEADERS);
    proxy.stop();
    let mut stream = 1;
    let next = || {
        thread::sleep(Duration::from_millis(100));
        stream += 2;
        frame(HEADERS, END_HEADERS | END_STREAM, stream, &connect("unknown:22"))
    };
    let sent = raw.flood(next, 10_000, true);
    assert_eq!(proxy.drained(), DrainResult::Clean, "after {sent} bytes");
}

#[test]
fn past_the_deadline_of_the_drain_tunnels_are_reset_and_then_the_connection_ends() {
    let target = Target::listen();
    let settings = allow(&[("box:22", target.address())]) + "drain: {delay: 0s, timeout: 0s, spread: 0s}\n";
    let proxy = Proxy::start(&settings);
    let mut peer = Peer::connect(proxy.public());
    peer.open(1, "box:22");
    let mut server = target.accept();
    proxy.stop();
    server.expect_reset();
    peer.expect_reset(1, code::CONNECT_ERROR);
    peer.event("closed", 0);
    assert_eq!(proxy.drained(), DrainResult::Cut);
}

#[test]
fn of_one_connection_a_drain_ends_the_streams_that_are_resumable_in_order() {
    for ssh_only in [true, false] {
        let target = Target::listen();
        let settings = allow(&[("box:22", target.address())])
            + &format!("ssh_only: {ssh_only}\ndrain: {{delay: 0s, timeout: 1h, resumable_spread: 0s}}\n");
        let proxy = Proxy::start(&settings);
        let mut peer = Peer::connect(proxy.public());
        let mut tunnel = |stream, line: &str| {
            peer.open(stream, "box:22");
            let mut service = target.accept();
            peer.send(stream, line);
            service.expect(line);
            service.send(ANCHOR);
            peer.expect(stream, ANCHOR);
            service
        };
        let mut anchor = tunnel(1, &hello("resume"));
        let mut service = tunnel(3, "SSH-2.0-OpenSSH_9.2p1\r\n");
        proxy.settles("tunnels_resumable", 1.0);
        proxy.stop();
        anchor.expect_end();
        peer.expect_end(1);
        proxy.settles(r#"tunnels_closed_total{by="proxy",reason="resumed_elsewhere"}"#, 1.0);
        peer.send(3, "up");
        service.expect("up");
        service.send("down");
        peer.expect(3, "down");
        peer.tell("end 3");
        service.expect_end();
        service.finish();
        peer.expect_end(3);
        assert_eq!(proxy.drained(), DrainResult::Clean);
    }
}

#[test]
fn a_resumable_stream_ends_with_either_of_its_sides() {
    let target = Target::listen();
    let settings =
        allow(&[("box:22", target.address())]) + "limits: {target: {max_tunnels: 1}}\ntimeouts: {half_closed: 365d}\n";
    let proxy = Proxy::start(&settings);
    let mut peer = Peer::connect(proxy.public());
    for (stream, side) in [(1, "client"), (3, "target")] {
        peer.open(stream, "box:22");
        let mut anchor = target.accept();
        peer.send(stream, hello("resume"));
        anchor.expect(hello("resume"));
        anchor.send(ANCHOR);
        peer.expect(stream, ANCHOR);
        if side == "client" {
            peer.tell(&format!("end {stream}"));
            anchor.expect_end();
        } else {
            anchor.finish();
        }
        peer.expect_end(stream);
        proxy.settles(&format!("tunnels_closed_total{{by=\"{side}\",reason=\"eof\"}}"), 1.0);
        proxy.settles(
            r#"tunnels_active{target_namespace="static",target_service="box:22"}"#,
            0.0,
        );
        anchor.ends();
    }
}

#[test]
fn a_connection_whose_tunnels_have_ended_is_closed_after_the_head_timeout() {
    let echo = Echo::listen();
    let proxy = Proxy::start(&(allow(&[("box:22", echo.address())]) + "timeouts: {request_header: 3s}\n"));
    let mut peer = Peer::connect(proxy.public());
    peer.open(1, "box:22");
    peer.expect_echo(1);
    peer.tell("end 1");
    peer.expect_end(1);
    let goaway = peer.event("goaway", 0);
    assert_eq!((&goaway["code"], &goaway["last"]), (&code::NO_ERROR.into(), &1.into()));
    peer.event("closed", 0);
    proxy.settles("connections_active", 0.0);
    // It had its tunnel: there is nothing more to be said of it.
    proxy.settles(
        "connect_requests_total{code=\"408\",reason=\"request_header_timeout\"}",
        0.0,
    );
}

#[test]
fn a_connection_without_a_request_gets_goaway_and_counts_as_a_late_head() {
    let echo = Echo::listen();
    let proxy = Proxy::start(&(allow(&[("box:22", echo.address())]) + "timeouts: {request_header: 1s}\n"));
    assert_eq!(
        Raw::connect(proxy.public()).goaway().map(u64::from),
        Some(code::NO_ERROR)
    );
    proxy.settles(
        "connect_requests_total{code=\"408\",reason=\"request_header_timeout\"}",
        1.0,
    );
    let mut silent = proxy.client("PRI * HTTP/2.0\r\n\r\n");
    // Our SETTINGS, and the end.
    silent.rest();
    proxy.settles(
        "connect_requests_total{code=\"408\",reason=\"request_header_timeout\"}",
        2.0,
    );
    proxy.settles("connections_active", 0.0);
}

#[test]
fn a_broken_preface_is_malformed() {
    let echo = Echo::listen();
    let proxy = Proxy::start(&allow(&[("box:22", echo.address())]));
    let mut client = proxy.client("PRI * HTTP/2.0\r\n\r\nSX\r\n\r\n");
    client.rest();
    proxy.settles("connect_requests_total{code=\"400\",reason=\"malformed\"}", 1.0);
}
