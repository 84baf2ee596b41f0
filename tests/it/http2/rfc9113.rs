//! RFC 9113 section 8.5 and RFC 9110 section 9.3.6, sentence by sentence.

use std::net::SocketAddr;

use super::peer::{Peer, code};
use super::raw::{DATA, END_HEADERS, HEADERS, RST_STREAM, Raw, connect, field, frame};
use crate::harness::ports::Ports;
use crate::harness::proxy::Proxy;
use crate::harness::target::{Echo, Target};
use crate::harness::{allow, eventually};

const ASK: (&str, &str) = (":method", "CONNECT");
const FOR: (&str, &str) = (":authority", "box:22");

fn start(target: SocketAddr) -> (Proxy, Peer) {
    let proxy = Proxy::start(&allow(&[("box:22", target)]));
    let peer = Peer::connect(proxy.public());
    (proxy, peer)
}

#[test]
fn the_method_is_connect_the_authority_is_the_target_and_the_200_has_no_field() {
    let target = Target::listen();
    let (_proxy, mut peer) = start(target.address());
    peer.ask(1, "box:22");
    let _server = target.accept();
    let fields = peer.expect_status(1, "200");
    assert_eq!(fields.as_object().unwrap().len(), 1, "{fields}");
}

/// "The ":scheme" and ":path" pseudo-header fields MUST be omitted." "A CONNECT request that does not conform to these
/// restrictions is malformed", and that "MUST be treated as a stream error of type PROTOCOL_ERROR" (section 8.1.1).
#[test]
fn a_connect_with_scheme_path_protocol_or_no_authority_is_a_stream_error_and_nothing_else() {
    let target = Echo::listen();
    let (_proxy, mut peer) = start(target.address());
    peer.open(1, "box:22");
    let (scheme, path, protocol) = ((":scheme", "http"), (":path", "/"), (":protocol", "websocket"));
    let malformed: [&[_]; 8] = [
        &[ASK, FOR, scheme],
        &[ASK, FOR, path],
        &[ASK, FOR, scheme, path],
        &[ASK, FOR, scheme, path, protocol],
        &[ASK],
        &[FOR],
        &[ASK, FOR, ("connection", "keep-alive")],
        &[ASK, FOR, ("transfer-encoding", "chunked")],
    ];
    for (stream, fields) in (3..).step_by(2).zip(malformed) {
        peer.ask_with(stream, fields);
        peer.expect_reset(stream, code::PROTOCOL_ERROR);
        peer.expect_echo(1);
    }
}

/// Any other malformed request (sections 8.2 and 8.3) is a stream error too: it affects no other stream. Of what cannot
/// be a field at all, h2 makes an error of the connection, as an endpoint may (section 5.4.1).
#[test]
fn a_malformed_request_ends_its_stream_and_an_invalid_field_the_connection() {
    let target = Echo::listen();
    let proxy = Proxy::start(&allow(&[("box:22", target.address())]));
    let last = |name, value| [connect("box:22"), field(name, value)].concat();
    for (block, ends_all) in [
        (last(":method", "CONNECT"), false),
        (last(":authority", "box:22"), false),
        ([field("x", "y"), connect("box:22")].concat(), false),
        (last(":status", "200"), false),
        (last("te", "gzip"), false),
        (last("upgrade", "ssh"), false),
        (last("content-length", "many"), false),
        (connect("[::1"), false),
        (connect(""), false),
        (last("X-Upper", "y"), true),
        (last(":unknown", "y"), true),
        (last("two words", "y"), true),
        (last("", "y"), true),
        (last("x", "a\0b"), true),
        (last("x", "a\r\nb"), true),
    ] {
        let mut raw = Raw::connect(proxy.public());
        raw.send(&frame(HEADERS, END_HEADERS, 1, &connect("box:22")));
        assert_eq!(raw.next().kind, HEADERS);
        raw.send(&frame(HEADERS, END_HEADERS, 3, &block));
        if ends_all {
            assert_eq!(raw.goaway().map(u64::from), Some(code::PROTOCOL_ERROR), "{block:?}");
            continue;
        }
        let reset = raw.next();
        assert_eq!((reset.kind, reset.stream), (RST_STREAM, 3), "{block:?}");
        assert_eq!(reset.payload, [0, 0, 0, 1], "{block:?}");
        raw.send(&frame(DATA, 0, 1, b"still here"));
        assert_eq!(raw.next().payload, b"still here");
    }
    // Both tunnels and refusals of h2's are over: each was closed as a reset of the client's, and nothing is left.
    proxy.settles("connections_active", 0.0);
    // One for each connection that ended. Of the streams that h2 resets it says nothing: they are not counted.
    proxy.settles("connect_requests_total{code=\"400\",reason=\"malformed\"}", 6.0);
}

/// "A server MUST reject a CONNECT request that targets an empty or invalid port number, typically by responding with a
/// 400": RFC 9110 section 9.3.6.
#[test]
fn an_empty_or_invalid_port_is_a_400() {
    let target = Target::listen();
    let (_proxy, mut peer) = start(target.address());
    for (stream, authority) in (1..)
        .step_by(2)
        .zip(["box", "box:", "box:0", "box:65536", "box:+22", "u@box:22"])
    {
        peer.ask(stream, authority);
        peer.expect_status(stream, "400");
        peer.event("data", stream);
        peer.expect_end(stream);
        peer.expect_reset(stream, code::NO_ERROR);
    }
    target.expect_no_connection();
}

/// "A CONNECT request message does not have content." A length of 0 would make every byte of the tunnel an error.
#[test]
fn a_connect_with_a_length_is_a_400() {
    let target = Target::listen();
    let (_proxy, mut peer) = start(target.address());
    for (stream, length) in [(1, "3"), (3, "0"), (5, "00")] {
        peer.ask_with(stream, &[ASK, FOR, ("content-length", length)]);
        peer.expect_status(stream, "400");
    }
    target.expect_no_connection();
}

/// "The payload of any DATA frames sent by the client is transmitted by the proxy to the TCP server; data received from
/// the TCP server is assembled into DATA frames by the proxy."
#[test]
fn data_frames_are_the_bytes_of_the_tunnel_both_ways() {
    let target = Target::listen();
    let (_proxy, mut peer) = start(target.address());
    peer.ask(1, "box:22");
    let mut server = target.accept();
    server.send("SSH-2.0-server\r\n");
    peer.expect_status(1, "200");
    peer.expect(1, "SSH-2.0-server\r\n");
    peer.send(1, "SSH-2.0-client\r\n");
    server.expect("SSH-2.0-client\r\n");
}

/// Data sent before the answer waits in its stream.
#[test]
fn data_before_the_200_reaches_the_target() {
    let target = Target::listen();
    let (_proxy, mut peer) = start(target.address());
    peer.ask(1, "box:22");
    peer.tell("now 1 6561726c79");
    peer.tell("end 1");
    let mut server = target.accept();
    server.expect("early");
    server.expect_end();
    server.send("late");
    server.finish();
    peer.expect_status(1, "200");
    peer.expect(1, "late");
    peer.expect_end(1);
}

/// "Frame types other than DATA or stream management frames (RST_STREAM, WINDOW_UPDATE, and PRIORITY) MUST NOT be sent
/// on a connected stream and MUST be treated as a stream error (Section 5.4.2) if received."
#[test]
fn headers_on_a_connected_stream_are_a_stream_error() {
    let target = Target::listen();
    let (_proxy, mut peer) = start(target.address());
    peer.open(1, "box:22");
    let mut server = target.accept();
    peer.open(3, "box:22");
    let mut sibling = target.accept();
    peer.tell("trailers 1");
    server.expect_reset();
    peer.event("reset", 1);
    sibling.send("still here");
    peer.expect(3, "still here");
}

/// "The TCP connection can be closed by either peer. The END_STREAM flag on a DATA frame is treated as being equivalent
/// to the TCP FIN bit. A client is expected to send a DATA frame with the END_STREAM flag set after receiving a frame
/// with the END_STREAM flag set."
#[test]
fn the_clients_end_stream_is_a_fin_and_leaves_the_other_direction_open() {
    let target = Target::listen();
    let (proxy, mut peer) = start(target.address());
    peer.open(1, "box:22");
    let mut server = target.accept();
    peer.send(1, "the ending");
    peer.tell("end 1");
    server.expect("the ending");
    server.expect_end();
    server.send("heard");
    peer.expect(1, "heard");
    server.finish();
    peer.expect_end(1);
    proxy.settles("tunnels_closed_total{by=\"client\",reason=\"eof\"}", 1.0);
}

/// "A proxy that receives a DATA frame with the END_STREAM flag set sends the attached data with the FIN bit set on the
/// last TCP segment. A proxy that receives a TCP segment with the FIN bit set sends a DATA frame with the END_STREAM
/// flag set."
#[test]
fn the_targets_fin_is_an_end_and_leaves_the_other_direction_open() {
    let target = Target::listen();
    let (proxy, mut peer) = start(target.address());
    peer.open(1, "box:22");
    let mut server = target.accept();
    server.send("the ending");
    server.finish();
    peer.expect(1, "the ending");
    peer.expect_end(1);
    peer.send(1, "heard");
    server.expect("heard");
    peer.tell("end 1");
    server.expect_end();
    proxy.settles("tunnels_closed_total{by=\"target\",reason=\"eof\"}", 1.0);
}

/// The same before either side has said that it speaks SSH.
#[test]
fn an_end_before_the_first_line_is_an_end() {
    let target = Target::listen();
    let proxy = Proxy::start(&(allow(&[("box:22", target.address())]) + "ssh_only: true\n"));
    let mut peer = Peer::connect(proxy.public());
    peer.open(1, "box:22");
    target.accept().finish();
    peer.expect_end(1);
    proxy.settles("tunnels_closed_total{by=\"target\",reason=\"eof\"}", 1.0);
    peer.open(3, "box:22");
    let mut server = target.accept();
    peer.tell("end 3");
    server.expect_end();
    peer.expect_end(3);
    proxy.settles("tunnels_closed_total{by=\"client\",reason=\"eof\"}", 1.0);
}

/// "A proxy treats any error in the TCP connection, which includes receiving a TCP segment with the RST bit set, as a
/// stream error (Section 5.4.2) of type CONNECT_ERROR."
#[test]
fn the_targets_reset_is_connect_error() {
    let target = Target::listen();
    let (proxy, mut peer) = start(target.address());
    peer.open(1, "box:22");
    target.accept().reset();
    peer.expect_reset(1, code::CONNECT_ERROR);
    proxy.settles("tunnels_closed_total{by=\"target\",reason=\"reset\"}", 1.0);
}

/// "Correspondingly, a proxy MUST send a TCP segment with the RST bit set if it detects an error with the stream or the
/// HTTP/2 connection."
#[test]
fn the_streams_reset_is_a_reset() {
    let target = Target::listen();
    let (proxy, mut peer) = start(target.address());
    peer.open(1, "box:22");
    let mut server = target.accept();
    peer.tell(&format!("reset 1 {}", code::CANCEL));
    server.expect_reset();
    proxy.settles("tunnels_closed_total{by=\"client\",reason=\"reset\"}", 1.0);
}

/// The same, of the connection: lost, closed under its streams, or broken.
#[test]
fn the_connections_error_is_a_reset_of_every_tunnel() {
    let target = Target::listen();
    // A frame that is too long for its kind, a reset, and an end of the TCP connection.
    for end in ["raw 000005060000000000000000000000", "abort", ""] {
        let (proxy, mut peer) = start(target.address());
        peer.open(1, "box:22");
        let mut one = target.accept();
        peer.open(3, "box:22");
        let mut other = target.accept();
        match end {
            "" => drop(peer),
            order => peer.tell(order),
        }
        one.expect_reset();
        other.expect_reset();
        proxy.settles("tunnels_closed_total{by=\"client\",reason=\"reset\"}", 2.0);
        proxy.settles("connections_active", 0.0);
    }
}

/// A client that leaves while the target is dialled ends the dial.
#[test]
fn a_stream_that_is_reset_before_its_answer_ends_the_dial() {
    let target = crate::harness::target::Blackhole::open();
    let (proxy, mut peer) = start(target.address());
    peer.ask(1, "box:22");
    target.expect_dials(1);
    peer.tell(&format!("reset 1 {}", code::CANCEL));
    target.expect_dials(0);
    let left = "connect_requests_total{code=\"499\",reason=\"client_disconnected\"}";
    eventually("it is counted", || (proxy.scrape().value(left) == 1.0).then_some(()));
}
