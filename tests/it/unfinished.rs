//! The order of eviction: of the connections without an answer the one that was accepted first goes, whatever it has
//! sent.
//!
//! In each test one client connects, then another, then the first makes progress, then a third connects to a port where
//! two may be without an answer.

use std::io::Write;
use std::net::TcpStream;

use crate::harness::authority::Authority;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::proxy::Proxy;
use crate::harness::target::Target;
use crate::harness::{CONFIRMATION, allow, eventually, refused, request};
use crate::http2::raw::{END_HEADERS, HEADERS, PREFACE, Raw, SETTINGS, connect, frame, goaway_in};
use crate::tls::client::{Client, config, handshake, rest};
use switchboard::tunnel::outcome::RefusalReason;

/// The bounds on connections without an answer: of one client, and of the process.
const BOUNDS: [&str; 2] = ["client", "process"];

/// A proxy where two connections may be without an answer, and the target behind it.
struct Scene {
    proxy: Proxy,
    target: Target,
}

impl Scene {
    fn new(bound: &str, settings: &str) -> Self {
        let target = Target::listen();
        let list = allow(&[("devbox:22", target.address())]);
        let limits = format!("limits: {{{bound}: {{max_unfinished: 2}}}}\n");
        let proxy = Proxy::start(&format!("{settings}{list}{limits}timeouts: {{request_header: 1h}}\n"));
        Self { proxy, target }
    }

    /// Further connections, accepted in this order.
    fn connect<const N: usize>(&self) -> [Peer; N] {
        let accepted = "connections_accepted_total";
        let mut count = self.proxy.scrape().value(accepted);
        [(); N].map(|()| {
            let client = Peer::connect(self.proxy.public());
            count += 1.0;
            self.proxy.settles(accepted, count);
            client
        })
    }

    /// One connection was evicted, and not these: they can still ask for their tunnels.
    #[track_caller]
    fn are_served<const N: usize>(&self, others: [Peer; N]) {
        self.proxy
            .settles(r#"connect_requests_total{code="503",reason="evicted"}"#, 1.0);
        for mut client in others {
            client.send(request("devbox:22"));
            client.expect(CONFIRMATION);
            self.target.accept();
        }
    }

    /// Waits until the proxy has read all that the client has sent.
    fn has_read(&self, client: &Peer) {
        let public = self.proxy.public();
        eventually("the proxy has read it", || {
            (client.unread_by(public) == 0).then_some(())
        });
    }
}

fn crowded() -> String {
    refused(RefusalReason::Evicted)
}

#[test]
fn the_oldest_request_is_evicted_however_much_of_its_head_has_come() {
    for bound in BOUNDS {
        for progress in [&["CO"][..], &["\r\n", "CONNECT devbox:22 HTTP/1.1\r\n", "Host: dev"]] {
            let scene = Scene::new(bound, "");
            let [mut oldest, second] = scene.connect();
            for part in progress {
                oldest.send(part);
                scene.has_read(&oldest);
            }
            let [third] = scene.connect();
            scene.are_served([second, third]);
            assert_eq!(oldest.rest_as_text(), crowded(), "{bound} {progress:?}");
        }
    }
}

#[test]
fn a_proxy_header_does_not_make_a_connection_younger() {
    let trusting = "listen: {address: \"127.0.0.1:0\", proxy_protocol: required, trusted_proxies: [127.0.0.1/32]}\n";
    let header = "PROXY TCP4 192.0.2.7 198.51.100.1 4321 8080\r\n";
    for bound in BOUNDS {
        let scene = Scene::new(bound, trusting);
        let [mut oldest, mut second] = scene.connect();
        // A client is known by its header only: that of the second comes first.
        for client in [&mut second, &mut oldest] {
            client.send(header);
            scene.has_read(client);
        }
        let [mut third] = scene.connect();
        third.send(header);
        scene.are_served([second, third]);
        assert_eq!(oldest.rest_as_text(), crowded(), "{bound}");
    }
}

/// A port for TLS and for plain clients.
fn with_tls(authority: &Authority) -> String {
    let certificate = authority.server("server", &[]).setting();
    format!("listen: {{address: \"127.0.0.1:0\", tls: optional}}\ntls: {{certificates: [{certificate}]}}\n")
}

/// The oldest connection, when its handshake is complete.
fn secured(scene: &Scene, authority: &Authority, oldest: &Peer, protocol: Option<&[u8]>) -> Client {
    let mut config = (*config(authority, None)).clone();
    config.alpn_protocols = protocol.map(<[u8]>::to_vec).into_iter().collect();
    let client = handshake(TcpStream::from(oldest.again()), &config.into(), "127.0.0.1").unwrap();
    let handshakes = r#"tls_handshakes_total{resumed="false",version="1.3"}"#;
    scene.proxy.settles(handshakes, 1.0);
    client
}

#[test]
fn a_tls_handshake_does_not_make_a_connection_younger() {
    let authority = Authority::new();
    for bound in BOUNDS {
        let scene = Scene::new(bound, &with_tls(&authority));
        let [oldest, second] = scene.connect();
        let mut oldest = secured(&scene, &authority, &oldest, None);
        let [third] = scene.connect();
        scene.are_served([second, third]);
        assert_eq!(String::from_utf8_lossy(&rest(&mut oldest)), crowded(), "{bound}");
    }
}

/// It cannot be told why, as nothing is encrypted yet.
#[test]
fn the_oldest_connection_is_evicted_in_the_middle_of_its_tls_handshake() {
    let authority = Authority::new();
    for bound in BOUNDS {
        let scene = Scene::new(bound, &with_tls(&authority));
        let [mut oldest, second] = scene.connect();
        oldest.send(b"\x16\x03\x01\x02\x00\x01");
        scene.has_read(&oldest);
        let [third] = scene.connect();
        scene.are_served([second, third]);
        oldest.ends();
    }
}

/// The preface (RFC 9113 section 3.4) alone, with what follows it, and with the beginning of a request.
#[test]
fn the_preface_of_http_2_does_not_make_a_connection_younger() {
    let request = frame(HEADERS, END_HEADERS, 1, &connect("devbox:22"));
    for bound in BOUNDS {
        for progress in [
            &b""[..],
            &frame(SETTINGS, 0, 0, b""),
            &[frame(SETTINGS, 0, 0, b""), request[..12].to_vec()].concat(),
        ] {
            let scene = Scene::new(bound, "");
            let [peer, second] = scene.connect();
            let mut oldest = Raw::from(peer.again());
            oldest.send(PREFACE);
            // The proxy answers: the connection is one of HTTP/2 now.
            assert_eq!(oldest.any().kind, SETTINGS);
            oldest.send(progress);
            scene.has_read(&peer);
            let [third] = scene.connect();
            scene.are_served([second, third]);
            assert!(oldest.goaway().is_some(), "{bound} {progress:?}");
        }
    }
}

#[test]
fn the_preface_of_http_2_in_tls_does_not_make_a_connection_younger() {
    let authority = Authority::new();
    for bound in BOUNDS {
        let scene = Scene::new(bound, &with_tls(&authority));
        let [peer, second] = scene.connect();
        let mut oldest = secured(&scene, &authority, &peer, Some(b"h2"));
        oldest
            .write_all(&[PREFACE, &frame(SETTINGS, 0, 0, b"")].concat())
            .unwrap();
        scene.has_read(&peer);
        let [third] = scene.connect();
        scene.are_served([second, third]);
        assert!(goaway_in(&rest(&mut oldest)).is_some(), "{bound}");
    }
}

/// A connection with a tunnel has its answer: the oldest of the others goes.
#[test]
fn a_connection_of_http_2_with_a_tunnel_is_not_evicted() {
    for bound in BOUNDS {
        let scene = Scene::new(bound, "");
        let [oldest] = scene.connect();
        let mut oldest = Raw::begin(oldest);
        oldest.send(&frame(HEADERS, END_HEADERS, 1, &connect("devbox:22")));
        assert_eq!(oldest.next().kind, HEADERS);
        let mut service = scene.target.accept();
        let [mut second, third, fourth] = scene.connect();
        scene.are_served([third, fourth]);
        assert_eq!(second.rest_as_text(), crowded(), "{bound}");
        service.send("still here");
        assert_eq!(oldest.next().payload, b"still here");
        // Nor is a further request a new connection: it is answered beside two that are silent.
        let _silent: [Peer; 2] = scene.connect();
        oldest.send(&frame(HEADERS, END_HEADERS, 3, &connect("devbox:22")));
        let answer = oldest.next();
        assert_eq!((answer.kind, answer.stream), (HEADERS, 3));
    }
}
