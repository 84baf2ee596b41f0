//! HTTP/2 over TLS, where ALPN chooses it.

use std::thread;

use super::peer::Peer;
use crate::harness::allow;
use crate::harness::authority::Authority;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings};
use crate::harness::target::{Echo, Target};

#[test]
fn alpn_selects_http_2_and_its_tunnels_work_as_without_tls() {
    let (authority, echo, target) = (Authority::new(), Echo::listen(), Target::listen());
    let issued = authority.server("server", &["localhost"]);
    let settings = format!(
        "listen: {{address: \"127.0.0.1:0\", tls: optional}}\ntls: {{certificates: [{}]}}\n{}",
        issued.setting(),
        allow(&[("box:22", echo.address()), ("stalled:22", target.address())])
    );
    let mut server = Server::with(&Settings::new(&settings));
    let mut peer = Peer::connect_over_tls(server.public(), &authority.ca());
    let mut plain = Peer::connect(server.public());
    for peer in [&mut peer, &mut plain] {
        peer.open(1, "box:22");
        peer.expect_echo(1);
    }
    peer.tell("mute 3");
    peer.open(3, "stalled:22");
    let mut source = target.accept();
    let stuffing = thread::spawn(move || while source.try_send([0; 65536]).is_ok() {});
    let bytes = 16_u64 << 20;
    peer.tell(&format!("bulk 1 {bytes}"));
    while peer.any(1)["total"].as_u64() != Some(bytes + 10) {}
    peer.tell("end 1");
    let line: serde_json::Value = serde_json::from_str(&server.process.stdout.find("\"eof\"")).unwrap();
    assert_eq!(
        (&line["tls.version"], &line["http.version"]),
        (&"1.3".into(), &"2".into())
    );
    assert_eq!(line["bytes_received"], bytes + 10, "{line}");
    drop(peer);
    stuffing.join().unwrap();
    plain.expect_echo(1);
}

/// A connection lasts for days, and what was shown when it began does not.
#[test]
fn a_revoked_certificate_gets_no_further_tunnel_on_an_open_connection() {
    let (authority, target) = (Authority::new(), Target::listen());
    let issued = authority.server("server", &["localhost"]);
    let [good, other] = [("good", 5), ("other", 6)].map(|(name, serial)| authority.client(name, &[], serial));
    let settings = format!(
        "listen: {{address: \"127.0.0.1:0\", tls: required}}\ntls: {{certificates: [{}], client_auth: required, \
         client_ca: \"{}\", crl: \"{}\", poll: 100ms}}\n{}",
        issued.setting(),
        authority.ca().display(),
        authority.revoke(&[]).display(),
        allow(&[("box:22", target.address())])
    );
    let mut server = Server::with(&Settings::new(&settings));
    let mut peers = [&good, &other].map(|shown| Peer::connect_over_tls_as(shown, server.public(), &authority.ca()));
    let mut before = Vec::new();
    for peer in &mut peers {
        peer.open(1, "box:22");
        before.push(target.accept());
    }
    authority.revoke(&[5]);
    server.process.stderr.find("certificates loaded");
    let [mut revoked, mut welcome] = peers;
    welcome.open(3, "box:22");
    let _server = target.accept();
    revoked.ask(3, "box:22");
    let fields = revoked.expect_status(3, "403");
    let said = fields["proxy-status"].as_str().unwrap();
    assert!(said.contains("no longer valid"), "{said}");
    // The client is told to reconnect, and its open tunnel goes on.
    assert_eq!(revoked.event("goaway", 0)["code"], 0);
    for (peer, mut server) in [&mut revoked, &mut welcome].into_iter().zip(before) {
        server.send("still here");
        peer.expect(1, "still here");
    }
    server.settles(
        "connect_requests_total{code=\"403\",reason=\"certificate_invalidated\"}",
        1.0,
    );
    target.expect_no_connection();
}
