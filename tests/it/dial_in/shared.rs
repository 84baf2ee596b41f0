//! The connection of an anchor, which users share: nothing that one of them does ends it for the others.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::World;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::request;
use crate::harness::target::Echo;
use crate::http2::raw::{DATA, END_HEADERS, HEADERS, RST_STREAM, Raw, frame};
use crate::openssh::login::{HOST, PORT};

impl World {
    /// The client of a tunnel through an anchor of which the test writes each frame, with the stream's number.
    fn opened_at(&self, raw: &mut Raw) -> (Peer, u32) {
        let mut client = self.proxy.client(request(&format!("{HOST}:{PORT}")));
        let asked = raw.next();
        assert_eq!(asked.kind, HEADERS);
        raw.send(&frame(HEADERS, END_HEADERS, asked.stream, OK));
        client.expect("HTTP/1.1 200 ");
        client.read_past("\r\n\r\n");
        (client, asked.stream)
    }
}

/// The tunnel still carries bytes, over the same connection.
fn expect_download(raw: &mut Raw, (client, stream): &mut (Peer, u32)) {
    raw.send(&frame(DATA, 0, *stream, b"still here"));
    client.expect("still here");
}

#[test]
fn answers_to_cancelled_requests_that_come_late_end_no_other_tunnel() {
    let world = World::start_with(OPEN);
    let mut raw = world.hostile();
    let mut victim = world.opened_at(&mut raw);
    let mut cancelled = Vec::new();
    for _ in 0..3 {
        let clients: Vec<Peer> = (0..100)
            .map(|_| world.proxy.client(request(&format!("{HOST}:{PORT}"))))
            .collect();
        for _ in &clients {
            assert_eq!(raw.next().kind, HEADERS);
        }
        clients.into_iter().for_each(Peer::reset);
        for _ in 0..100 {
            let reset = raw.next();
            assert_eq!(reset.kind, RST_STREAM);
            cancelled.push(reset.stream);
        }
    }
    // As from an anchor that has answered and ended each of them before the resets arrived.
    for stream in &cancelled {
        raw.send(&frame(HEADERS, END_HEADERS, *stream, OK));
        raw.send(&frame(DATA, 0, *stream, b"SSH-2.0-late\r\n").repeat(100));
        raw.send(&frame(RST_STREAM, 0, *stream, &8_u32.to_be_bytes()));
    }
    expect_download(&mut raw, &mut victim);
}

#[test]
fn small_messages_of_one_user_that_wait_for_a_limit_end_no_other_tunnel() {
    let world = World::start_with("limits: {tunnel: {download: 1KiB/s, burst: 1KiB}}\n");
    let mut raw = world.hostile();
    let slow = world.opened_at(&mut raw);
    let mut victim = world.opened_at(&mut raw);
    raw.send(&frame(DATA, 0, slow.1, b"k").repeat(30_000));
    expect_download(&mut raw, &mut victim);
}

/// The proxy marks the end of each with an empty frame, of which h2 takes 100 on a connection.
#[test]
fn a_hundred_tunnels_that_an_operator_ends_end_no_other_tunnel() {
    let world = World::start_with(OPEN);
    let target = Echo::listen();
    let anchor = world.anchor(target.address());
    let open = |source| {
        let mut client = Peer::connect_from(source, world.proxy.public());
        client.send(request(&format!("{HOST}:{PORT}")) + "SSH-2.0-plain\r\n");
        client.read_past("SSH-2.0-plain\r\n");
        client
    };
    let mut victim = open(Ipv4Addr::LOCALHOST);
    let others: Vec<Peer> = (0..120).map(|_| open(Ipv4Addr::new(127, 0, 0, 3))).collect();
    let closed = world.proxy.ask_admin("DELETE", "/tunnels?client=127.0.0.3");
    assert_eq!(closed.status, 200);
    for mut other in others {
        other.ends();
    }
    victim.send("still here");
    victim.expect("still here");
    anchor.stop();
}

#[test]
fn an_anchor_that_stays_does_not_hold_a_drain() {
    let world = World::start();
    let mut raw = world.hostile();
    world.proxy.process.signal(Signal::TERM);
    assert_eq!(raw.next().kind, HEADERS);
    let start = Instant::now();
    let mut proxy = world.proxy;
    assert_eq!(proxy.process.exit_status(), 0);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(12), "{took:?}");
}

/// The caps of one client would refuse some of the requests.
const OPEN: &str = "limits: {client: {max_tunnels: unlimited, connects_per_second: unlimited, max_unfinished: unlimited}, target: {max_dials: 200}}\n";
/// `:status` 200 (RFC 7541, appendix A, index 8).
const OK: &[u8] = &[0x88];
