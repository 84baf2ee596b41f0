//! Users by client certificates: one that is revoked ends its tunnels, by every version of HTTP.

use std::fs;
use std::io::{Read, Write};

use serde_json::Value;

use crate::harness::authority::Authority;
use crate::harness::eventually;
use crate::harness::peer::Peer as Upstream;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings};
use crate::harness::target::Target;
use crate::http2::peer::Peer;
use crate::tls::client::{config, connect, open};

/// The settings of a TLS port and of one target, which both users may reach. The API server is not asked about it.
fn settings(authority: &Authority, target: &Target, mode: &str) -> Settings {
    let issued = authority.server("server", &["localhost"]);
    let kubeconfig = authority.path("kubeconfig");
    fs::write(
        &kubeconfig,
        "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: \"http://127.0.0.1:9\"}}]\n\
         users: [{name: a, user: {}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n",
    )
    .unwrap();
    let address = target.address();
    Settings::new(&format!(
        "ssh_only: false\nlisten: {{address: \"127.0.0.1:0\", tls: required}}\n\
         tls: {{certificates: [{}], client_auth: optional, client_ca: \"{}\", crl: \"{}\", poll: 50ms}}\n\
         access: {{mode: {mode}, kubernetes: {{enabled: true, kubeconfig: \"{}\", watch_rbac: false}}}}\n\
         allowlist: {{static: [{{name: \"box:22\", addresses: [\"{address}\"], allowed_users: [alice, bob]}}]}}\n",
        issued.setting(),
        authority.ca().display(),
        authority.revoke(&[]).display(),
        kubeconfig.display(),
    ))
}

const CLOSED: &str = r#"tunnels_closed_total{by="proxy",reason="access_revoked"}"#;

#[test]
fn a_revoked_certificate_ends_the_tunnels_of_its_user_and_no_others() {
    let (authority, target) = (Authority::new(), Target::listen());
    let [alice, bob] = [("alice", 5), ("bob", 6)].map(|(name, serial)| authority.client(name, &[], serial));
    let mut server = Server::with(&settings(&authority, &target, "enforce"));
    let mut ends: Vec<(_, Upstream)> = Vec::new();
    for shown in [&alice, &bob] {
        let mut client = connect(server.public(), &config(&authority, Some(shown)), "127.0.0.1").unwrap();
        open(&mut client, "box:22");
        ends.push((client, target.accept()));
    }
    let mut peers = [&alice, &bob].map(|shown| Peer::connect_over_tls_as(shown, server.public(), &authority.ca()));
    let mut behind = Vec::new();
    for peer in &mut peers {
        peer.open(1, "box:22");
        behind.push(target.accept());
    }
    authority.revoke(&[5]);
    let closed: [Value; 2] = std::array::from_fn(|_| {
        let line = server.process.stdout.find("\"access_revoked\"");
        serde_json::from_str(&line).unwrap()
    });
    let mut versions = closed.each_ref().map(|line| line["http.version"].as_str().unwrap());
    versions.sort_unstable();
    assert_eq!(versions, ["1", "2"]);
    for line in &closed {
        assert_eq!(
            (&line["user.name"], &line["closed_by"]),
            (&"alice".into(), &"proxy".into())
        );
        assert_eq!(line["auth.method"], "certificate");
    }
    server.settles(CLOSED, 2.0);
    let [(mut alices, mut upstream), (mut bobs, mut other)] = <[_; 2]>::try_from(ends).unwrap();
    // A cut, and no end of stream by TLS, which would look complete.
    assert!(alices.read_to_end(&mut Vec::new()).is_err());
    upstream.rest_before_reset();
    bobs.write_all(b"still here").unwrap();
    other.expect("still here");
    let [mut alices, mut bobs] = peers;
    assert_eq!(alices.any(1)["event"], "reset");
    bobs.send(1, "still here");
    behind[1].expect("still here");
    // The connection of the revoked certificate gets no other tunnel.
    alices.ask(3, "box:22");
    let answer = eventually("an answer", || Some(alices.any(3)));
    assert_ne!(answer["headers"][":status"], "200", "{answer}");
}

#[test]
fn a_revoked_certificate_ends_no_tunnel_where_rights_are_only_reported() {
    let (authority, target) = (Authority::new(), Target::listen());
    let alice = authority.client("alice", &[], 5);
    let mut server = Server::with(&settings(&authority, &target, "report"));
    let mut client = connect(server.public(), &config(&authority, Some(&alice)), "127.0.0.1").unwrap();
    open(&mut client, "box:22");
    let mut upstream = target.accept();
    authority.revoke(&[5]);
    server.process.stderr.find("certificates loaded");
    client.write_all(b"still here").unwrap();
    upstream.expect("still here");
    assert_eq!(server.scrape().value(CLOSED), 0.0);
}

#[test]
fn a_certificate_that_is_revoked_before_the_request_opens_nothing() {
    let (authority, target) = (Authority::new(), Target::listen());
    let alice = authority.client("alice", &[], 5);
    let mut server = Server::with(&settings(&authority, &target, "enforce"));
    let mut client = connect(server.public(), &config(&authority, Some(&alice)), "127.0.0.1").unwrap();
    // The first byte completes the handshake: by TLS 1.3 the client's certificate comes with it.
    client.write_all(b"C").unwrap();
    client.flush().unwrap();
    server.settles("tls_handshakes_total{resumed=\"false\",version=\"1.3\"}", 1.0);
    authority.revoke(&[5]);
    server.process.stderr.find("certificates loaded");
    client
        .write_all(b"ONNECT box:22 HTTP/1.1\r\nHost: box:22\r\n\r\n")
        .unwrap();
    let mut answer = [0; 13];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 403 ");
    server.process.stdout.find("\"certificate_invalidated\"");
}
