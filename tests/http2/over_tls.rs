//! HTTP/2 over TLS, where ALPN chooses it.

use std::thread;

use crate::authority::Authority;
use crate::harness::allow;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings};
use crate::harness::target::{Echo, Target};
use crate::peer::Peer;

#[test]
fn alpn_chooses_it_and_its_tunnels_are_those_of_the_plain_one() {
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
