//! Clients that know nothing of sessions: they and their SSH server see the bytes of each other, and no others.

use super::Anchor;
use crate::harness::peer::Peer;
use crate::harness::process::anchor;
use crate::harness::target::{Closed, Target};
use crate::harness::wait_for_user_timeout;
use crate::openssh::process::{program, quiet, run};
use crate::openssh::sshd::Sshd;

/// A plain client that has read the announcement.
fn plain(anchor: &Anchor) -> Peer {
    let mut client = Peer::connect(anchor.address());
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.extend(client.read_once());
    }
    assert!(line.starts_with(b"switchboard-resume-1 "), "{line:?}");
    client
}

#[test]
fn bytes_ends_and_resets_are_passed_on_as_they_are() {
    let target = Target::listen();
    let mut anchor = Anchor::start(target.address(), &[]);

    let mut client = plain(&anchor);
    client.send("SSH-2.0-client\r\n");
    let mut server = target.accept();
    server.expect("SSH-2.0-client\r\n");
    server.send("SSH-2.0-server\r\n");
    client.expect("SSH-2.0-server\r\n");
    client.finish();
    server.expect_end();
    server.send("still here");
    server.finish();
    client.expect("still here");
    client.expect_end();
    let line = anchor.access_line();
    assert_eq!(
        (
            line["kind"].as_str(),
            line["bytes_received"].as_u64(),
            line["bytes_sent"].as_u64()
        ),
        (Some("plain"), Some(16), Some(26)),
        "{line}"
    );

    let mut client = plain(&anchor);
    client.send("SSH-2.0-client\r\n");
    let mut server = target.accept();
    server.expect("SSH-2.0-client\r\n");
    server.reset();
    client.expect_reset();
    assert_eq!(anchor.access_line()["reason"], "reset");
}

#[test]
fn a_client_that_waits_for_the_server_sees_it_and_no_target_is_dialled_for_one_that_left() {
    let target = Target::listen();
    let anchor = Anchor::start(target.address(), &[]);
    let mut client = plain(&anchor);
    drop(plain(&anchor));
    anchor.counts("handshakes_total{result=\"closed\"}", 1.0);

    let mut server = target.accept();
    server.send("SSH-2.0-server\r\n");
    client.expect("SSH-2.0-server\r\n");
    server.send("more");
    client.expect("more");
    client.send("SSH-2.0-client\r\n");
    server.expect("SSH-2.0-client\r\n");
    server.send("the rest");
    client.expect("the rest");
}

#[test]
fn a_target_may_be_a_name() {
    let target = Target::listen();
    let mut anchor = Anchor::start_by_name("localhost", target.address().port());
    let mut client = plain(&anchor);
    client.send("SSH-2.0-client\r\n");
    let mut server = target.accept();
    server.expect("SSH-2.0-client\r\n");
    server.send("SSH-2.0-server\r\n");
    client.expect("SSH-2.0-server\r\n");
    client.reset();
    server.expect_reset();
    assert_eq!(anchor.access_line()["upstream.address"], target.address().to_string());
}

#[test]
fn a_value_that_cannot_work_is_a_fault_of_the_command_line() {
    for (option, value, expected) in [
        (
            "--to",
            "machine.example.com",
            "for '--to <HOST:PORT>': give HOST:PORT, such as",
        ),
        ("--to", "127.0.0.1:0", "for '--to <HOST:PORT>': give HOST:PORT, such as"),
        (
            "--listen",
            "2222",
            "for '--listen <ADDR>': give an IP address and a port, such as",
        ),
        (
            "--admin",
            "localhost:9090",
            "for '--admin <ADDR>': give an IP address and a port, such as",
        ),
        (
            "--memory",
            "63KiB",
            "for '--memory <SIZE>': an anchor has 64KiB or more",
        ),
        ("--window", "1KiB", "for '--window <SIZE>': a window has 4KiB to 64MiB"),
        ("--grace", "0", "for '--grace <DURATION>': must be more than 0s"),
    ] {
        let refused = anchor(&["anchor", option, value]).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{option} {value}");
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn all_faulty_options_and_variables_are_named_at_once() {
    let mut command = anchor(&[
        "anchor",
        "--grace=0",
        "--window",
        "1KiB",
        "--to",
        "x",
        "--memory",
        "1MiB",
    ]);
    let refused = command.env("SWITCHBOARD_ADMIN", "here").output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8(refused.stderr).unwrap();
    let faults: Vec<_> = said.lines().filter(|line| line.starts_with("error: ")).collect();
    for option in ["--grace <", "--window <", "--to <", "--admin <"] {
        assert!(faults.iter().any(|line| line.contains(option)), "{option}: {said}");
    }
    assert_eq!((faults.len(), said.matches("--help").count()), (4, 1), "{said}");
    let one = anchor(&["anchor", "--grace", "0"]).output().unwrap();
    let said = "error: invalid value '0' for '--grace <DURATION>': must be more than 0s\n\nFor more information, try '--help'.\n";
    assert_eq!(String::from_utf8(one.stderr).unwrap(), said);
}

#[test]
fn a_target_that_cannot_be_reached_closes_the_connection_and_the_log_says_why_once() {
    let target = Closed::bind();
    let mut anchor = Anchor::start(target.address(), &[]);
    for count in [1.0, 2.0] {
        let mut client = plain(&anchor);
        client.send("SSH-2.0-client\r\n");
        client.ends();
        anchor.counts("handshakes_total{result=\"unreachable\"}", count);
    }
    anchor.stop();
    let log = anchor.0.process.stderr.rest().join("\n");
    let expected = format!(
        "clients are turned away: the target refused the connection ({})",
        target.address()
    );
    assert_eq!(log.matches(&expected).count(), 1, "{log}");
}

#[test]
fn ssh_logs_in_as_without_an_anchor() {
    let directory = tempfile::tempdir().unwrap();
    let sshd = Sshd::start(directory.path());
    let anchor = Anchor::start(sshd.address, &[]);
    let key = directory.path().join("client_key");
    let mut ssh = quiet(program("ssh", "openssh-client"));
    ssh.args(["-F", "none", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"])
        .args([
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "IdentitiesOnly=yes",
            "-o",
            "LogLevel=ERROR",
        ])
        .arg("-i")
        .arg(key)
        .args(["-p", &anchor.address().port().to_string()])
        .arg(format!("{}@127.0.0.1", sshd.user))
        .arg("cat; exit 7");
    let finished = run(&mut ssh, b"through stdin\n", directory.path(), crate::harness::DEADLINE);
    assert_eq!(finished.status.code(), Some(7), "{finished}\n{}", sshd.log());
    assert_eq!(finished.stdout, "through stdin\n");
}

/// The proxy reads nothing more of the anchor while its client is an `ssh` that is stopped by Ctrl-Z.
fn a_plain_client_that_reads_nothing_keeps_its_connection() {
    let target = Target::listen();
    let mut anchor = Anchor::start(target.address(), &[]);
    let mut client = plain(&anchor);
    client.send("SSH-2.0-client\r\n");
    let mut server = target.accept();
    server.expect("SSH-2.0-client\r\n");
    let mut sent = 0;
    while let fitting @ 1.. = server.send_what_fits(&[7; 65_536]) {
        sent += fitting;
    }
    wait_for_user_timeout();
    client.expect(vec![7; sent]);
    server.finish();
    client.expect_end();
    drop(client);
    anchor.stop();
}

tests_in! { slow: a_plain_client_that_reads_nothing_keeps_its_connection }
