//! WebSockets over HTTP/2: Extended CONNECT (RFC 8441), and the ends of its streams.

use super::{LISTEN, close, frame as websocket, of_server, proxy_to};
use crate::harness::authority::Authority;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports as _;
use crate::harness::process::{Server, Settings};
use crate::harness::target::{Echo, Target};
use crate::harness::{allow, eventually};
use crate::http2::peer;
use crate::http2::raw::{DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, Raw, connect, field, frame};
use crate::http2::unread::downloads_stall;

const FIELDS: [(&str, &str); 7] = [
    (":method", "CONNECT"),
    (":protocol", "websocket"),
    (":scheme", "http"),
    (":path", "/ssh/devbox:22"),
    (":authority", "ssh.example.com"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-protocol", "switchboard.v1"),
];

/// A stream for a WebSocket, which is accepted, and its end at the target.
fn open(raw: &mut Raw, stream: u32, target: &Target) -> Peer {
    let block: Vec<u8> = FIELDS.iter().flat_map(|(name, value)| field(name, value)).collect();
    raw.send(&frame(HEADERS, END_HEADERS, stream, &block));
    let service = target.accept();
    assert_eq!(raw.next().kind, HEADERS);
    service
}

/// The client is hyper-h2.
#[test]
fn extended_connect_opens_a_tunnel_and_is_refused_as_over_http_1() {
    let echo = Echo::listen();
    let proxy = proxy_to(echo.address());
    let mut peer = peer::Peer::connect(proxy.public());
    peer.ask_with(1, &FIELDS);
    let fields = peer.expect_status(1, "200");
    assert_eq!(fields["sec-websocket-protocol"], "switchboard.v1");
    let frames = [websocket(0x89, b"?"), websocket(0x02, b"a"), websocket(0x80, b"b")];
    peer.send(1, frames.concat());
    peer.expect(1, [of_server(0x8a, b"?"), of_server(0x82, b"ab")].concat());
    peer.send(1, websocket(0x88, &close(1000, "")));
    peer.expect(1, of_server(0x88, &close(1000, "")));
    peer.expect_end(1);
    let with = |name, value| FIELDS.map(|(other, old)| (other, if other == name { value } else { old }));
    for (stream, (fields, status, phrase)) in (3..).step_by(2).zip([
        // Without the fields of an upgrade, which HTTP/2 has not.
        (
            with("sec-websocket-version", "8"),
            "426",
            "a WebSocket of version 13 is needed here\n",
        ),
        (
            with("sec-websocket-protocol", "chat"),
            "400",
            "the WebSocket subprotocol must be switchboard.v1\n",
        ),
        (
            with(":path", "/ssh/other:22"),
            "403",
            "the target is not on the allowlist\n",
        ),
        (with(":path", "/other"), "405", "only CONNECT is served here\n"),
        (with(":path", "/ssh/devbox:22?x"), "400", ""),
        (with(":protocol", "connect-udp"), "405", "only CONNECT is served here\n"),
    ]) {
        peer.ask_with(stream, &fields);
        let fields = peer.expect_status(stream, status);
        assert!(fields.get("upgrade").is_none(), "{fields}");
        if !phrase.is_empty() {
            peer.expect(stream, phrase);
        }
    }
}

/// The client that a balancer names is admitted by its own rate, but not in spite of the balancer's certificate.
#[test]
fn a_balancer_with_a_revoked_certificate_names_clients_in_vain() {
    let (authority, target) = (Authority::new(), Target::listen());
    let (issued, shown) = (
        authority.server("server", &["localhost"]),
        authority.client("balancer", &[], 5),
    );
    let mut server = Server::with(&Settings::new(&format!(
        "listen: {{address: \"127.0.0.1:0\", tls: required, websocket: {{path: /ssh}}, trusted_proxies: [127.0.0.0/8]}}\n\
         tls: {{certificates: [{}], client_auth: required, client_ca: \"{}\", crl: \"{}\", poll: 100ms}}\n{}",
        issued.setting(),
        authority.ca().display(),
        authority.revoke(&[]).display(),
        allow(&[("devbox:22", target.address())])
    )));
    let mut peer = peer::Peer::connect_over_tls_as(&shown, server.public(), &authority.ca());
    let fields = [&FIELDS[..], &[("x-forwarded-for", "192.0.2.7")]].concat();
    peer.ask_with(1, &fields);
    peer.expect_status(1, "200");
    let _service = target.accept();
    authority.revoke(&[5]);
    server.process.stderr.find("certificates loaded");
    peer.ask_with(3, &fields);
    let refused = peer.expect_status(3, "403");
    let reason = refused["proxy-status"].as_str().unwrap();
    assert!(reason.contains("no longer valid"), "{reason}");
    target.expect_no_connection();
}

/// A frame of the WebSocket is one of HTTP/2: its header is none of its own.
#[test]
fn a_small_message_is_one_frame_of_each() {
    let target = Target::listen();
    let proxy = proxy_to(target.address());
    let mut raw = Raw::connect(proxy.public());
    let mut service = open(&mut raw, 1, &target);
    service.send("x");
    assert_eq!(raw.next().payload, of_server(0x82, b"x"));
}

/// Some clients end their stream when they have read the close frame. What is sent until then has an end, too.
#[test]
fn a_client_that_ends_its_stream_without_a_close_reads_the_last_byte_and_the_end() {
    let target = Target::listen();
    let proxy = proxy_to(target.address());
    let mut raw = Raw::connect(proxy.public());
    let mut service = open(&mut raw, 1, &target);
    service.send("tail");
    service.finish();
    assert_eq!(raw.next().payload, of_server(0x82, b"tail"));
    assert_eq!(raw.next().payload, of_server(0x88, &close(1000, "")));
    raw.send(&frame(DATA, END_STREAM, 1, b""));
    let last = raw.next();
    assert_eq!((last.kind, last.flags & END_STREAM), (DATA, END_STREAM));
    proxy.settles("tunnels_closed_total{by=\"target\",reason=\"eof\"}", 1.0);
}

/// A client that cancels its stream has what was sent only if the end of that had left the proxy.
#[test]
fn a_cancel_is_an_end_after_the_close_frame_and_a_reset_before_it() {
    let (target, bulk) = (Target::listen(), Target::listen());
    let targets = allow(&[("devbox:22", target.address()), ("bulk:22", bulk.address())]);
    let server = Server::with(&Settings::new(&format!("{LISTEN}{targets}")));
    let mut raw = Raw::connect_with_wide_windows(server.public());
    let mut service = open(&mut raw, 1, &target);
    service.finish();
    assert_eq!(raw.next().payload, of_server(0x88, &close(1000, "")));
    raw.send(&frame(RST_STREAM, 0, 1, &CANCEL));
    server.settles("tunnels_closed_total{by=\"target\",reason=\"eof\"}", 1.0);
    drop(raw);
    let resets = || -> f64 {
        let closed = server.scrape().counted("tunnels_closed_total");
        let resets = closed
            .iter()
            .filter(|(labels, _)| labels == r#"by="client",reason="reset""#);
        resets.map(|(_, count)| count).sum()
    };
    let ended = |target| {
        let tunnels = format!("tunnels_active{{target_namespace=\"static\",target_service=\"{target}\"}}");
        server.settles(&tunnels, 0.0);
    };
    // Another stream is sent more than the client reads of the connection. A busy machine may look as if it were full: then the
    // close frame has left, and the next attempt counts.
    eventually("a close frame that has not left", || {
        let mut raw = Raw::connect_with_wide_windows(server.public());
        let mut service = open(&mut raw, 1, &target);
        raw.send(&frame(HEADERS, END_HEADERS, 3, &connect("bulk:22")));
        let mut source = bulk.accept();
        let sending = std::thread::spawn(move || source.try_send(vec![0; 64 << 20]));
        downloads_stall(&server);
        service.finish();
        server.turn();
        let before = resets();
        raw.send(&frame(RST_STREAM, 0, 1, &CANCEL));
        ended("devbox:22");
        let is_reset = resets() > before;
        drop(raw);
        assert!(sending.join().unwrap().is_err());
        ended("bulk:22");
        is_reset.then_some(())
    });
}

const CANCEL: [u8; 4] = [0, 0, 0, 8];
