//! The WebSocket of the public port: the handshake, hostile frames, ends, and the balancers' words about the client.

mod answers;
mod autobahn;
mod forwarded;
#[path = "../../src/protocol/websocket/tests/frames.rs"]
mod frames;
pub(crate) mod fronts;
mod http2;

use std::net::SocketAddr;

use frames::frame;
use switchboard::tunnel::outcome::RefusalReason;

use crate::harness::peer::Peer;
use crate::harness::ports::Ports as _;
use crate::harness::proxy::Proxy;
use crate::harness::target::{Echo, Target};
use crate::harness::{allow, refused};

const LISTEN: &str = "listen: {address: \"127.0.0.1:0\", websocket: {path: /ssh}}\n";

/// A proxy with one target at that address, for which no identification is required.
fn proxy_to(target: SocketAddr) -> Proxy {
    Proxy::start(&format!("{LISTEN}ssh_only: false\n{}", allow(&[("devbox:22", target)])))
}

/// The example of RFC 6455 section 1.3, for this path, with other fields or more.
fn upgrade(path: &str, fields: &[(&str, &str)]) -> String {
    let mut all = vec![
        ("Host", "ssh.example.com"),
        ("Connection", "keep-alive, Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Protocol", "switchboard.v1"),
    ];
    all.retain(|(name, _)| fields.iter().all(|(other, _)| other != name));
    all.extend(fields.iter().filter(|(_, value)| !value.is_empty()));
    let fields: String = all.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("GET {path} HTTP/1.1\r\n{fields}\r\n")
}

const ACCEPTED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: switchboard.v1\r\n\r\n";

/// The payloads of the server's binary frames, of so many bytes together.
fn payload(client: &mut Peer, bytes: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < bytes {
        let (first, payload) = read_frame(client);
        assert_eq!(first, 0x82);
        all.extend(payload);
    }
    assert_eq!(all.len(), bytes);
    all
}

/// The first byte of the server's next frame, and its payload.
fn read_frame(client: &mut Peer) -> (u8, Vec<u8>) {
    let [first, length] = client.read_exact::<2>();
    let length = match length {
        126 => u16::from_be_bytes(client.read_exact()).into(),
        127 => usize::try_from(u64::from_be_bytes(client.read_exact())).unwrap(),
        length => length.into(),
    };
    let mut payload = vec![0; length];
    client.read_into(&mut payload);
    (first, payload)
}

fn open(proxy: &Proxy) -> Peer {
    let mut client = proxy.client(upgrade("/ssh/devbox:22", &[]));
    client.expect(ACCEPTED);
    client
}

/// The payload of a close frame with that status and this reason.
fn close(code: u16, reason: &str) -> Vec<u8> {
    [&code.to_be_bytes()[..], reason.as_bytes()].concat()
}

/// A frame of the server.
fn of_server(first: u8, payload: &[u8]) -> Vec<u8> {
    [&[first, u8::try_from(payload.len()).unwrap()][..], payload].concat()
}

#[test]
fn a_request_that_is_no_websocket_of_switchboard_is_refused_with_its_reason() {
    let target = Target::listen();
    let proxy = proxy_to(target.address());
    let upgrade_required = crate::harness::refusal(
        426,
        "a WebSocket of version 13 is needed here",
        "http_request_error",
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
    );
    let malformed = |phrase| crate::harness::refusal(400, phrase, "http_request_error", "");
    let no_key = malformed("the Sec-WebSocket-Key is missing or malformed");
    let no_subprotocol = malformed("the WebSocket subprotocol must be switchboard.v1");
    let content = malformed("the request must not have content");
    for (path, fields, expected) in [
        ("/ssh/devbox:22", &[("Connection", "")][..], &upgrade_required),
        ("/ssh/devbox:22", &[("Upgrade", "h2c")], &upgrade_required),
        ("/ssh/devbox:22", &[("Sec-WebSocket-Version", "8")], &upgrade_required),
        ("/ssh/devbox:22", &[("Sec-WebSocket-Key", "")], &no_key),
        ("/ssh/devbox:22", &[("Sec-WebSocket-Key", "AAAA")], &no_key),
        ("/ssh/devbox:22", &[("Sec-WebSocket-Protocol", "chat")], &no_subprotocol),
        ("/ssh/devbox:22", &[("Sec-WebSocket-Protocol", "")], &no_subprotocol),
        ("/ssh/devbox:22", &[("Content-Length", "5")], &content),
        ("/ssh/devbox:22", &[("Transfer-Encoding", "chunked")], &content),
        (
            "/ssh/devbox:22",
            &[("Origin", "https://example.com")],
            &refused(RefusalReason::OriginRefused),
        ),
        ("/ssh/other:22", &[], &refused(RefusalReason::NotAllowed)),
    ] {
        let answer = proxy.client(upgrade(path, fields)).rest_as_text();
        assert_eq!(answer, *expected, "{path} {fields:?}");
    }
    for path in ["/", "/sshx/devbox:22", "/devbox:22"] {
        let answer = proxy.client(upgrade(path, &[])).rest_as_text();
        assert!(
            answer.starts_with("HTTP/1.1 405 only CONNECT is served here\r\n"),
            "{answer}"
        );
    }
    for path in [
        "/ssh/devbox",
        "/ssh/%64evbox:22",
        "/ssh/devbox:22?x",
        "/ssh/../devbox:22",
    ] {
        let answer = proxy.client(upgrade(path, &[])).rest_as_text();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{path}: {answer}");
    }
    target.expect_no_connection();
}

#[test]
fn without_the_setting_no_websocket_is_served() {
    let target = Target::listen();
    let proxy = Proxy::start(&allow(&[("devbox:22", target.address())]));
    let answer = proxy.client(upgrade("/ssh/devbox:22", &[])).rest_as_text();
    assert!(
        answer.starts_with("HTTP/1.1 405 only CONNECT is served here\r\n"),
        "{answer}"
    );
}

#[test]
fn bytes_pass_both_ways_in_frames_of_any_form_and_an_end_is_a_close() {
    let target = Target::listen();
    let proxy = proxy_to(target.address());
    // The first frames come with the request.
    let early = [
        upgrade("/ssh/devbox%3A22", &[]).into_bytes(),
        frame(0x02, b"ear"),
        frame(0x80, b"ly"),
    ]
    .concat();
    let mut client = proxy.client(early);
    client.expect(ACCEPTED);
    let mut service = target.accept();
    service.expect("early");
    service.send("down");
    client.expect(of_server(0x82, b"down"));
    // A message in pieces, with control frames between them and within a write.
    for byte in [
        frame(0x02, b"a"),
        frame(0x89, b"?"),
        frame(0x00, b""),
        frame(0x8a, b""),
        frame(0x80, b"b"),
    ]
    .concat()
    {
        client.send([byte]);
    }
    client.expect(of_server(0x8a, b"?"));
    service.expect("ab");
    // The close of a client is the end of its direction, and the answer comes after the last byte of the other.
    client.send(frame(0x88, &close(1000, "bye")));
    service.expect_end();
    service.send("last words");
    client.expect(of_server(0x82, b"last words"));
    drop(service);
    client.expect(of_server(0x88, &close(1000, "")));
    client.expect_end();
    proxy.settles("tunnels_closed_total{by=\"client\",reason=\"eof\"}", 1.0);
    // The other way round.
    let mut client = open(&proxy);
    drop(target.accept());
    client.expect(of_server(0x88, &close(1000, "")));
    client.send(frame(0x88, &close(1000, "")));
    client.expect_end();
    proxy.settles("tunnels_closed_total{by=\"target\",reason=\"eof\"}", 1.0);
    // A client that is cut off has not finished.
    let mut client = open(&proxy);
    let mut service = target.accept();
    client.finish();
    service.expect_reset();
    proxy.settles("tunnels_closed_total{by=\"client\",reason=\"reset\"}", 1.0);
}

/// The forms of them are among the cases of the public suite.
#[test]
fn a_violation_resets_the_target_and_is_counted() {
    let target = Target::listen();
    let proxy = proxy_to(target.address());
    for (bytes, code) in [
        (vec![0x82, 0x01, b'x'], 1002_u16),
        (vec![0x82, 0xfe, 0, 1, 0, 0, 0, 0, b'x'], 1002),
        (frame(0x81, b"text"), 1003),
        (frame(0x88, &[3, 0xe8, 0xff]), 1007),
    ] {
        let mut client = open(&proxy);
        let mut service = target.accept();
        client.send(&bytes);
        let (first, payload) = read_frame(&mut client);
        assert_eq!((first, &payload[..2]), (0x88, &code.to_be_bytes()[..]), "{bytes:?}");
        client.ends();
        service.expect_reset();
    }
    proxy.settles("tunnels_closed_total{by=\"client\",reason=\"corrupted\"}", 4.0);
}

/// Its pongs are read, so that nothing but the budget can end it.
#[test]
fn a_flood_of_pings_or_empty_frames_is_closed_with_its_status_and_others_go_on() {
    let echo = Echo::listen();
    let proxy = proxy_to(echo.address());
    let mut bystander = open(&proxy);
    for flood in [frame(0x89, b""), frame(0x82, b"")] {
        let mut client = open(&proxy);
        let mut writer = client.again();
        let flooding = std::thread::spawn(move || while writer.try_send(flood.repeat(1000)).is_ok() {});
        let end = std::iter::repeat_with(|| read_frame(&mut client)).find(|next| *next != (0x8a, Vec::new()));
        let reason = close(1008, "too many WebSocket frames are pings or empty");
        assert_eq!(end, Some((0x88, reason)));
        drop(client);
        flooding.join().unwrap();
        bystander.send(frame(0x82, b"on"));
        bystander.expect(of_server(0x82, b"on"));
    }
    proxy.settles("tunnels_closed_total{by=\"client\",reason=\"corrupted\"}", 2.0);
}

/// Close codes are echoed, and only the one of a normal closure is the end of a complete stream.
#[test]
fn a_close_with_a_status_is_echoed() {
    let echo = Echo::listen();
    let proxy = proxy_to(echo.address());
    let mut client = open(&proxy);
    client.send([frame(0x82, b"x"), frame(0x88, &close(1000, "why"))].concat());
    client.expect(of_server(0x82, b"x"));
    client.expect(of_server(0x88, &close(1000, "")));
    client.expect_end();
    // These say that something may be missing, as a load balancer does that goes away: the target is reset.
    let target = Target::listen();
    let aborted = proxy_to(target.address());
    for code in [1001, 1011, 3000, 4999] {
        let mut client = open(&aborted);
        let mut service = target.accept();
        client.send(frame(0x88, &close(code, "")));
        client.expect(of_server(0x88, &close(code, "")));
        client.ends();
        service.expect_reset();
    }
    let mut client = open(&proxy);
    client.send(frame(0x88, b""));
    client.expect(of_server(0x88, b""));
    client.expect_end();
}

/// A frame of 16 MiB is passed on while it arrives: the client sends more of it only after the first bytes are back.
#[test]
fn a_frame_of_16_mib_is_not_waited_for() {
    let echo = Echo::listen();
    let proxy = proxy_to(echo.address());
    let mut client = open(&proxy);
    let huge = frame(0x82, &vec![5; 16 << 20]);
    let mut writer = client.again();
    writer.send(&huge[..14 + 1000]);
    let mut received = payload(&mut client, 1000);
    let rest = std::thread::spawn(move || writer.send(&huge[14 + 1000..]));
    received.extend(payload(&mut client, (16 << 20) - 1000));
    rest.join().unwrap();
    assert!(received.iter().all(|byte| *byte == 5));
}

#[test]
fn a_drain_closes_with_the_status_of_a_restart_and_the_reason() {
    let target = Target::listen();
    let settings = format!(
        "{LISTEN}ssh_only: false\ndrain: {{delay: 0s, timeout: 0s, spread: 0s}}\n{}",
        allow(&[("devbox:22", target.address())])
    );
    let proxy = Proxy::start(&settings);
    let mut client = open(&proxy);
    let _service = target.accept();
    proxy.stop();
    client.expect(of_server(0x88, &close(1012, "the proxy is shutting down, try again")));
    client.ends();
}

#[test]
fn only_a_trusted_balancer_names_the_client() {
    let target = Target::listen();
    let listen = |websocket: &str| {
        let settings = format!(
            "listen: {{address: \"127.0.0.1:0\", {websocket}}}\nssh_only: false\n\
             limits: {{client: {{max_tunnels: 1, connects_per_second: unlimited}}}}\n{}",
            allow(&[("devbox:22", target.address())])
        );
        Proxy::start(&settings)
    };
    let of = |address| upgrade("/ssh/devbox:22", &[("X-Forwarded-For", address)]);
    let proxy = listen("websocket: {path: /ssh}, trusted_proxies: [127.0.0.0/8]");
    let (mut first, mut second) = (proxy.client(of("192.0.2.1")), proxy.client(of("6.6.6.6, 198.51.100.2")));
    first.expect(ACCEPTED);
    second.expect(ACCEPTED);
    let answer = proxy.client(of("7.7.7.7,198.51.100.2")).rest_as_text();
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
    let proxy = listen("websocket: {path: /ssh}, trusted_proxies: [192.0.2.0/24]");
    let mut first = proxy.client(of("192.0.2.1"));
    first.expect(ACCEPTED);
    let answer = proxy.client(of("192.0.2.2")).rest_as_text();
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
}
