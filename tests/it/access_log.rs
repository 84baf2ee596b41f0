//! The access log of the real binary: one JSON line a connection, with every field every time.

use std::collections::HashSet;
use std::fs;

use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings, switchboard};
use crate::harness::target::{Closed, Target};
use crate::harness::{allow, eventually, request};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

/// Every field, as the interface that it is. `null` represents a value that differs every time.
fn fields(client: Value) -> Value {
    let mut every = json!({
        "timestamp": null,
        "level": "INFO",
        "client.address": "127.0.0.1",
        "client.port": null,
        "network.peer.address": "127.0.0.1",
        "tls.version": "",
        "tls.client.subject": "",
        "tls.client.names": "",
        "user.name": "",
        "user.groups": "",
        "user.id": "",
        "auth.method": "",
        "auth.claimed_user": "",
        "authorization.reason": "",
        "http.version": "1",
        "server.address": "",
        "server.port": 0,
        "client.software": "",
        "upstream.address": "",
        "upstream.node": "",
        "upstream.software": "",
        "target.namespace": "",
        "target.service": "",
        "event": "refuse",
        "status": null,
        "reason": null,
        "closed_by": "proxy",
        "operator.reason": "",
        "bytes_sent": 0,
        "bytes_received": 0,
        "duration_ms": null,
        "dial_ms": null,
        "dial_error": "",
        "client.rtt_ms": null,
        "client.retransmits": null,
        "upstream.rtt_ms": null,
        "upstream.retransmits": null,
        "tunnel.resumable": false,
        "answered": "http",
        "tunnel_id": null,
        "count": 1,
    });
    // The macro has a limit of recursion.
    every["upstream.anchor"] = "".into();
    every["door"] = "http".into();
    merged(every, client)
}

fn merged(mut base: Value, over: Value) -> Value {
    let Value::Object(over) = over else { panic!("{over}") };
    base.as_object_mut().unwrap().extend(over);
    base
}

/// A line with the values that are expected, once those that differ each time have been looked at.
fn checked(line: &str, expected: &Value) -> Value {
    let mut line: Value = serde_json::from_str(line).unwrap();
    let text = |field: &str| line[field].as_str().unwrap().to_owned();
    assert!(text("timestamp").ends_with('Z'), "{line}");
    let (process, number) = text("tunnel_id")
        .split_once('-')
        .map(|(a, b)| (a.len(), b.len()))
        .unwrap();
    assert!(process == 8 && number >= 1, "{line}");
    assert!(line["client.port"].as_u64().unwrap() > 0, "{line}");
    let duration = line["duration_ms"].as_f64().unwrap();
    let dial = line["dial_ms"].as_f64().unwrap();
    assert!(duration > 0.0 && dial >= 0.0 && dial < duration, "{line}");
    for (field, value) in expected.as_object().unwrap() {
        if value.is_null() {
            line[field] = Value::Null;
        }
    }
    line
}

#[test]
fn a_tunnel_has_a_line_with_every_field() {
    let target = Target::listen();
    let settings = Settings::new(&allow(&[("devbox.local:22", target.address())]));
    let mut server = Server::with(&settings);
    let (mut client, mut service) = server.tunnel("DEVBOX.local.:22", &target);
    let port = client.address().port();
    client.send("up");
    service.expect("up");
    service.send("download");
    service.finish();
    client.expect("download");
    client.expect_end();
    client.finish();
    service.expect_end();
    let expected = fields(json!({
        "client.port": null,
        "server.address": "devbox.local",
        "server.port": 22,
        "upstream.address": target.address().to_string(),
        "target.namespace": "static",
        "target.service": "devbox.local:22",
        "event": "close",
        "status": 200,
        "reason": "eof",
        "closed_by": "target",
        "bytes_sent": 8,
        "bytes_received": 2,
    }));
    let line = server.process.stdout.next().unwrap();
    assert_eq!(checked(&line, &expected), expected);
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["client.port"], port);
    assert!(line["dial_ms"].as_f64().unwrap() > 0.0);
}

/// Elasticsearch makes objects of dotted names, and rejects a line in which one name is both an object and a value.
#[test]
fn no_field_is_both_a_value_and_the_prefix_of_another() {
    let mut server = Server::with(&Settings::new(""));
    server.client(request("other:22")).expect("HTTP/1.1 403 ");
    let line: Value = serde_json::from_str(&server.process.stdout.next().unwrap()).unwrap();
    let names: Vec<_> = line.as_object().unwrap().keys().collect();
    assert!(names.iter().any(|name| *name == "target.namespace"), "{line}");
    for name in &names {
        let prefix = format!("{name}.");
        assert!(!names.iter().any(|other| other.starts_with(&prefix)), "{name}: {line}");
    }
}

#[test]
fn a_refusal_has_a_line_with_every_field() {
    let closed = Closed::bind();
    // No TCP connection leads to an address of all.
    let broadcast = "127.255.255.255:22".parse().unwrap();
    let targets = [("[fd00::1]:22", closed.address()), ("broadcast:22", broadcast)];
    let mut server = Server::with(&Settings::new(&allow(&targets)));
    let refusals = [
        (
            request("[FD00::1]:22"),
            json!({
                "server.address": "fd00::1",
                "server.port": 22,
                "target.namespace": "static",
                "target.service": "[fd00::1]:22",
                "status": 502,
                "reason": "target_refused",
                "closed_by": "target",
                "dial_error": "Connection refused (os error 111)",
            }),
        ),
        (
            request("broadcast:22"),
            json!({
                "server.address": "broadcast",
                "server.port": 22,
                "target.namespace": "static",
                "target.service": "broadcast:22",
                "status": 502,
                "reason": "target_unreachable",
                "dial_error": "Network is unreachable (os error 101)",
            }),
        ),
        (
            request("other:2222"),
            json!({"server.address": "other", "server.port": 2222, "status": 403, "reason": "not_allowed", "dial_ms": 0.0}),
        ),
        (
            // Of the bytes that a client sends, only a well-formed name reaches the log.
            "CONNECT a\"%1b:22 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            json!({"status": 400, "reason": "malformed", "dial_ms": 0.0}),
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            json!({"status": 405, "reason": "method_not_allowed", "dial_ms": 0.0}),
        ),
    ];
    for (head, differing) in refusals {
        server.client(head).expect("HTTP/1.1 ");
        let expected = fields(differing);
        let line = server.process.stdout.next().unwrap();
        assert_eq!(checked(&line, &expected), expected);
    }
}

#[test]
fn each_connection_has_one_line_and_a_port_probe_none() {
    let target = Target::listen();
    let settings = Settings::new(&format!(
        "{}drain: {{delay: 0s}}\n",
        allow(&[("devbox:22", target.address())])
    ));
    let mut server = Server::with(&settings);
    for _ in 0..10 {
        let mut probe = server.client("");
        probe.finish();
        probe.expect_end();
        server.client("").reset();
        server.tunnel("devbox:22", &target);
        server.answer("other:22");
    }
    // Also those that were reset, which nothing here has waited for.
    server.settles("connections_accepted_total", 40.0);
    server.settles("connections_active", 0.0);
    server.process.signal(Signal::TERM);
    assert_eq!(server.process.exit_status(), 0);
    let lines = server.process.stdout.rest();
    let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let with = |status: u16| lines.iter().filter(|line| line["status"] == status).count();
    assert_eq!((lines.len(), with(200), with(403)), (20, 10, 10));
    let numbers: HashSet<&str> = lines.iter().map(|line| line["tunnel_id"].as_str().unwrap()).collect();
    assert_eq!(numbers.len(), 20);
}

/// A crash leaves a trace of the tunnels that it has cut.
#[test]
fn a_tunnel_of_a_process_that_is_killed_has_the_line_of_its_beginning() {
    let target = Target::listen();
    let settings = Settings::new(&allow(&[("devbox:22", target.address())]));
    let log = NamedTempFile::new().unwrap();
    let server = Server::start_into(
        switchboard(&["serve", "--config", settings.path()]),
        log.reopen().unwrap(),
    );
    let _ends = server.tunnel("devbox:22", &target);
    let written = || fs::read_to_string(log.path()).unwrap();
    eventually("the line is written", || written().ends_with('\n').then_some(()));
    server.process.signal(Signal::KILL);
    drop(server);
    let expected = fields(json!({
        "server.address": "devbox",
        "server.port": 22,
        "upstream.address": target.address().to_string(),
        "target.namespace": "static",
        "target.service": "devbox:22",
        "event": "open",
        "status": 200,
        "reason": "",
        "closed_by": "",
    }));
    let lines = written();
    assert_eq!(lines.lines().count(), 1, "{lines}");
    assert_eq!(checked(&lines, &expected), expected);
}

#[test]
fn messages_and_access_lines_do_not_mix() {
    let settings = Settings::new("drain: {delay: 0s}\n");
    let mut server = Server::with(&settings);
    server.answer("other:22");
    server.process.signal(Signal::TERM);
    assert_eq!(server.process.exit_status(), 0);
    assert_eq!(server.process.stdout.rest().len(), 1);
    for message in server.process.stderr.rest() {
        assert!(
            !message.contains("not_allowed") && !message.starts_with('{'),
            "{message}"
        );
    }
}
