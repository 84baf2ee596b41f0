//! A tunnel leads from an SSH client to an SSH server, or ends: of anything else nothing is passed on.

use std::time::Duration;

use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings};
use crate::harness::proxy::Proxy;
use crate::harness::target::Target;
use crate::harness::{CONFIRMATION, allow, eventually, request};
use rustix::process::Signal;
use serde_json::Value;

const CLIENT: &str = "SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n";
const SERVER: &str = "SSH-2.0-dropbear_2022.83\r\n";

fn settings(target: &Target) -> String {
    format!("{}ssh_only: true\n", allow(&[("devbox:22", target.address())]))
}

fn not_ssh(by: &str) -> String {
    format!(r#"tunnels_closed_total{{by="{by}",reason="not_ssh"}}"#)
}

#[test]
fn both_identifications_pass_in_either_order_and_then_all_bytes() {
    let target = Target::listen();
    let proxy = Proxy::start(&settings(&target));
    for client_first in [true, false] {
        let (mut client, mut server) = proxy.tunnel("devbox:22", &target);
        if client_first {
            client.send(CLIENT);
            server.expect(CLIENT);
            server.send(SERVER);
            client.expect(SERVER);
        } else {
            server.send(format!("Welcome\r\n{SERVER}"));
            client.expect(format!("Welcome\r\n{SERVER}"));
            client.send(CLIENT);
            server.expect(CLIENT);
        }
        for _ in 0..3 {
            client.send("up\0\r\n");
            server.expect("up\0\r\n");
            server.send(vec![b'x'; 100_000]);
            client.expect(vec![b'x'; 100_000]);
        }
        client.finish();
        server.expect_end();
        server.send("tail");
        server.finish();
        client.expect("tail");
        client.expect_end();
    }
}

#[test]
fn an_identification_may_come_with_the_request_or_in_pieces() {
    let target = Target::listen();
    let proxy = Proxy::start(&settings(&target));
    // Everything in one segment, before there is an answer.
    let mut client = proxy.client(request("devbox:22") + CLIENT + "key exchange");
    client.expect(CONFIRMATION);
    let mut server = target.accept();
    server.expect(CLIENT);
    // A server that waits for the client's line, and sends its own byte by byte.
    for byte in SERVER.bytes() {
        server.send([byte]);
    }
    server.expect("key exchange");
    client.expect(SERVER);
    server.send("and so on");
    client.expect("and so on");
}

#[test]
fn of_a_client_that_speaks_another_protocol_nothing_is_passed_on() {
    let target = Target::listen();
    let proxy = Proxy::start(&settings(&target));
    let wrong = [
        "GET / HTTP/1.1\r\n\r\n",
        "\x16\x03\x01",
        "\r\n",
        "SSH-1.5-x\r\n",
        "SSH-2.0-\0\r\n",
        "SSH-2.0-x\rFLUSHALL\r\n",
        "s",
    ];
    for (count, bytes) in (1_u32..).zip(wrong) {
        let (mut client, mut server) = proxy.tunnel("devbox:22", &target);
        // Its peer's line is not even answered.
        server.send(SERVER);
        client.expect(SERVER);
        client.send(bytes);
        server.expect_end();
        client.expect_end();
        drop((client, server));
        proxy.settles(&not_ssh("client"), count.into());
    }
}

#[test]
fn of_a_target_that_speaks_another_protocol_nothing_is_passed_on() {
    let target = Target::listen();
    let proxy = Proxy::start(&settings(&target));
    let long = "220 a line of some mail server\r\n".repeat(300);
    for (count, bytes) in (1_u32..).zip(["SSH-3.0-x\r\n", "SSH-\r\n", &long]) {
        let (mut client, mut server) = proxy.tunnel("devbox:22", &target);
        client.send(format!("{CLIENT}EHLO mail\r\nMAIL FROM:<a@b>\r\n"));
        server.expect(CLIENT);
        proxy.turn();
        assert_eq!(server.read_within(AT_ONCE), None);
        server.send(bytes);
        assert_eq!(client.rest_as_text(), "");
        drop((client, server));
        proxy.settles(&not_ssh("target"), count.into());
    }
}

#[test]
fn an_identification_has_a_deadline() {
    let target = Target::listen();
    let proxy = Proxy::start(&format!("{}timeouts: {{ssh_identification: 1s}}\n", settings(&target)));
    let (mut client, mut server) = proxy.tunnel("devbox:22", &target);
    client.send(CLIENT);
    server.expect(CLIENT);
    server.send("SSH-2.0-sl");
    client.expect_end();
    // An anchor in between takes an end of stream for a half-close, and would keep its place for minutes.
    server.expect_reset();
    proxy.settles(&not_ssh("target"), 1.0);
    let (mut client, mut server) = proxy.tunnel("devbox:22", &target);
    server.send(SERVER);
    client.expect(SERVER);
    client.expect_end();
    proxy.settles(&not_ssh("client"), 1.0);
    // Behind both identifications a tunnel may be silent for ever.
    let (mut client, mut server) = proxy.tunnel("devbox:22", &target);
    client.send(CLIENT);
    server.send(SERVER);
    server.expect(CLIENT);
    client.expect(SERVER);
    let (mut silent, _server) = proxy.tunnel("devbox:22", &target);
    silent.expect_end();
    server.send("still here");
    client.expect("still here");
}

#[test]
fn ends_and_resets_before_the_first_line_are_what_they_are() {
    let target = Target::listen();
    let proxy = Proxy::start(&settings(&target));
    let closed = |by: &str, reason: &str| format!(r#"tunnels_closed_total{{by="{by}",reason="{reason}"}}"#);
    let (client, mut server) = proxy.tunnel("devbox:22", &target);
    client.reset();
    server.expect_reset();
    proxy.settles(&closed("client", "reset"), 1.0);
    let (mut client, server) = proxy.tunnel("devbox:22", &target);
    server.reset();
    client.expect_reset();
    proxy.settles(&closed("target", "reset"), 1.0);
    // A scanner wants the server's line and nothing else; sshd that has enough of clients says so in a line and closes.
    let (mut client, mut server) = proxy.tunnel("devbox:22", &target);
    server.send(SERVER);
    client.expect(SERVER);
    drop(client);
    server.expect_end();
    drop(server);
    proxy.settles(&closed("client", "eof"), 1.0);
    let (mut client, mut server) = proxy.tunnel("devbox:22", &target);
    client.send(CLIENT);
    server.expect(CLIENT);
    server.send("Exceeded MaxStartups\r\n");
    server.finish();
    client.expect_end();
    drop((client, server));
    proxy.settles(&closed("target", "eof"), 1.0);
    // Whatever the client has sent behind its line.
    let (mut client, mut server) = proxy.tunnel("devbox:22", &target);
    client.send(CLIENT);
    server.expect(CLIENT);
    client.send([b'x'; 5000]);
    server.finish();
    client.expect_end();
    drop((client, server));
    proxy.settles(&closed("target", "eof"), 2.0);
    // A target that finishes without a line is no SSH server, though it may read on.
    let (mut client, mut server) = proxy.tunnel("devbox:22", &target);
    server.finish();
    client.expect_end();
    client.send(format!("{CLIENT}GET / HTTP/1.0\r\n\r\n"));
    server.expect_end();
    drop((client, server));
    proxy.settles(&closed("target", "eof"), 3.0);
    proxy.settles("connections_active", 0.0);
}

#[test]
fn ssh_only_can_be_switched_for_one_target_and_for_all() {
    let target = Target::listen();
    let address = target.address();
    let list = format!(
        "allowlist: {{static: [{{name: \"ssh:22\", addresses: [\"{address}\"]}},\n\
         {{name: \"any:22\", addresses: [\"{address}\"], ssh_only: false}}]}}\n"
    );
    let passes = |proxy: &Proxy, name: &str| {
        let (mut client, mut server) = proxy.tunnel(name, &target);
        client.send("GET /\r\n");
        client.finish();
        let heard = server.rest();
        assert!(heard.is_empty() || heard == b"GET /\r\n", "{heard:?}");
        !heard.is_empty()
    };
    let proxy = Proxy::start(&format!("{list}ssh_only: true\n"));
    assert!(!passes(&proxy, "ssh:22") && passes(&proxy, "any:22"));
    proxy.reload(&format!("{list}ssh_only: false\n"));
    eventually("it is off", || passes(&proxy, "ssh:22").then_some(()));
    proxy.reload(&format!("{list}ssh_only: true\n"));
    eventually("it is on", || (!passes(&proxy, "ssh:22")).then_some(()));
    assert!(passes(&proxy, "any:22"));
}

#[test]
fn the_access_line_names_the_software_without_control_characters() {
    let target = Target::listen();
    let settings = Settings::new(&settings(&target));
    let mut proxy = Server::with(&settings);
    let say = |client: &mut Peer, server: &mut Peer, theirs: &str, ours: &str| {
        client.send(theirs);
        server.expect(theirs);
        server.send(ours);
        client.expect(ours);
    };
    let odd = "SSH-2.0-\x1b[31m\u{e9}\n";
    for (said, expected) in [
        (Some((CLIENT, SERVER)), ["OpenSSH_9.2p1 Debian-2", "dropbear_2022.83"]),
        (Some((odd, "SSH-1.99-Cisco-1.25\n")), ["?[31m??", "Cisco-1.25"]),
        (None, ["", ""]),
    ] {
        let (mut client, mut server) = proxy.tunnel("devbox:22", &target);
        if let Some((theirs, ours)) = said {
            say(&mut client, &mut server, theirs, ours);
        }
        drop((client, server));
        let line: Value = serde_json::from_str(&proxy.process.stdout.next().unwrap()).unwrap();
        assert_eq!(
            [&line["client.software"], &line["upstream.software"]],
            expected,
            "{line}"
        );
    }
    proxy.process.signal(Signal::TERM);
}

/// For what would be there already.
const AT_ONCE: Duration = Duration::from_millis(1);
