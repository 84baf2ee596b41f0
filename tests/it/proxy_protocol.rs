//! The PROXY protocol: whose header is believed, what becomes of the others, and what HAProxy and we make of each
//! other.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use crate::harness::haproxy::HaProxy;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings};
use crate::harness::proxy::Proxy;
use crate::harness::target::Target;
use crate::harness::{CONFIRMATION, allow, eventually, refused, request};
use serde_json::Value;
use switchboard::tunnel::outcome::RefusalReason;

/// A port that believes these networks.
fn trusting(networks: &str) -> String {
    format!("listen: {{address: \"127.0.0.1:0\", proxy_protocol: required, trusted_proxies: [{networks}]}}\n")
}

/// The process, which leads `a:22` to the target.
fn server(listen: &str, target: SocketAddr) -> Server {
    Server::with(&Settings::new(&format!("{listen}{}", allow(&[("a:22", target)]))))
}

/// Version 2 of a header with these addresses, and an extension.
fn version_2(source: [u8; 6], destination: [u8; 6]) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x13".to_vec();
    header.extend(&source[..4]);
    header.extend(&destination[..4]);
    header.extend(&source[4..]);
    header.extend(&destination[4..]);
    header.extend(b"\x04\0\x04pads");
    header
}

/// The fields of an access line that say whose connection it was.
fn client(line: &str) -> (String, u64, String) {
    let line: Value = serde_json::from_str(line).unwrap();
    let text = |field: &str| line[field].as_str().unwrap().to_owned();
    (
        text("client.address"),
        line["client.port"].as_u64().unwrap(),
        text("network.peer.address"),
    )
}

fn known(address: &str, port: u64) -> (String, u64, String) {
    (address.to_owned(), port, "127.0.0.1".to_owned())
}

#[test]
fn a_trusted_header_names_the_client_however_it_is_chopped() {
    let target = Target::listen();
    let mut server = server(&trusting("10.0.0.0/8, 127.0.0.0/8"), target.address());
    let version_1 = b"PROXY TCP6 2001:db8::1 2001:db8::2 4321 8080\r\n".to_vec();
    let version_2 = version_2([192, 0, 2, 7, 0x10, 0xE1], [198, 51, 100, 1, 0x1F, 0x90]);
    for (header, expected) in [
        (version_1, known("2001:db8::1", 4321)),
        (version_2, known("192.0.2.7", 4321)),
    ] {
        for chop in [1, 2, 13, usize::MAX] {
            let all = [header.as_slice(), request("a:22").as_bytes(), b"early"].concat();
            let mut client_side = Peer::connect(server.public());
            for piece in all.chunks(chop.min(all.len())) {
                client_side.send(piece);
            }
            client_side.expect(CONFIRMATION);
            let mut service = target.accept();
            service.expect("early");
            service.send("back");
            client_side.expect("back");
            drop((client_side, service));
            assert_eq!(client(&server.process.stdout.next().unwrap()), expected, "{chop}");
        }
    }
}

#[test]
fn limits_apply_to_the_client_that_the_header_names() {
    let target = Target::listen();
    let limits = "limits: {client: {max_tunnels: 1}}\n";
    let list = allow(&[("a:22", target.address())]);
    let proxy = Proxy::start(&format!("{}{list}{limits}", trusting("127.0.0.1/32")));
    let ask = |source: &str| proxy.client(format!("PROXY TCP4 {source} 198.51.100.1 1 2\r\n{}", request("a:22")));
    let mut open = Vec::new();
    for source in ["192.0.2.1", "192.0.2.2"] {
        let mut client = ask(source);
        client.expect(CONFIRMATION);
        open.push((client, target.accept()));
        let refused = ask(source).rest_as_text();
        assert!(
            refused.starts_with("HTTP/1.1 429 this client address has reached its tunnel limit"),
            "{refused}"
        );
    }
}

#[test]
fn a_header_without_an_address_leaves_the_sockets_own() {
    let target = Target::listen();
    let mut server = server(&trusting("127.0.0.1/32"), target.address());
    for header in [
        b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n".as_slice(),
        b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
        b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\0",
    ] {
        let mut peer = server.client([header, request("a:22").as_bytes()].concat());
        peer.expect(CONFIRMATION);
        let own = known("127.0.0.1", peer.address().port().into());
        drop((peer, target.accept()));
        assert_eq!(client(&server.process.stdout.next().unwrap()), own);
    }
}

#[test]
fn a_header_from_an_untrusted_address_is_refused() {
    let target = Target::listen();
    let mut server = server(&trusting("10.0.0.0/8"), target.address());
    let spoofed = format!("PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n{}", request("a:22"));
    // An address each: the refusals of one would share a line.
    for (number, bytes) in [(1, spoofed.as_str()), (2, &request("a:22")), (3, "")] {
        let mut peer = Peer::connect_from(Ipv4Addr::new(127, 0, 0, number), server.public());
        peer.send(bytes);
        let address = format!("127.0.0.{number}");
        let own = (address.clone(), peer.address().port().into(), address);
        assert_eq!(peer.rest_as_text(), refused(RefusalReason::UntrustedProxy));
        let line = server.process.stdout.next().unwrap();
        assert_eq!(client(&line), own);
        assert!(
            line.contains(r#""status":403,"reason":"untrusted_proxy","closed_by":"proxy""#),
            "{line}"
        );
    }
    let refused = r#"connect_requests_total{code="403",reason="untrusted_proxy"}"#;
    assert_eq!(server.scrape().value(refused), 3.0);
    target.expect_no_connection();
}

#[test]
fn a_connection_without_a_valid_header_is_refused() {
    let target = Target::listen();
    let proxy = Proxy::start(&(trusting("127.0.0.1/32") + &allow(&[("a:22", target.address())])));
    let mut oversized = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff".to_vec();
    oversized.resize(70_000, 0);
    let answer = refused(RefusalReason::BadProxyHeader);
    let bad = [request("a:22").into_bytes(), oversized];
    for bytes in &bad {
        let mut peer = Peer::connect(proxy.public());
        // The rest of a header that is too long is not awaited.
        peer.try_send(bytes).ok();
        assert_eq!(
            peer.rest_as_text(),
            answer,
            "{}",
            bytes[..20.min(bytes.len())].escape_ascii()
        );
    }
    let refused = r#"connect_requests_total{code="400",reason="bad_proxy_header"}"#;
    let count = f64::from(u32::try_from(bad.len()).unwrap());
    proxy.settles(refused, count);
    target.expect_no_connection();
}

#[test]
fn a_header_has_as_much_time_as_the_head() {
    let target = Target::listen();
    let settings = format!(
        "{}{}timeouts: {{request_header: 300ms}}\n",
        trusting("127.0.0.1/32"),
        allow(&[("a:22", target.address())])
    );
    let proxy = Proxy::start(&settings);
    let answer = refused(RefusalReason::RequestHeaderTimeout);
    for bytes in ["", "PROXY TCP4 1.1.1.1 1.1", "PROXY UNKNOWN\r\nCONNECT a:22 HT"] {
        assert_eq!(proxy.client(bytes).rest_as_text(), answer, "{bytes}");
    }
    // Every byte in time is not enough.
    let mut dripping = Peer::connect(proxy.public());
    let mut sending = dripping.again();
    let drip = thread::spawn(move || {
        for _ in 0..1000 {
            if sending.try_send("P").is_err() {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
    });
    drop(dripping.try_rest());
    drip.join().unwrap();
    proxy.settles("connections_active", 0.0);
}

#[test]
fn a_probe_without_a_request_is_not_logged() {
    let target = Target::listen();
    let mut server = server(&trusting("127.0.0.1/32"), target.address());
    for bytes in [b"".as_slice(), b"PROXY UNKNOWN\r\n", b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"] {
        let mut probe = server.client(bytes);
        probe.finish();
        probe.expect_end();
    }
    server.settles(r#"connect_requests_total{code="499",reason="port_probe"}"#, 3.0);
    // No line for any of them.
    drop(server.client(["PROXY UNKNOWN\r\n", &request("b:22")].concat()).rest());
    assert!(server.process.stdout.next().unwrap().contains("not_allowed"));
}

#[test]
fn a_target_with_send_proxy_protocol_gets_the_header_first() {
    let (one, two) = (Target::listen(), Target::listen());
    let targets = format!(
        "allowlist:\n  static:\n    - {{name: \"a:22\", addresses: [\"{}\"], send_proxy_protocol: v1}}\n    \
         - {{name: \"b:22\", addresses: [\"{}\"], send_proxy_protocol: v2}}\n",
        one.address(),
        two.address()
    );
    let behind = Proxy::start(&(trusting("127.0.0.1/32") + &targets));
    let passed_on = "PROXY TCP4 192.0.2.7 198.51.100.1 4321 8080\r\n";
    let mut client = behind.client(format!("{passed_on}{}early", request("a:22")));
    client.expect(CONFIRMATION);
    one.accept().expect(format!("{passed_on}early"));
    let mut client = behind.client(format!("{passed_on}{}early", request("b:22")));
    client.expect(CONFIRMATION);
    let mut expected = version_2([192, 0, 2, 7, 0x10, 0xE1], [198, 51, 100, 1, 0x1F, 0x90]);
    expected.truncate(28);
    expected[15] = 12;
    expected.extend(b"early");
    two.accept().expect(expected);

    let direct = Proxy::start(&targets);
    let client = direct.open("a:22");
    let (client, public) = (client.address(), direct.public());
    one.accept().expect(format!(
        "PROXY TCP4 127.0.0.1 127.0.0.1 {} {}\r\n",
        client.port(),
        public.port()
    ));
}

#[test]
fn haproxy_downstream_names_its_clients() {
    for keyword in [
        "send-proxy",
        "send-proxy-v2",
        "send-proxy-v2 proxy-v2-options crc32c,unique-id",
    ] {
        let target = Target::listen();
        let mut server = server(&trusting("127.0.0.1/32"), target.address());
        let haproxy = HaProxy::relay(&format!("server s {} {keyword}", server.public()));
        let mut peer = Peer::connect(haproxy.address());
        peer.send(request("a:22"));
        peer.expect(CONFIRMATION);
        let mut service = target.accept();
        let bytes = vec![b'x'; 1 << 20];
        let (mut sending, sent) = (peer.again(), bytes.clone());
        let upload = thread::spawn(move || sending.send(sent));
        service.expect(&bytes);
        upload.join().unwrap();
        service.send("back");
        peer.expect("back");
        let own = known("127.0.0.1", peer.address().port().into());
        drop((peer, service));
        assert_eq!(client(&server.process.stdout.next().unwrap()), own, "{keyword}");
    }
}

#[test]
fn haproxys_health_checks_pass_and_count_as_no_request() {
    let target = Target::listen();
    let server = server(&trusting("127.0.0.1/32"), target.address());
    let check = "check inter 50ms check-send-proxy";
    let _haproxy = HaProxy::relay(&format!("server s {} send-proxy-v2 {check}", server.public()));
    let probes = r#"connect_requests_total{code="499",reason="port_probe"}"#;
    eventually("three health checks", || {
        (server.scrape().value(probes) >= 3.0).then_some(())
    });
    let counted = server.scrape().counted("connect_requests_total");
    assert_eq!(counted.len(), 1, "{counted:?}");
}

#[test]
fn haproxy_upstream_understands_the_header() {
    for version in ["v1", "v2"] {
        let haproxy = HaProxy::naming_clients();
        let targets = format!(
            "allowlist:\n  static:\n    - {{name: \"a:22\", addresses: [\"{}\"], send_proxy_protocol: {version}}}\n",
            haproxy.address()
        );
        let proxy = Proxy::start(&(trusting("127.0.0.1/32") + &targets));
        for (header, told) in [
            (
                "TCP4 192.0.2.7 198.51.100.1 4321 8080",
                "192.0.2.7:4321 198.51.100.1:8080",
            ),
            (
                "TCP6 2001:db8::1 2001:db8::2 4321 8080",
                "2001:db8::1:4321 2001:db8::2:8080",
            ),
        ] {
            let mut client = proxy.client(format!("PROXY {header}\r\n{}", request("a:22")));
            client.expect(CONFIRMATION);
            client.send("GET / HTTP/1.0\r\n\r\n");
            let answer = client.rest_as_text();
            assert!(answer.ends_with(&format!("\r\n\r\n{told}")), "{answer}");
        }
    }
}
