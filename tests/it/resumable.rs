//! Tunnels whose sessions outlive them, between a scripted client and a scripted anchor: they end with either of their sides;
//! in a drain they end first, in order, and are not cut; all other tunnels run on.

use std::io::{Read, Write};
use std::time::Duration;

use crate::harness::authority::Authority;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Process, Server, Settings, switchboard};
use crate::harness::target::Target;
use crate::harness::{CONFIRMATION, allow, eventually, request};
use crate::tls::client::{config, connect, open};
use rustix::process::Signal;
use serde_json::Value;

pub(crate) const ANCHOR: &str = "SSH-2.0-switchboard_anchor_1\r\n";
const CLIENT: &str = "SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n";
const SERVER: &str = "SSH-2.0-OpenSSH_10.0\r\n";

fn announcement() -> String {
    format!("switchboard-resume-1 {} {}\r\n", "a1".repeat(32), "0e".repeat(16))
}

/// The line with which a client begins a session, or goes on with one.
pub(crate) fn hello(kind: &str) -> String {
    let key = if kind == "new" { 32 } else { 16 };
    format!(
        "SSH-2.0-switchboard_resume_1 {kind} {} {}\r\n",
        "c1".repeat(key),
        "0c".repeat(16)
    )
}

/// A process with one target, `devbox:22`.
fn server_to(target: &Target, ssh_only: bool, drain: &str) -> Server {
    let list = allow(&[("devbox:22", target.address())]);
    Server::with(&Settings::new(&format!("{list}ssh_only: {ssh_only}\ndrain: {drain}\n")))
}

/// A tunnel of a session that begins: the client waits for the announcement.
fn begun(server: &Server, target: &Target) -> (Peer, Peer) {
    let (mut client, mut anchor) = server.tunnel("devbox:22", target);
    anchor.send(announcement());
    client.expect(announcement());
    client.send(hello("new") + "proof");
    anchor.expect(hello("new"));
    anchor.send(format!("{ANCHOR}frames"));
    anchor.expect("proof");
    client.expect(format!("{ANCHOR}frames"));
    (client, anchor)
}

/// A tunnel of a session that goes on: the client waits for nothing, and its line comes in pieces.
fn resumed(server: &Server, target: &Target) -> (Peer, Peer) {
    let mut client = server.client(request("devbox:22") + "SSH-2.0-switch");
    client.expect(CONFIRMATION);
    let mut anchor = target.accept();
    for byte in hello("resume").bytes().skip("SSH-2.0-switch".len()) {
        client.send([byte]);
    }
    anchor.expect(hello("resume"));
    anchor.send(announcement() + ANCHOR);
    client.expect(announcement() + ANCHOR);
    (client, anchor)
}

/// A tunnel of ssh and sshd.
fn plain(server: &Server, target: &Target) -> (Peer, Peer) {
    let (mut client, mut service) = server.tunnel("devbox:22", target);
    client.send(CLIENT);
    service.expect(CLIENT);
    // It does not begin with it.
    client.send(hello("new"));
    service.send(SERVER);
    client.expect(SERVER);
    service.expect(hello("new"));
    (client, service)
}

#[track_caller]
fn still_carries(client: &mut Peer, service: &mut Peer) {
    client.send("up");
    service.expect("up");
    service.send("down");
    client.expect("down");
}

/// The access lines by reason and whether they say that the tunnel was resumable.
fn lines(server: &mut Server) -> Vec<(String, bool)> {
    let lines = server.process.stdout.rest();
    let read = lines.iter().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = |field: &str| line[field].as_str().unwrap().to_owned();
        let moved_by_the_proxy = text("reason") != "resumed_elsewhere" || text("closed_by") == "proxy";
        assert!(moved_by_the_proxy, "{line}");
        (text("reason"), line["tunnel.resumable"].as_bool().unwrap())
    });
    read.collect()
}

const MOVED: &str = r#"tunnels_closed_total{by="proxy",reason="resumed_elsewhere"}"#;

#[test]
fn a_drain_ends_resumable_tunnels_in_order_and_the_others_run_on() {
    for ssh_only in [true, false] {
        let target = Target::listen();
        let mut server = server_to(&target, ssh_only, "{delay: 0s, timeout: 1h, resumable_spread: 300ms}");
        let (begun, resumed) = (begun(&server, &target), resumed(&server, &target));
        let (mut client, mut service) = plain(&server, &target);
        let now = server.ask_admin("GET", "/drain").body;
        assert_eq!(
            now,
            "{\"phase\":\"serving\",\"tunnels\":3,\"resumable\":2,\"connections\":3}\n"
        );
        let page = server.scrape();
        assert_eq!(page.value("tunnels_resumable"), 2.0);
        server.process.signal(Signal::TERM);
        for (mut client, mut anchor) in [begun, resumed] {
            client.expect_end();
            anchor.expect_end();
        }
        server.settles(MOVED, 2.0);
        server.settles("tunnels_resumable", 0.0);
        still_carries(&mut client, &mut service);
        server.drains_to(r#"{"phase":"draining","tunnels":1,"resumable":0,"connections":1}"#);
        client.finish();
        service.expect_end();
        service.finish();
        client.expect_end();
        assert_eq!(server.process.exit_status(), 0);
        let mut lines = lines(&mut server);
        lines.sort();
        let expected = [("eof", false), ("resumed_elsewhere", true), ("resumed_elsewhere", true)];
        assert_eq!(
            lines,
            expected.map(|(reason, resumable)| (reason.to_owned(), resumable))
        );
    }
}

#[test]
fn before_the_ports_are_closed_no_resumable_tunnel_ends() {
    let target = Target::listen();
    let mut server = server_to(&target, true, "{delay: 1h, timeout: 0s, resumable_spread: 0s}");
    let (mut client, mut anchor) = begun(&server, &target);
    server.process.signal(Signal::TERM);
    server.becomes(503);
    // A client that reconnects comes to this process again.
    for _ in 0..20 {
        still_carries(&mut client, &mut anchor);
    }
    assert_eq!(client.read_within(Duration::from_millis(1)), None);
    let (mut again, mut anchor_again) = resumed(&server, &target);
    still_carries(&mut again, &mut anchor_again);
    server.process.signal(Signal::TERM);
    for (mut client, mut anchor) in [(client, anchor), (again, anchor_again)] {
        client.expect_end();
        anchor.expect_end();
    }
    // A second signal, and no session has lost anything.
    assert_eq!(server.process.exit_status(), 0);
    assert_eq!(lines(&mut server), vec![("resumed_elsewhere".to_owned(), true); 2]);
}

#[test]
fn only_tunnels_that_were_cut_change_the_exit_status() {
    for (others, status) in [(0, 0), (1, 3)] {
        let target = Target::listen();
        // The deadline comes before the resumable tunnel is closed.
        let mut server = server_to(
            &target,
            true,
            "{delay: 0s, timeout: 10ms, spread: 500ms, resumable_spread: 1h}",
        );
        let mut moved = begun(&server, &target);
        let mut cut: Vec<_> = (0..others).map(|_| plain(&server, &target)).collect();
        server.process.signal(Signal::TERM);
        assert_eq!(server.process.exit_status(), status);
        moved.0.expect_end();
        moved.1.expect_end();
        for (client, service) in &mut cut {
            client.expect_reset();
            service.expect_reset();
        }
        let mut lines = lines(&mut server);
        lines.sort();
        let mut expected = vec![("drained".to_owned(), false); others];
        expected.push(("resumed_elsewhere".to_owned(), true));
        assert_eq!(lines, expected);
    }
}

#[test]
fn a_resumable_tunnel_whose_peers_read_nothing_ends_too() {
    for ssh_only in [true, false] {
        let target = Target::that_reads_little();
        let mut server = server_to(&target, ssh_only, "{delay: 0s, timeout: 1h, resumable_spread: 0s}");
        let (mut client, mut anchor) = resumed(&server, &target);
        for peer in [&mut client, &mut anchor] {
            while peer.send_what_fits(&[b'x'; 1 << 16]) > 0 {}
        }
        server.process.signal(Signal::TERM);
        assert_eq!(server.process.exit_status(), 0);
        assert_eq!(lines(&mut server), [("resumed_elsewhere".to_owned(), true)]);
    }
}

#[test]
fn a_session_that_begins_in_a_drain_ends_at_its_first_line() {
    for ssh_only in [true, false] {
        let target = Target::listen();
        let mut server = server_to(&target, ssh_only, "{delay: 0s, timeout: 1h, resumable_spread: 0s}");
        let (mut client, mut anchor) = server.tunnel("devbox:22", &target);
        anchor.send(announcement());
        client.expect(announcement());
        server.process.signal(Signal::TERM);
        server.process.stderr.find("waiting for tunnels to end");
        client.send(hello("new"));
        anchor.expect(hello("new"));
        anchor.expect_end();
        client.expect_end();
        assert_eq!(server.process.exit_status(), 0);
        assert_eq!(lines(&mut server), [("resumed_elsewhere".to_owned(), true)]);
    }
}

#[test]
fn what_only_looks_like_a_hello_is_no_resumable_tunnel() {
    let target = Target::listen();
    let server = server_to(&target, false, "{}");
    let good = hello("resume");
    for says in [
        good.replace("_1 ", "_2 "),
        good.replace("c1", "C1"),
        good.replace("resume ", "stay "),
        good.replace("SSH-", "ssh-"),
        format!("\r\n{good}"),
        format!("{CLIENT}{good}"),
        good.replace("\r\n", &format!(" {}\r\n", "x".repeat(255))),
        "\0".repeat(100_000),
    ] {
        let (mut client, mut service) = server.tunnel("devbox:22", &target);
        client.send(&says);
        service.expect(&says);
        // Here it stands in the middle.
        client.send(&good);
        service.expect(&good);
        assert_eq!(server.scrape().value("tunnels_resumable"), 0.0, "{says:?}");
    }
    // With a later field it is one, and all of it passes.
    let later = good.replace("\r\n", " later=1\r\n");
    let (mut client, mut service) = server.tunnel("devbox:22", &target);
    client.send(later.clone() + &"x".repeat(200_000));
    service.expect(later + &"x".repeat(200_000));
    assert_eq!(server.scrape().value("tunnels_resumable"), 1.0);
    drop((client, service));
    server.settles("tunnels_resumable", 0.0);
}

/// A process with one slot for `devbox:22`, and no bound on half-closed tunnels.
fn one_slot(target: &Target, ssh_only: bool, more: &str) -> Server {
    let list = allow(&[("devbox:22", target.address())]);
    Server::with(&Settings::new(&format!(
        "{list}ssh_only: {ssh_only}\nlimits: {{target: {{max_tunnels: 1}}}}\ntimeouts: {{half_closed: 365d}}\n{more}"
    )))
}

const ACTIVE: &str = r#"tunnels_active{target_namespace="static",target_service="devbox:22"}"#;

fn ended_by(side: &str) -> String {
    format!("tunnels_closed_total{{by=\"{side}\",reason=\"eof\"}}")
}

#[test]
fn the_slot_of_a_resumable_tunnel_is_free_soon_after_either_side_has_ended() {
    for ssh_only in [true, false] {
        let target = Target::listen();
        let server = one_slot(&target, ssh_only, "");
        for side in ["client", "target"] {
            let (mut client, mut anchor) = resumed(&server, &target);
            // The other side keeps its connection, as behind a path that is silent.
            let (finishes, stays) = match side {
                "client" => (&mut client, &mut anchor),
                _ => (&mut anchor, &mut client),
            };
            finishes.send("the ending");
            finishes.finish();
            stays.expect("the ending");
            stays.expect_end();
            finishes.expect_end();
            server.settles(&ended_by(side), 1.0);
            server.settles(ACTIVE, 0.0);
        }
        // Of ssh and sshd either direction may end alone.
        let (mut client, mut service) = plain(&server, &target);
        client.finish();
        service.expect_end();
        service.send("down");
        client.expect("down");
        assert_eq!(client.read_within(Duration::from_secs(3)), None);
        server.process.signal(Signal::KILL);
    }
}

#[test]
fn over_tls_the_slot_of_a_resumable_tunnel_is_free_soon_after_either_side_has_ended() {
    for side in ["client", "target"] {
        let (authority, target) = (Authority::new(), Target::listen());
        let certificate = authority.server("server", &["proxy.example.com"]).setting();
        let more =
            format!("listen: {{address: \"127.0.0.1:0\", tls: required}}\ntls: {{certificates: [{certificate}]}}\n");
        let server = one_slot(&target, true, &more);
        let mut client = connect(server.public(), &config(&authority, None), "proxy.example.com").unwrap();
        open(&mut client, "devbox:22");
        let mut anchor = target.accept();
        client.write_all(hello("resume").as_bytes()).unwrap();
        anchor.expect(hello("resume"));
        anchor.send(ANCHOR);
        client.read_exact(&mut [0; ANCHOR.len()]).unwrap();
        if side == "client" {
            client.conn.send_close_notify();
            client.flush().unwrap();
            anchor.expect_end();
        } else {
            anchor.finish();
        }
        // 0 and no error: rustls tells an end without a close_notify apart.
        assert_eq!(client.read(&mut [0; 16]).unwrap(), 0);
        server.settles(&ended_by(side), 1.0);
        server.settles(ACTIVE, 0.0);
        anchor.ends();
    }
}

#[test]
fn over_tls_a_resumable_tunnel_ends_with_a_close_notify() {
    for ssh_only in [true, false] {
        let (authority, target) = (Authority::new(), Target::listen());
        let certificate = authority.server("server", &["proxy.example.com"]).setting();
        let list = allow(&[("devbox:22", target.address())]);
        let mut server = Server::with(&Settings::new(&format!(
            "ssh_only: {ssh_only}\nlisten: {{address: \"127.0.0.1:0\", tls: required}}\n\
             tls: {{certificates: [{certificate}]}}\n{list}drain: {{delay: 0s, timeout: 1h, resumable_spread: 0s}}\n"
        )));
        let config = config(&authority, None);
        let tunnel = |line: &str| {
            let mut client = connect(server.public(), &config, "proxy.example.com").unwrap();
            open(&mut client, "devbox:22");
            let mut service = target.accept();
            client.write_all(line.as_bytes()).unwrap();
            service.expect(line);
            service.send(SERVER);
            client.read_exact(&mut [0; SERVER.len()]).unwrap();
            (client, service)
        };
        let (mut client, mut anchor) = tunnel(&hello("resume"));
        let (mut plain, mut service) = tunnel(CLIENT);
        server.settles("tunnels_resumable", 1.0);
        server.process.signal(Signal::TERM);
        // 0 and no error: rustls tells an end without a close_notify apart.
        assert_eq!(client.read(&mut [0; 16]).unwrap(), 0);
        anchor.expect_end();
        server.settles(MOVED, 1.0);
        service.send("still here");
        let mut read = [0; 10];
        plain.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"still here");
        drop((plain, service, client));
        assert_eq!(server.process.exit_status(), 0);
    }
}

/// `switchboard drain` for that process.
fn drain(server: &Server, arguments: &[&str]) -> Process {
    let admin = server.admin().to_string();
    Process::spawn(switchboard(&[&["drain", "--admin", &admin], arguments].concat()))
}

#[test]
fn the_command_tells_resumable_tunnels_apart_and_counts_only_the_others() {
    let target = Target::listen();
    let mut server = server_to(&target, true, "{delay: 1h, timeout: 1h}");
    let (_moved, _plain) = (begun(&server, &target), plain(&server, &target));
    let mut asking = drain(&server, &[]);
    assert_eq!(asking.exit_status(), 0);
    let told = asking.stdout.next().unwrap();
    assert!(told.ends_with(": 2 tunnels (moves 1, cuts 1), 2 connections"), "{told}");
    // Another signal than the first, which might still be pending: two of one kind are one then (signal(7)).
    server.process.signal(Signal::TERM);
    server.process.signal(Signal::INT);
    assert_eq!(server.process.exit_status(), 3);

    // At the timeout only what would be cut counts; before it, the resumable ones are waited for.
    let mut server = server_to(&target, true, "{delay: 0s, timeout: 1h, resumable_spread: 1h}");
    let tunnels = (begun(&server, &target), plain(&server, &target));
    // Before it is asked with a timeout: the drain may take its time to begin.
    assert_eq!(drain(&server, &[]).exit_status(), 0);
    server.drains_to(r#"{"phase":"draining","tunnels":2,"resumable":1,"connections":2}"#);
    for (most, status) in [("1", 0), ("0", 3)] {
        let mut asking = drain(&server, &["--wait", "--at-most", most, "--timeout", "500ms"]);
        assert_eq!(asking.exit_status(), status, "{most}");
        let told = asking.stdout.next().unwrap();
        assert_eq!(told, "draining: 2 tunnels (moves 1, cuts 1), 2 connections");
    }
    let (moved, plain) = tunnels;
    let mut waiting = drain(&server, &["--wait", "--at-most", "1"]);
    drop(moved);
    assert_eq!(waiting.exit_status(), 0);
    // The connection of a tunnel that has ended may be about to.
    let told = waiting.stdout.next().unwrap();
    assert!(told.starts_with("draining: 1 tunnels (moves 0, cuts 1), "), "{told}");
    server.drains_to(r#"{"phase":"draining","tunnels":1,"resumable":0,"connections":1}"#);
    drop(plain);
    assert_eq!(server.process.exit_status(), 0);
}

/// A tunnel of the session with that id, which the anchor attaches, and whose lines have passed.
fn attached(server: &Server, target: &Target, id: u8) -> (Peer, Peer) {
    let (mut client, mut anchor) = server.tunnel("devbox:22", target);
    anchor.send(announcement());
    client.expect(announcement());
    client.send(hello("new"));
    anchor.expect(hello("new"));
    let answer = [ANCHOR.as_bytes(), &[2, 0, 0, 56], &[id; 16], &[7; 40]].concat();
    anchor.send(&answer);
    client.expect(answer);
    (client, anchor)
}

#[test]
fn a_session_that_an_operator_has_ended_is_refused_by_its_hello() {
    for ssh_only in [true, false] {
        let target = Target::listen();
        let mut server = server_to(&target, ssh_only, "{}");
        let end = |body: &str| {
            let answer = server.tell_admin("DELETE", "/tunnels?target=static/devbox:22", body);
            assert_eq!(answer.status, 200, "{}", answer.body);
        };
        // One that is moved goes on here. It is known by its hello, the next one by the answer to it.
        let (mut client, _anchor) = resumed(&server, &target);
        end(r#"{"reason": "busy", "move": true}"#);
        client.expect_reset();
        // Another session.
        let (mut client, _anchor) = attached(&server, &target, 0x55);
        end(r#"{"reason": "abuse"}"#);
        client.expect_reset();
        let (mut client, mut anchor) = resumed(&server, &target);
        still_carries(&mut client, &mut anchor);
        drop((client, anchor));
        server.settles("tunnels_resumable", 0.0);
        let (mut client, _anchor) = attached(&server, &target, 0xc1);
        end(r#"{"reason": "abuse", "for": "1h"}"#);
        client.expect_reset();
        // One that names it in its request, as connect does, is not led to the target.
        let named = format!("\r\nSwitchboard-Session: {}\r\n\r\n", "c1".repeat(16));
        let mut client = server.client(request("devbox:22").replace("\r\n\r\n", &named));
        let answer = client.rest_as_text();
        assert!(
            answer.starts_with("HTTP/1.1 403 an operator ended the connection: abuse\r\n"),
            "{answer}"
        );
        target.expect_no_connection();
        for _ in 0..3 {
            let mut client = server.client(request("devbox:22") + &hello("resume"));
            client.expect(CONFIRMATION);
            let _anchor = target.accept();
            client.ends();
        }
        server.process.signal(Signal::TERM);
        let lines = server.process.stdout.rest();
        let lines = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let ended: Vec<_> = lines.filter(|line| line["reason"] == "closed_by_operator").collect();
        let words: Vec<_> = ended
            .iter()
            .map(|line| line["operator.reason"].as_str().unwrap())
            .collect();
        assert_eq!(
            words,
            ["busy", "abuse", "abuse", "abuse", "abuse", "abuse"],
            "{ssh_only}"
        );
    }
}

#[test]
fn a_session_that_an_operator_ends_in_one_of_its_tunnels_ends_in_all_of_them() {
    // The client of a half-open tunnel goes on by another one while the proxy still has the first.
    for ended in [0, 1] {
        let target = Target::listen();
        let mut server = server_to(&target, true, "{}");
        let (mut older, _anchor) = attached(&server, &target, 0xc1);
        let (mut newer, _anchor) = resumed(&server, &target);
        let (mut other, mut its_anchor) = attached(&server, &target, 0x55);
        let page = server.tell_admin("GET", "/tunnels?sort=age", "");
        let listed: Value = serde_json::from_str(&page.body).unwrap();
        let mut ids = listed["tunnels"].as_array().unwrap().iter();
        let id = ids.nth(ended).unwrap()["tunnel_id"].as_str().unwrap().to_owned();
        let answer = server.tell_admin("DELETE", &format!("/tunnels/{id}"), r#"{"reason": "abuse"}"#);
        assert_eq!(answer.status, 200, "{}", answer.body);
        older.expect_reset();
        newer.expect_reset();
        still_carries(&mut other, &mut its_anchor);
        drop((other, its_anchor));
        server.process.signal(Signal::TERM);
        let lines = server.process.stdout.rest();
        let lines = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
        assert_eq!(
            lines.filter(|line| line["operator.reason"] == "abuse").count(),
            2,
            "{ended}"
        );
    }
}

#[test]
fn tunnels_without_a_session_cannot_be_moved() {
    let target = Target::listen();
    let server = server_to(&target, true, "{}");
    let (mut client, mut service) = plain(&server, &target);
    for (body, status, says) in [
        (r#"{"move": true}"#, 200, r#""closed":[]"#),
        (r#"{"for": "soon"}"#, 400, "for: expected a duration such as"),
    ] {
        let answer = server.tell_admin("DELETE", "/tunnels?target=static/devbox:22", body);
        assert_eq!(answer.status, status, "{}", answer.body);
        assert!(answer.body.contains(says), "{}", answer.body);
    }
    still_carries(&mut client, &mut service);
}

/// A PING of a session, and a DATA with one byte.
const PING: [u8; 12] = [6, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1];
const KEY: [u8; 13] = [3, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 5, b'k'];

#[test]
fn a_session_that_comes_back_has_been_idle_as_long_as_before() {
    for ssh_only in [true, false] {
        let target = Target::listen();
        let server = server_to(&target, ssh_only, "{}");
        let named = format!(
            "\r\nSwitchboard-Session: {}\r\nSwitchboard-Idle: 900\r\n\r\n",
            "0c".repeat(16)
        );
        let mut client = server.client(request("devbox:22").replace("\r\n\r\n", &named));
        client.expect(CONFIRMATION);
        let mut anchor = target.accept();
        // The lines of either side may come first.
        anchor.send(announcement());
        client.expect(announcement());
        client.send(hello("resume"));
        anchor.expect(hello("resume"));
        let answer = [ANCHOR.as_bytes(), &[2, 0, 0, 56], &[0x0c; 16], &[7; 40]].concat();
        anchor.send(&answer);
        client.expect(answer);
        client.send(PING);
        anchor.expect(PING);
        anchor.send(PING);
        client.expect(PING);
        let listed = || crate::operators::all(&server, 1).remove(0);
        let activity = || -> Value {
            let answer = server.ask_admin("GET", "/activity?target=static/devbox:22");
            serde_json::from_str(&answer.body).unwrap()
        };
        let sleeps = listed();
        assert!(sleeps.idle_ms >= 900_000 && !sleeps.is_active, "{sleeps:?}");
        assert!(sleeps.last_active < sleeps.since, "{sleeps:?}");
        let unused = activity();
        assert_eq!(unused["has_activity"], false, "{unused}");
        assert_eq!(unused["last_activity"], sleeps.last_active.as_str());
        // The user's bytes are use.
        anchor.send(KEY);
        client.expect(KEY);
        // They count once they are written.
        eventually("it is used", || {
            let used = listed();
            (used.idle_ms < 900_000 && used.is_active).then_some(())
        });
        assert_eq!(activity()["has_activity"], true);
    }
}

#[test]
fn a_claim_to_be_idle_does_not_hide_the_bytes_of_a_plain_client() {
    for ssh_only in [true, false] {
        let target = Target::listen();
        let server = server_to(&target, ssh_only, "{}");
        let named = format!(
            "\r\nSwitchboard-Session: {}\r\nSwitchboard-Idle: 4294967295\r\n\r\n",
            "0c".repeat(16)
        );
        let mut client = server.client(request("devbox:22").replace("\r\n\r\n", &named));
        client.expect(CONFIRMATION);
        let mut service = target.accept();
        client.send(CLIENT);
        service.expect(CLIENT);
        service.send(SERVER);
        client.expect(SERVER);
        still_carries(&mut client, &mut service);
        eventually("it is used", || {
            let used = crate::operators::all(&server, 1).remove(0);
            (used.is_active && used.idle_ms < 900_000).then_some(())
        });
    }
}

#[test]
fn a_session_that_was_idle_for_longer_than_it_may_has_a_moment_to_be_used_again() {
    let target = Target::listen();
    let list = allow(&[("devbox:22", target.address())]);
    let server = Server::with(&Settings::new(&format!("{list}timeouts: {{idle: 300ms}}\n")));
    let named = format!(
        "\r\nSwitchboard-Session: {}\r\nSwitchboard-Idle: 900\r\n\r\n",
        "0c".repeat(16)
    );
    let mut client = server.client(request("devbox:22").replace("\r\n\r\n", &named) + &hello("resume"));
    client.expect(CONFIRMATION);
    let mut anchor = target.accept();
    anchor.expect(hello("resume"));
    anchor.send(announcement() + ANCHOR);
    client.expect(announcement() + ANCHOR);
    client.ends();
    server.settles(r#"tunnels_closed_total{by="proxy",reason="idle"}"#, 1.0);
}
