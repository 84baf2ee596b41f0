//! `allowlist.report_only`: what `ssh_only` and `access` would refuse is served, logged and counted, and names stay names.

use std::fs;

use crate::harness::page::Page;
use crate::harness::ports::Ports;
use crate::harness::process::{Process, Server, Settings, switchboard};
use crate::harness::target::Target;
use crate::harness::{on_free_ports, refused, request};
use crate::http2::peer::Peer as Http2Peer;
use crate::identities::LINE;
use serde_json::Value;
use switchboard::tunnel::outcome::RefusalReason;

const CLIENT: &str = "SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n";
const SERVER: &str = "SSH-2.0-dropbear_2022.83\r\n";

fn settings(target: &Target, report: bool, more: &str) -> String {
    let address = target.address();
    format!(
        "allowlist:\n  report_only: {report}\n  static:\n    - {{name: \"devbox:22\", addresses: [\"{address}\"]}}\n\
         ssh_only: true\n{more}"
    )
}

fn reported(page: &Page, rule: &str) -> f64 {
    page.value(&format!("report_only_refusals_total{{rule=\"{rule}\"}}"))
}

#[test]
fn what_ssh_only_would_refuse_is_served_and_reported_once() {
    let target = Target::listen();
    let mut server = Server::with(&Settings::new(&settings(&target, true, "")));
    // A client of another protocol, a server of another one that speaks first, and both of SSH.
    for (client_first, client_says, server_says, software, why) in [
        (
            true,
            "GET / HTTP/1.1\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "",
            "would be refused: the client does not begin with an SSH identification",
        ),
        (
            false,
            CLIENT,
            "220 ready\r\n",
            "",
            "would be refused: the target does not begin with an SSH identification",
        ),
        (true, CLIENT, SERVER, "dropbear_2022.83", ""),
    ] {
        let (mut client, mut peer) = server.tunnel("devbox:22", &target);
        if client_first {
            client.send(client_says);
            peer.expect(client_says);
        }
        peer.send(server_says);
        client.expect(server_says);
        if !client_first {
            client.send(client_says);
            peer.expect(client_says);
        }
        peer.send(vec![b'x'; 100_000]);
        client.expect(vec![b'x'; 100_000]);
        client.finish();
        peer.expect_end();
        peer.finish();
        client.expect_end();
        let line: Value = serde_json::from_str(&server.process.stdout.find("\"event\":\"close\"")).unwrap();
        assert_eq!(
            [&line["authorization.reason"], &line["upstream.software"]],
            [why, software],
            "{line}"
        );
    }
    let page = server.scrape();
    assert_eq!((reported(&page, "ssh_only"), reported(&page, "access")), (2.0, 0.0));
    // A name that is not on the allowlist is refused as ever.
    let mut stranger = server.client(request("other:22"));
    stranger.expect(refused(RefusalReason::NotAllowed));
}

#[test]
fn over_http_2_a_target_of_ssh_is_not_reported_and_its_software_is_known() {
    let target = Target::listen();
    let mut server = Server::with(&Settings::new(&settings(&target, true, "")));
    let mut client = Http2Peer::connect(server.public());
    client.open(1, "devbox:22");
    let mut peer = target.accept();
    client.send(1, CLIENT);
    peer.expect(CLIENT);
    peer.send(SERVER);
    client.expect(1, SERVER);
    peer.finish();
    client.expect_end(1);
    client.tell("end 1");
    let line: Value = serde_json::from_str(&server.process.stdout.find("\"event\":\"close\"")).unwrap();
    assert_eq!(
        [&line["authorization.reason"], &line["upstream.software"]],
        ["", "dropbear_2022.83"],
        "{line}"
    );
    assert_eq!(reported(&server.scrape(), "ssh_only"), 0.0);
}

#[test]
fn a_reload_ends_the_reports_and_the_rule_counts_again() {
    let target = Target::listen();
    let file = Settings::new(&settings(&target, true, ""));
    let mut server = Server::with(&file);
    file.change(&settings(&target, false, ""));
    server.process.signal(rustix::process::Signal::HUP);
    server.process.stderr.find("configuration reloaded");
    let (mut client, mut peer) = server.tunnel("devbox:22", &target);
    client.send("no SSH\r\n");
    client.expect_end();
    peer.expect_end();
    assert_eq!(reported(&server.scrape(), "ssh_only"), 0.0);
}

#[test]
fn what_access_would_refuse_is_reported_too() {
    let target = Target::listen();
    let directory = tempfile::tempdir().unwrap();
    let users = directory.path().join("users");
    fs::write(&users, LINE).unwrap();
    let access = format!("access: {{mode: report, users: {{file: \"{}\"}}}}\n", users.display());
    let mut server = Server::with(&Settings::new(&settings(&target, true, &access)));
    let (mut client, mut peer) = server.tunnel("devbox:22", &target);
    client.send(CLIENT);
    peer.expect(CLIENT);
    assert_eq!(reported(&server.scrape(), "access"), 1.0);
    client.send("no SSH\r\n");
    peer.expect("no SSH\r\n");
    // Of SSH on one side only, and of no user: the line of the end has both.
    peer.send("no SSH\r\n");
    client.expect("no SSH\r\n");
    drop((client, peer));
    let line = server.process.stdout.find("\"event\":\"close\"");
    let why = "would be refused: credentials are required";
    assert!(line.contains(why), "{line}");
    let end = "; would be refused: the target does not begin with an SSH identification";
    assert!(line.contains(end), "{line}");
}

#[test]
fn check_warns_of_it_and_refuses_it_beside_enforced_access() {
    let target = Target::listen();
    let file = Settings::new("");
    for (more, status, says) in [
        ("", 0, "warning: allowlist.report_only: REPORT MODE"),
        (
            "access: {mode: enforce, kubernetes: {enabled: true}}\n",
            2,
            "error: allowlist.report_only: what `access.mode: enforce` refuses is not served",
        ),
    ] {
        file.write(&on_free_ports(&settings(&target, true, more)));
        let mut process = Process::spawn(switchboard(&["check", file.path()]));
        assert_eq!(process.exit_status(), status);
        let said = process.stderr.rest().join("\n");
        assert!(said.contains(says), "{said}");
    }
}
