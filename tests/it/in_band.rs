//! Refusals that SSH clients print: a 200 with an SSH disconnect behind it, for the requests of their programs only.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings};
use crate::harness::proxy::Proxy;
use crate::harness::target::{Closed, Target};
use crate::harness::{CONFIRMATION, eventually, request};

const CLIENT: &str = "SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n";

/// The request of nc, ncat, corkscrew, connect-proxy, socat and JSch.
fn minimal(name: &str) -> String {
    format!("CONNECT {name} HTTP/1.0\r\n\r\n")
}

fn proxytunnel(name: &str) -> String {
    format!("CONNECT {name} HTTP/1.1\r\nHost: 127.0.0.1\r\nProxy-Connection: Keep-Alive\r\n\r\n")
}

fn by(program: &str, name: &str) -> String {
    format!("CONNECT {name} HTTP/1.1\r\nHost: {name}\r\nUser-Agent: {program}\r\n\r\n")
}

fn settings(mode: &str, closed: &Closed, more: &str) -> String {
    let address = closed.address();
    format!(
        "listen: {{address: \"127.0.0.1:0\", refusals: {mode}}}\nssh_only: true\nallowlist: {{static: [\
         {{name: \"refuses:22\", addresses: [\"{address}\"]}}, \
         {{name: \"any:22\", addresses: [\"{address}\"], ssh_only: false}}]}}\n{more}"
    )
}

/// The code and the sentence of a disconnect behind an identification.
#[track_caller]
fn disconnect(bytes: &[u8]) -> (u32, String) {
    let packet = bytes.strip_prefix(b"SSH-2.0-switchboard\r\n").unwrap();
    let number = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().unwrap());
    assert_eq!(number(0) as usize, packet.len() - 4);
    assert_eq!(packet[5], 1);
    let length = number(10) as usize;
    assert!(length < 200, "{length}");
    (number(6), String::from_utf8(packet[14..14 + length].to_vec()).unwrap())
}

/// Returns the disconnect of a client that sends this, and its identification after the 200.
#[track_caller]
fn told(proxy: &impl Ports, request: &str) -> (u32, String) {
    let mut client = proxy.client(request);
    client.expect(CONFIRMATION);
    client.send(CLIENT);
    disconnect(&client.rest())
}

#[track_caller]
fn status(proxy: &impl Ports, request: &str) -> String {
    proxy.client(request).rest_as_text()[9..12].to_owned()
}

/// dbclient takes a disconnect for a normal end, and exits with 0; an identification of another version it prints.
#[test]
fn dropbears_client_gets_the_reason_in_a_form_that_it_prints_and_fails_at() {
    const DROPBEAR: &str = "SSH-2.0-dropbear_2022.83\r\n";
    let (closed, target) = (Closed::bind(), Target::listen());
    let address = target.address();
    let more = format!("{{name: \"ends:22\", addresses: [\"{address}\"]}}, ");
    let settings = settings("auto", &closed, "").replacen("static: [", &format!("static: [{more}"), 1);
    let proxy = Server::with(&Settings::new(&settings));
    let refused = |name: &str| {
        let mut client = proxy.client(minimal(name));
        client.expect(CONFIRMATION);
        client.send(DROPBEAR);
        client
    };
    let said = refused("unknown:22").rest_as_text();
    assert!(
        said.starts_with("SSH-0.0-unknown:22 is not on the allowlist (id ") && said.ends_with(")\r\n"),
        "{said}"
    );
    // A target that closes before its identification.
    let mut client = refused("ends:22");
    drop(target.accept());
    let said = client.rest_as_text();
    assert!(
        said.starts_with("SSH-0.0-ends:22 ") && said.ends_with(")\r\n"),
        "{said}"
    );
    // And one that comes without a ProxyCommand.
    let said = proxy.client(DROPBEAR).rest_as_text();
    assert_eq!(said, "SSH-0.0-this is an HTTP CONNECT proxy: set a ProxyCommand\r\n");
}

#[test]
fn an_ssh_client_is_told_in_band_and_the_log_has_the_true_status() {
    let closed = Closed::bind();
    let settings = Settings::new(&settings("auto", &closed, ""));
    let mut proxy = Server::with(&settings);
    for (request, code, sentence, logged) in [
        (
            minimal("svc-a.team-a:22"),
            14,
            "svc-a.team-a:22 is not on the allowlist",
            (403, "not_allowed"),
        ),
        (
            proxytunnel("svc-a.team-a:22"),
            14,
            "svc-a.team-a:22 is not on the allowlist",
            (403, "not_allowed"),
        ),
        (
            request("svc-a.team-a:22"),
            14,
            "svc-a.team-a:22 is not on the allowlist",
            (403, "not_allowed"),
        ),
        (
            minimal("refuses:22"),
            7,
            "refuses:22 refused the connection",
            (502, "target_refused"),
        ),
        (
            minimal("fd00::1:22"),
            2,
            "fd00::1:22: an IPv6 address needs brackets",
            (400, "malformed"),
        ),
    ] {
        let (told_code, told) = told(&proxy, &request);
        let line: Value = serde_json::from_str(&proxy.process.stdout.next().unwrap()).unwrap();
        let id = line["tunnel_id"].as_str().unwrap();
        assert_eq!((told_code, told), (code, format!("{sentence} (id {id})")));
        assert_eq!((&line["status"], &line["reason"]), (&logged.0.into(), &logged.1.into()));
        assert_eq!(line["answered"], "ssh");
    }
    let page = proxy.scrape();
    assert_eq!(
        page.value(r#"connect_requests_total{code="403",reason="not_allowed"}"#),
        3.0
    );
    assert_eq!(page.value("in_band_disconnects_total"), 5.0);
    proxy.settles("connections_active", 0.0);
    proxy.process.signal(Signal::TERM);
}

#[test]
fn a_blocked_client_reads_the_operators_words_in_band() {
    let proxy = Server::with(&Settings::new(&settings("auto", &Closed::bind(), "")));
    let block = r#"{"kind": "block", "client": "127.0.0.1", "for": "10m", "reason": "it floods"}"#;
    assert_eq!(proxy.tell_admin("PUT", "/restrictions", block).status, 200);
    let (code, sentence) = told(&proxy, &minimal("refuses:22"));
    let words = "an operator has blocked this user or address: it floods (id ";
    assert!(code == 14 && sentence.contains(words), "{code} {sentence}");
}

#[test]
fn a_program_that_is_no_ssh_client_reads_a_status() {
    let closed = Closed::bind();
    let [http, auto, ssh] = ["http", "auto", "ssh"].map(|mode| Proxy::start(&settings(mode, &closed, "")));
    for name in ["unknown:22", "refuses:22"] {
        let expected = if name == "unknown:22" { "403" } else { "502" };
        for request in [minimal(name), proxytunnel(name), request(name)] {
            assert_eq!(status(&http, &request), expected);
        }
        for program in ["curl/7.88.1", "switchboard/0.1.0"] {
            assert_eq!(status(&auto, &by(program, name)), expected, "{program}");
        }
        assert_eq!(status(&ssh, &by("switchboard/0.0.1", name)), expected);
        assert!(told(&ssh, &by("curl/7.88.1", name)).1.starts_with(name));
    }
    // A target that carries other protocols, an incomplete request, and one that is no CONNECT.
    for proxy in [&auto, &ssh] {
        assert_eq!(status(proxy, &minimal("any:22")), "502");
        assert_eq!(status(proxy, "GET / HTTP/1.0\r\n\r\n"), "405");
        assert_eq!(status(proxy, "CONNECT a:22 HTTP/3\r\n\r\n"), "400");
    }
}

/// corkscrew drops what stands in one segment with the 200, and others wait for the server's identification.
#[test]
fn the_message_follows_the_200_in_a_segment_of_its_own() {
    let closed = Closed::bind();
    let proxy = Proxy::start(&settings("auto", &closed, ""));
    for (is_silent, name, code) in [
        (true, "unknown:22", 14),
        (false, "unknown:22", 14),
        (true, "fd00::1:22", 2),
    ] {
        // The message follows after a pause, in which a client on a busy machine may not have read the 200.
        let mut client = eventually("a read of the 200 alone", || {
            let mut client = proxy.client(minimal(name));
            (client.read_once() == CONFIRMATION.as_bytes()).then_some(client)
        });
        if !is_silent {
            client.send(CLIENT);
        }
        assert_eq!(disconnect(&client.rest()).0, code);
    }
}

#[test]
fn refused_clients_that_stay_hold_no_slot_and_are_evicted() {
    let closed = Closed::bind();
    let limits = "limits: {process: {max_unfinished: 8}, client: {max_tunnels: 1, connects_per_second: unlimited}}\n";
    let proxy = Proxy::start(&settings("auto", &closed, limits));
    let mut clients: Vec<Peer> = (0..64).map(|_| proxy.client(minimal("unknown:22"))).collect();
    proxy.settles(r#"connect_requests_total{code="403",reason="not_allowed"}"#, 64.0);
    // The cap of one tunnel of this client is free, and so is the way for the next request.
    assert_eq!(told(&proxy, &minimal("refuses:22")).0, 7);
    clients.iter_mut().for_each(Peer::ends);
    drop(clients);
    proxy.settles("connections_active", 0.0);
}

#[test]
fn a_limit_has_a_code_of_its_own_and_a_407_stays_one() {
    let target = Target::listen();
    let folder = TempDir::new().unwrap();
    let users = folder.path().join("users");
    std::fs::write(
        &users,
        "alice:$2y$05$C4ig4r120vyo1vh3fN8r8eElsx.pkSZw4WxY2QNujrvxq297xDBEu:ops\n",
    )
    .unwrap();
    let address = target.address();
    let list =
        format!("allowlist: {{static: [{{name: \"a:22\", addresses: [\"{address}\"], allowed_users: [bob]}}]}}\n");
    let listen = "listen: {address: \"127.0.0.1:0\", refusals: auto}\nssh_only: true\n";
    let full = Proxy::start(&format!(
        "{listen}{list}limits: {{process: {{max_tunnels: 1}}, client: {{connects_per_second: unlimited}}}}\n"
    ));
    let (_client, _server) = full.tunnel("a:22", &target);
    let (code, sentence) = told(&full, &minimal("a:22"));
    assert_eq!(code, 12);
    assert!(
        sentence.starts_with("a:22: the proxy has reached its tunnel limit"),
        "{sentence}"
    );

    let access = format!(
        "access: {{mode: enforce, hide_names: true, users: {{file: \"{}\"}}}}\n",
        users.display()
    );
    let users = Proxy::start(&format!("{listen}{list}{access}"));
    for request in [minimal("a:22"), minimal("unknown:22")] {
        assert_eq!(status(&users, &request), "407");
    }
    // A hidden name is answered as an unknown one.
    let by_alice =
        |name: &str| format!("CONNECT {name} HTTP/1.0\r\nProxy-Authorization: Basic YWxpY2U6Y29ycmVjdA==\r\n\r\n");
    for name in ["a:22", "b:22"] {
        let (code, sentence) = told(&users, &by_alice(name));
        assert_eq!(code, 14);
        assert!(
            sentence.starts_with(&format!("{name} is not on the allowlist (id ")),
            "{sentence}"
        );
    }
}

#[test]
fn a_target_that_is_no_ssh_server_is_named_in_front_of_its_first_byte() {
    for mode in ["auto", "http"] {
        let target = Target::listen();
        let settings = Settings::new(&format!(
            "listen: {{address: \"127.0.0.1:0\", refusals: {mode}}}\nssh_only: true\ntimeouts: {{ssh_identification: 2s}}\n{}",
            crate::harness::allow(&[("web:22", target.address())])
        ));
        let mut proxy = Server::with(&settings);
        for (answer, expected, reason) in [
            (
                Some("HTTP/1.1 400 Bad Request\r\n\r\n"),
                "web:22 is a web server, not an SSH server",
                "not_ssh",
            ),
            (Some("SSH-1.5-x\r\n"), "web:22 is not an SSH server", "not_ssh"),
            (
                Some("Not allowed at this time\r\n"),
                "web:22 closed the connection: Not allowed at this time",
                "eof",
            ),
            (
                Some(""),
                "web:22 closed the connection before its SSH identification",
                "eof",
            ),
            (None, "web:22 has sent no SSH identification in 2s", "not_ssh"),
        ] {
            let (mut client, mut server) = proxy.tunnel("web:22", &target);
            client.send(CLIENT);
            server.expect(CLIENT);
            if let Some(answer) = answer {
                server.send(answer);
                server.finish();
            }
            let heard = client.rest();
            drop((client, server));
            let line: Value = serde_json::from_str(&proxy.process.stdout.next().unwrap()).unwrap();
            assert_eq!(
                (&line["status"], &line["reason"]),
                (&200.into(), &reason.into()),
                "{line}"
            );
            if mode == "http" {
                assert_eq!((heard.as_slice(), &line["answered"]), (&b""[..], &"http".into()));
                continue;
            }
            let (code, sentence) = disconnect(&heard);
            assert!(sentence.starts_with(&format!("{expected} (id ")), "{sentence}");
            assert_eq!((code, &line["answered"]), (7, &"ssh".into()));
        }
        says_nothing_to_others(&proxy, &target, mode);
        proxy.process.signal(Signal::TERM);
    }
}

/// Of a client that speaks another protocol, and behind the target's identification, there is nothing to tell.
fn says_nothing_to_others(proxy: &Server, target: &Target, mode: &str) {
    // PuTTY says nothing before the server does.
    let (mut client, server) = proxy.tunnel("web:22", target);
    drop(server);
    assert_eq!(client.rest().is_empty(), mode == "http");
    let (mut client, _server) = proxy.tunnel("web:22", target);
    client.send("GET / HTTP/1.1\r\n\r\n");
    client.expect_end();
    let (mut client, mut server) = proxy.tunnel("web:22", target);
    server.send("SSH-2.0-x\r\n");
    client.expect("SSH-2.0-x\r\n");
    server.finish();
    assert_eq!(client.read_within(Duration::from_millis(20)).unwrap_or_default(), b"");
}
