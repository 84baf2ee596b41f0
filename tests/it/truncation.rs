//! A download that the proxy cuts off, by a drain or otherwise, does not look complete to its client.

use std::io::{ErrorKind, Read};
use std::thread;
use std::time::Duration;

use crate::harness::allow;
use crate::harness::authority::Authority;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Process, Server, Settings, switchboard};
use crate::harness::target::Target;
use crate::http2;
use crate::tls;
use rustix::process::Signal;

/// A process whose drain cuts every tunnel off at once, on a port for every protocol.
fn server(authority: &Authority, target: &Target) -> Server {
    Server::with(&Settings::new(&format!(
        "listen: {{address: \"127.0.0.1:0\", tls: optional}}\ntls: {{certificates: [{}]}}\n\
         drain: {{delay: 0s, timeout: 0s, spread: 0s}}\n{}",
        authority.server("server", &["localhost"]).setting(),
        allow(&[("devbox:22", target.address())])
    )))
}

/// Sends lines without end. No faster than a client on a busy machine reads them: one that has taken nothing for half a second
/// when the proxy ends its tunnel is not told why.
fn pours(mut service: Peer) {
    thread::spawn(move || {
        while service.try_send(b"one line of many\n".repeat(100)).is_ok() {
            thread::sleep(Duration::from_millis(5));
        }
    });
}

/// `connect` by that scheme.
fn connect(scheme: &str, server: &Server, authority: &Authority) -> Process {
    let proxy = format!("{scheme}://localhost:{}", server.public().port());
    let ca = authority.ca();
    let trust = ["--ca", ca.to_str().unwrap()];
    let trust = if scheme == "https" { &trust[..] } else { &[] };
    let connect = ["connect", "--proxy", &proxy, "devbox:22"];
    Process::spawn(switchboard(&[&connect, trust].concat()))
}

#[test]
fn a_download_that_a_drain_cuts_off_is_an_error_of_the_client() {
    let authority = Authority::new();
    for scheme in ["http", "https"] {
        let target = Target::listen();
        let mut server = server(&authority, &target);
        let mut client = connect(scheme, &server, &authority);
        pours(target.accept());
        client.stdout.next().unwrap();
        server.process.signal(Signal::TERM);
        assert_eq!(client.exit_status(), 1);
        let said = client.stderr.rest().join("\n");
        let expected = "the proxy ended the session: the proxy is shutting down";
        assert!(said.contains(expected), "{scheme}: {said}");
        assert_eq!(server.process.exit_status(), 3);
    }
}

/// A close_notify, and even a FIN without one, would pass for the end.
#[test]
fn a_tls_session_that_is_cut_off_ends_without_a_close_notify_and_without_a_fin() {
    let (authority, target) = (Authority::new(), Target::listen());
    let mut server = server(&authority, &target);
    let config = tls::client::config(&authority, None);
    let mut client = tls::client::connect(server.public(), &config, "localhost").unwrap();
    tls::client::open(&mut client, "devbox:22");
    let service = target.accept();
    service.again().send("begun");
    let mut begun = [0; 5];
    client.read_exact(&mut begun).unwrap();
    server.process.signal(Signal::TERM);
    let error = client.read(&mut begun).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    assert_eq!(server.process.exit_status(), 3);
    drop(service);
}

/// The bytes that the proxy has read of a download are delivered before the reset.
#[test]
fn bytes_in_front_of_a_cut_arrive() {
    let authority = Authority::new();
    let bytes: Vec<u8> = (0..30_000_u32)
        .flat_map(|line| format!("{line}\n").into_bytes())
        .collect();
    for scheme in ["http", "https"] {
        let target = Target::listen();
        let mut server = server(&authority, &target);
        let mut client = connect(scheme, &server, &authority);
        let mut service = target.accept();
        service.send(&bytes);
        let counted =
            r#"tunnel_bytes_total{direction="download",target_namespace="static",target_service="devbox:22"}"#;
        server.settles(counted, bytes.len() as f64);
        server.process.signal(Signal::TERM);
        let lines: Vec<_> = client.stdout.rest();
        assert_eq!(lines.len(), 30_000, "{scheme}");
        assert_eq!(client.exit_status(), 1);
        assert_eq!(server.process.exit_status(), 3);
    }
}

/// A stream of HTTP/2 is reset, and does not look complete either.
#[test]
fn bytes_in_front_of_a_cut_arrive_over_http_2_in_front_of_a_reset() {
    let (authority, target) = (Authority::new(), Target::listen());
    let mut server = server(&authority, &target);
    let mut client = http2::peer::Peer::connect_over_tls(server.public(), &authority.ca());
    client.open(1, "devbox:22");
    // In one frame that hyper-h2 tells the bytes of.
    let bytes = b"one line of many\n".repeat(60);
    let mut service = target.accept();
    service.send(&bytes);
    let counted = r#"tunnel_bytes_total{direction="download",target_namespace="static",target_service="devbox:22"}"#;
    server.settles(counted, bytes.len() as f64);
    server.process.signal(Signal::TERM);
    client.expect(1, &bytes);
    client.event("reset", 1);
    assert_eq!(server.process.exit_status(), 3);
}
