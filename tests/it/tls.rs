//! TLS on the public port, with real peers: handshakes, streams and their ends, and what plain clients are told.

mod certificates;
pub(crate) mod client;
mod passthrough;
mod records;
mod revocation;
mod settings;

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use crate::harness::authority::{Authority, Issued};
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings};
use crate::harness::proxy::Proxy;
use crate::harness::target::Target;
use crate::harness::{allow, eventually, refusal, refused, request};
use client::{answer, config, connect, open, run, text};
use serde_json::Value;
use switchboard::tunnel::outcome::RefusalReason;

/// A port with that mode, these certificates, and further settings of the section `tls`.
fn settings(mode: &str, certificates: &[&Issued], more: &str) -> String {
    let certificates: Vec<_> = certificates.iter().map(|issued| issued.setting()).collect();
    format!(
        "ssh_only: false\nlisten: {{address: \"127.0.0.1:0\", tls: {mode}}}\ntls: {{certificates: [{}], poll: 20ms{more}}}\n",
        certificates.join(", ")
    )
}

fn failures(proxy: &impl Ports, cause: &str) -> f64 {
    proxy
        .scrape()
        .value(&format!("tls_handshake_failures_total{{cause=\"{cause}\"}}"))
}

#[track_caller]
fn fails(proxy: &impl Ports, cause: &str) {
    eventually(
        &format!(
            "{cause} instead of {:?}",
            proxy.scrape().counted("tls_handshake_failures_total")
        ),
        || (failures(proxy, cause) == 1.0).then_some(()),
    );
    proxy.settles("connect_requests_total{code=\"499\",reason=\"tls_handshake\"}", 1.0);
}

#[test]
fn one_port_serves_tls_and_plain_clients() {
    let (authority, target) = (Authority::new(), Target::listen());
    let server = authority.server("server", &["proxy.example.com"]);
    let proxy = Proxy::start(&(settings("optional", &[&server], "") + &allow(&[("devbox:22", target.address())])));
    let (mut plain, mut service) = proxy.tunnel("devbox:22", &target);
    plain.send("plain");
    service.expect("plain");
    let mut client = connect(proxy.public(), &config(&authority, None), "proxy.example.com").unwrap();
    open(&mut client, "devbox:22");
    let mut service = target.accept();
    client.write_all(b"up").unwrap();
    service.expect("up");
    service.send("down");
    let mut read = [0; 4];
    client.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"down");
    // An end of stream is passed on, and leaves the other direction open.
    service.finish();
    assert_eq!(client.read(&mut read).unwrap(), 0, "a close_notify");
    client.write_all(b"more").unwrap();
    service.expect("more");
    client.conn.send_close_notify();
    client.conn.complete_io(&mut client.sock).ok();
    service.expect_end();
    proxy.settles("tunnels_closed_total{by=\"target\",reason=\"eof\"}", 1.0);
    let mut client = connect(proxy.public(), &config(&authority, None), "proxy.example.com").unwrap();
    assert_eq!(answer(&mut client, "other:22"), refused(RefusalReason::NotAllowed));
}

/// The memory of a tunnel when neither side reads: 64 KiB each way, as much that came with it and is still encrypted,
/// and what keeps both open. The 512 KiB of sixteen directions leave room in that for a hundred tunnels.
const MAX_BYTES_PER_TUNNEL: f64 = (3 * 64 + 64) as f64 * 1024.0;

fn a_hundred_stalled_bulk_tunnels_hold_no_more_than_is_documented() {
    const TUNNELS: u8 = 100;
    let (authority, target) = (Authority::new(), Target::listen());
    let issued = authority.server("server", &["proxy.example.com"]);
    let list = allow(&[("devbox:22", target.address())]);
    let server = Server::with(&Settings::new(&(settings("required", &[&issued], "") + &list)));
    let config = config(&authority, None);
    let tunnel = || {
        let mut client = connect(server.public(), &config, "proxy.example.com").unwrap();
        open(&mut client, "devbox:22");
        (client, target.accept())
    };
    let resident = || server.scrape().values["process_resident_memory_bytes"];
    // Memory that the first tunnels take once is not the others'.
    for _ in 0..4 {
        let (mut client, mut service) = tunnel();
        client.write_all(&[b'x'; 1 << 17]).unwrap();
        service.expect([b'x'; 1 << 17]);
        service.send([b'x'; 1 << 17]);
        client.read_exact(&mut [0; 1 << 17]).unwrap();
    }
    let before = resident();
    // Each end sends until its socket is full, and reads nothing.
    let filling: Vec<_> = (0..TUNNELS)
        .map(|_| {
            let (mut client, mut service) = tunnel();
            thread::spawn(move || {
                while service.send_what_fits(&[b'x'; 1 << 16]) > 0 {}
                client.sock.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
                while client.write_all(&[b'x'; 1 << 16]).is_ok() {}
                (client, service)
            })
        })
        .collect();
    let stalled: Vec<_> = filling.into_iter().map(|filling| filling.join().unwrap()).collect();
    let each = (resident() - before) / f64::from(TUNNELS);
    eprintln!("{each:.0} bytes for each of {TUNNELS} stalled tunnels");
    assert!(each < MAX_BYTES_PER_TUNNEL, "{each}");
    drop(stalled);
    server.settles("connections_active", 0.0);
}

#[test]
fn an_end_without_close_notify_is_an_end_and_a_reset_is_a_reset() {
    let (authority, target) = (Authority::new(), Target::listen());
    let server = authority.server("server", &[]);
    let proxy = Proxy::start(&(settings("optional", &[&server], "") + &allow(&[("devbox:22", target.address())])));
    let mut client = connect(proxy.public(), &config(&authority, None), "127.0.0.1").unwrap();
    open(&mut client, "devbox:22");
    let mut service = target.accept();
    client.write_all(b"the ending").unwrap();
    client.sock.shutdown(Shutdown::Write).unwrap();
    service.expect("the ending");
    service.expect_end();
    let mut client = connect(proxy.public(), &config(&authority, None), "127.0.0.1").unwrap();
    open(&mut client, "devbox:22");
    target.accept().reset();
    let error = client.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    let mut client = connect(proxy.public(), &config(&authority, None), "127.0.0.1").unwrap();
    open(&mut client, "devbox:22");
    let mut service = target.accept();
    Peer::of(client.sock).reset();
    service.expect_reset();
}

/// It ends with a close_notify, as one that had begun does: else the client would take it for a cut.
#[test]
fn an_end_of_the_target_before_its_first_line_is_an_end() {
    let (authority, target) = (Authority::new(), Target::listen());
    let server = authority.server("server", &[]);
    let settings = settings("optional", &[&server], "") + &allow(&[("devbox:22", target.address())]);
    let proxy = Proxy::start(&settings.replace("ssh_only: false", "ssh_only: true"));
    let mut client = connect(proxy.public(), &config(&authority, None), "127.0.0.1").unwrap();
    open(&mut client, "devbox:22");
    client.write_all(b"SSH-2.0-client\r\nand more").unwrap();
    let mut service = target.accept();
    service.expect("SSH-2.0-client\r\n");
    service.finish();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

/// A host in between can cut a connection, by a FIN to both sides.
#[test]
fn an_end_in_the_middle_of_a_record_is_no_end() {
    let (authority, target) = (Authority::new(), Target::listen());
    let server = authority.server("server", &[]);
    let proxy = Proxy::start(&(settings("optional", &[&server], "") + &allow(&[("devbox:22", target.address())])));
    let mut cut = 0.0;
    for (size, missing) in [(0, 1), (100, 1), (100, 50), (16_384, 16_384)] {
        let mut client = connect(proxy.public(), &config(&authority, None), "127.0.0.1").unwrap();
        open(&mut client, "devbox:22");
        let mut service = target.accept();
        client.write_all(b"whole").unwrap();
        service.expect("whole");
        client.conn.writer().write_all(&vec![b'x'; size]).unwrap();
        if size == 0 {
            client.conn.send_close_notify();
        }
        let mut records = Vec::new();
        client.conn.write_tls(&mut records).unwrap();
        records.truncate(records.len() - missing);
        client.sock.write_all(&records).unwrap();
        client.sock.shutdown(Shutdown::Write).unwrap();
        service.expect_reset();
        // The client has lost its tunnel, too.
        let error = client.sock.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        cut += 1.0;
        proxy.settles("tunnels_closed_total{by=\"client\",reason=\"truncated\"}", cut);
    }
    assert_eq!(proxy.scrape().counted("tunnels_closed_total").len(), 1);
}

#[test]
fn openssl_speaks_both_versions_and_resumes_both() {
    let authority = Authority::new();
    let server = authority.server("server", &["proxy.example.com"]);
    let proxy = Proxy::start(&settings("optional", &[&server], ""));
    let (address, ca) = (proxy.public().to_string(), authority.ca());
    let (saved, asked) = (authority.path("session"), request("unknown:22"));
    for (option, version) in [("-tls1_2", "1.2"), ("-tls1_3", "1.3")] {
        let common = [
            "s_client",
            "-connect",
            &address,
            option,
            "-CAfile",
            text(&ca),
            "-ign_eof",
        ];
        // proxytunnel sends an address as a name, which it must not be (RFC 6066 section 3).
        let first = [&common[..], &["-sess_out", text(&saved), "-servername", "127.0.0.1"]].concat();
        let said = run("openssl", &first, &asked);
        assert!(said.contains("Verify return code: 0 (ok)"), "{said}");
        assert!(
            said.contains(&format!("403 {}", RefusalReason::NotAllowed.phrase())),
            "{said}"
        );
        let again = [&common[..], &["-sess_in", text(&saved), "-servername", "127.0.0.1"]].concat();
        let said = run("openssl", &again, &asked);
        assert!(said.contains("Reused, TLSv1."), "{said}");
        for resumed in [false, true] {
            let series = format!("tls_handshakes_total{{resumed=\"{resumed}\",version=\"{version}\"}}");
            assert_eq!(proxy.scrape().value(&series), 1.0, "{series}");
        }
    }
    let old = [
        "s_client",
        "-connect",
        &address,
        "-tls1_1",
        "-cipher",
        "DEFAULT:@SECLEVEL=0",
    ];
    let said = run("openssl", &old, "");
    assert!(said.contains("SSL alert number"), "{said}");
    fails(&proxy, "incompatible");
    // Its first protocol is unknown; it gets its second.
    let alpn = ["s_client", "-connect", &address, "-alpn", "x,http/1.1", "-ign_eof"];
    let said = run("openssl", &alpn, &asked);
    assert!(said.contains("ALPN protocol: http/1.1"), "{said}");
}

#[test]
fn curl_shows_a_certificate_and_the_log_names_its_subject() {
    let (authority, target) = (Authority::new(), Target::listen());
    let server = authority.server("server", &[]);
    let alice = authority.client("alice", &["alice@example.com", "al@example.com"], 7);
    let auth = format!(", client_auth: optional, client_ca: \"{}\"", authority.ca().display());
    let allowed = format!(
        "allowlist: {{static: [{{name: \"devbox:22\", addresses: [\"{}\"], allowed_clients: [x, alice@example.com]}}]}}\n",
        target.address()
    );
    let mut server = Server::with(&Settings::new(&(settings("optional", &[&server], &auth) + &allowed)));
    let (proxy, ca) = (format!("https://{}", server.public()), authority.ca());
    let serving = thread::spawn(move || {
        let mut service = target.accept();
        service.read_once();
        service.send("HTTP/1.0 200 OK\r\n\r\nthe page");
        service.finish();
    });
    let common = [
        "-sS",
        "-p",
        "-x",
        &proxy,
        "--proxy-cacert",
        text(&ca),
        "http://devbox:22/",
    ];
    let shown = ["--proxy-cert", text(&alice.cert), "--proxy-key", text(&alice.key)];
    assert_eq!(run("curl", &[&common[..], &shown].concat(), ""), "the page");
    serving.join().unwrap();
    let mut line = || -> Value { serde_json::from_str(&server.process.stdout.next().unwrap()).unwrap() };
    let told = line();
    assert_eq!(told["tls.client.subject"], "CN=alice", "{told}");
    assert_eq!(told["tls.client.names"], "alice@example.com,al@example.com");
    assert_eq!((&told["tls.version"], &told["status"]), (&"1.3".into(), &200.into()));
    // Another name, no name, and no TLS at all.
    let said = run("curl", &common, "");
    assert!(said.contains("403"), "{said}");
    let told = line();
    assert_eq!(
        (&told["reason"], &told["status"]),
        (&"client_not_allowed".into(), &403.into()),
        "{told}"
    );
    assert_eq!(
        (&told["tls.version"], &told["tls.client.subject"]),
        (&"1.3".into(), &"".into())
    );
    let bob = authority.client("bob", &[], 8);
    let mut client = connect(server.public(), &config(&authority, Some(&bob)), "127.0.0.1").unwrap();
    assert_eq!(
        answer(&mut client, "devbox:22"),
        refused(RefusalReason::ClientNotAllowed)
    );
    let phrase = "the target requires a client certificate";
    assert_eq!(
        server.answer("devbox:22"),
        refusal(403, phrase, "http_request_denied", "")
    );
}
#[test]
fn a_tls_handshake_ends_at_its_deadline_and_garbage_at_once() {
    let authority = Authority::new();
    let server = authority.server("server", &[]);
    let hurried = settings("optional", &[&server], "") + "timeouts: {tls_handshake: 1s}\n";
    let proxy = Proxy::start(&hurried);
    // The first byte of a record, and no other.
    proxy.client([0x16]).expect_end();
    fails(&proxy, "timeout");
    let mut garbage = proxy.client(b"\x16\x03\x01\x00\x04\x01\x00\x00\x00");
    assert_eq!(garbage.rest(), [21, 3, 3, 0, 2, 2, 50], "the alert decode_error");
    proxy.settles("tls_handshake_failures_total{cause=\"not_tls\"}", 1.0);
    let mut leaving = proxy.client([0x16, 3]);
    leaving.finish();
    leaving.expect_end();
    proxy.settles("tls_handshake_failures_total{cause=\"client_disconnected\"}", 1.0);
    // The head's deadline counts from the accept: a handshake does not restart it.
    let slow = settings("optional", &[&server], "") + "timeouts: {request_header: 1s, tls_handshake: 1m}\n";
    let proxy = Proxy::start(&slow);
    proxy.client([0x16]).expect_end();
    fails(&proxy, "timeout");
    assert_eq!(
        proxy.client("P").rest_as_text(),
        refused(RefusalReason::RequestHeaderTimeout)
    );
}

#[test]
fn plain_clients_of_a_tls_port_are_told_to_use_tls() {
    let authority = Authority::new();
    let server = authority.server("server", &[]);
    let proxy = Proxy::start(&settings("required", &[&server], ""));
    let wants_tls = refusal(
        400,
        "this port requires TLS: use an https:// proxy",
        "http_request_error",
        "",
    );
    for bytes in [request("devbox:22").as_str(), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "x"] {
        assert_eq!(proxy.client(bytes).rest_as_text(), wants_tls);
    }
    proxy.settles("connect_requests_total{code=\"400\",reason=\"tls_required\"}", 3.0);
    for proxy in [
        proxy,
        Proxy::start(&settings("optional", &[&server], "")),
        Proxy::start(""),
    ] {
        let port = proxy.public().port().to_string();
        let options = [
            "-F",
            "/dev/null",
            "-o",
            "BatchMode=yes",
            "-o",
            "StrictHostKeyChecking=no",
            "-p",
            &port,
            "127.0.0.1",
        ];
        let said = run("ssh", &options, "");
        let expected = format!(
            "Received disconnect from 127.0.0.1 port {port}:2: this is an HTTP CONNECT proxy: set a ProxyCommand"
        );
        assert!(said.contains(&expected), "{said}");
    }
}

tests_in! { measured: a_hundred_stalled_bulk_tunnels_hold_no_more_than_is_documented }
