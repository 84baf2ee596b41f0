//! TLS that a load balancer passes on by its name (SNI): nobody but the proxy reads it, and the client is known.

use std::io::Write as _;
use std::process::Command;

use serde_json::Value;

use super::client as tls;
use crate::harness::allow;
use crate::harness::authority::Authority;
use crate::harness::ports::Ports as _;
use crate::harness::process::{Server, Settings};
use crate::harness::target::Target;
use crate::websocket::fronts::{Front, Setup, Site, haproxy_with, nginx_with};

fn haproxy(site: &Site<'_>) -> Command {
    haproxy_with(site, include_str!("passthrough/haproxy.cfg"))
}

/// Version 1 of the PROXY header: nginx 1.22 sends no other.
fn nginx(site: &Site<'_>) -> Command {
    nginx_with(site, include_str!("passthrough/nginx.conf"))
}

fn passes_tls_on_by_its_name(setup: Setup) {
    let (authority, target) = (Authority::new(), Target::listen());
    // Both names are in the certificate: only the balancer can refuse one.
    let issued = authority.server("server", &["ssh.example.com", "other.example.com"]);
    let settings = format!(
        "listen: {{address: \"127.0.0.1:0\", tls: required, proxy_protocol: required, trusted_proxies: [127.0.0.1/32]}}\n\
         tls: {{certificates: [{}]}}\n{}",
        issued.setting(),
        allow(&[("a:22", target.address())])
    );
    let mut server = Server::with(&Settings::new(&settings));
    let folder = tempfile::tempdir().unwrap();
    let front = Front::start(setup, server.public(), folder.path().join("front"));
    let config = tls::config(&authority, None);
    let mut stream = tls::connect(front.address, &config, "ssh.example.com").unwrap();
    tls::open(&mut stream, "a:22");
    let mut service = target.accept();
    stream.write_all(b"up").unwrap();
    service.expect("up");
    let port = stream.sock.local_addr().unwrap().port();
    drop((stream, service));
    let line: Value = serde_json::from_str(&server.process.stdout.next().unwrap()).unwrap();
    assert_eq!(
        (&line["client.address"], &line["client.port"]),
        (&"127.0.0.1".into(), &port.into())
    );
    assert!(tls::connect(front.address, &config, "other.example.com").is_err());
}

#[test]
fn haproxy_passes_tls_on_by_its_name_and_names_its_clients() {
    passes_tls_on_by_its_name(haproxy);
}

#[test]
fn nginx_passes_tls_on_by_its_name_and_names_its_clients() {
    passes_tls_on_by_its_name(nginx);
}
