//! The two logs of the real binary: when they cannot be written, and when a stranger would fill them.

use std::fs::{self, File, OpenOptions};
use std::io::pipe;
use std::net::Ipv4Addr;
use std::process::Stdio;

use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Process, Server, Settings, switchboard, with_limit};
use crate::harness::target::Target;
use crate::harness::{allow, eventually, request};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

const NO_DELAY: &str = "drain: {delay: 0s}\n";

/// The messages up to the end of the process, which is asked for.
fn messages(server: &mut Server) -> Vec<String> {
    server.process.signal(Signal::TERM);
    assert_eq!(server.process.exit_status(), 0);
    server.process.stderr.rest()
}

#[test]
fn access_lines_that_cannot_be_written_are_counted_and_seldom_reported() {
    let without_reader = || {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    for (stdout, error) in [(without_reader(), "Broken pipe"), (full(), "No space left")] {
        let settings = Settings::new(NO_DELAY);
        let mut server = Server::start_into(switchboard(&["serve", "--config", settings.path()]), stdout);
        for lost in 1..=5 {
            server.answer("other:22");
            server.settles("log_lines_dropped_total", f64::from(lost));
        }
        let messages = messages(&mut server);
        let reports: Vec<_> = messages.iter().filter(|line| line.contains(error)).collect();
        // One a minute, and not one for each line.
        assert!((1..5).contains(&reports.len()), "{messages:#?}");
        assert!(
            reports[0].contains("ERROR") && reports[0].contains("access lines"),
            "{}",
            reports[0]
        );
    }
}

#[test]
fn a_log_that_is_full_counts_what_it_loses_and_goes_on_once_there_is_space() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("access.log");
    let settings = Settings::new(NO_DELAY);
    // A limit of 1,024 bytes tears the second line. SIGXFSZ, which would end the process there, has its default action.
    let command = with_limit("-f 1", &switchboard(&["serve", "--config", settings.path()]));
    let log = OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let mut server = Server::start_into(command, log.try_clone().unwrap());
    server.answer("first:22");
    eventually("a whole line", || {
        fs::read_to_string(&path).unwrap().ends_with('\n').then_some(())
    });
    server.answer("torn:22");
    server.settles("log_lines_dropped_total", 1.0);
    let torn = fs::read_to_string(&path).unwrap();
    assert!(torn.len() == 1024 && !torn.ends_with('\n'), "{torn}");
    log.set_len(0).unwrap();
    server.answer("third:22");
    eventually("the third line", || {
        fs::read_to_string(&path).unwrap().contains("third").then_some(())
    });
    messages(&mut server);
    let text = fs::read_to_string(&path).unwrap();
    let third: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(third["server.address"], "third");
    assert_eq!(server.process.stdout.next(), None);
}

#[test]
fn messages_are_json_where_they_are_asked_for_as_json() {
    let settings = Settings::new(NO_DELAY);
    let serve = ["serve", "--config", settings.path(), "--log", "debug"];
    let mut by_environment = switchboard(&serve);
    by_environment.env("SWITCHBOARD_LOG_FORMAT", "json");
    for command in [
        switchboard(&[&serve[..], &["--log-format", "json"]].concat()),
        by_environment,
    ] {
        // Not by Server: its ports are in the messages.
        let mut process = Process::spawn(command);
        let public = process.stderr.find("public port ");
        process.signal(Signal::TERM);
        assert_eq!(process.exit_status(), 0);
        for line in [vec![public], process.stderr.rest()].concat() {
            let message: Value = serde_json::from_str(&line).unwrap();
            for field in ["timestamp", "level", "message"] {
                assert!(message[field].is_string(), "{line}");
            }
            // As in the access log, which a collector may put into the same index.
            assert!(message["target"].is_null(), "{line}");
        }
    }
}

#[test]
fn a_filter_that_names_no_level_for_switchboard_leaves_it_at_info() {
    for filter in ["json", "h2=debug", "kube_client=error", ""] {
        let settings = Settings::new(NO_DELAY);
        let mut server = Server::start(switchboard(&["serve", "--config", settings.path(), "--log", filter]));
        let messages = messages(&mut server);
        assert!(
            messages.iter().any(|line| line.contains("drained")),
            "{filter}: {messages:#?}"
        );
    }
}

/// An HTTP/2 connection that answers pings which were never sent; h2 warns of each.
fn answer_no_ping(server: &Server) {
    let mut client = Peer::connect(server.public());
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    client.send(b"\0\0\x08\x06\x01\0\0\0\0pingpong".repeat(50));
    client.finish();
    client.ends();
}

#[test]
fn other_crates_are_silent_unless_the_filter_names_them() {
    for (filter, speaks) in [("info", false), ("trace", false), ("info,h2=warn", true)] {
        let settings = Settings::new(NO_DELAY);
        let mut server = Server::start(switchboard(&["serve", "--config", settings.path(), "--log", filter]));
        answer_no_ping(&server);
        server.settles("connections_active", 0.0);
        let messages = messages(&mut server);
        let foreign = |line: &&String| !line.contains(" switchboard::");
        assert_eq!(
            messages.iter().any(|line| foreign(&line)),
            speaks,
            "{filter}: {messages:#?}"
        );
        assert_eq!(messages.iter().any(|line| line.contains("PING")), speaks, "{filter}");
    }
}

/// The access lines up to the end of the process, which is asked for.
fn access_lines(mut server: Server) -> Vec<Value> {
    messages(&mut server);
    let lines = server.process.stdout.rest();
    lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The lines of that client and reason, and the connections that they represent.
fn counted(lines: &[Value], client: &str, reason: &str) -> (usize, u64) {
    let of_it: Vec<_> = lines
        .iter()
        .filter(|line| line["client.address"] == client && line["reason"] == reason)
        .collect();
    let count = of_it.iter().map(|line| line["count"].as_u64().unwrap()).sum();
    (of_it.len(), count)
}

#[test]
fn refusals_of_one_address_share_lines_that_say_how_many_they_are() {
    const FLOOD: u32 = 300;
    let target = Target::listen();
    let list = allow(&[("devbox:22", target.address())]);
    let server = Server::with(&Settings::new(&(list + NO_DELAY)));
    let since = std::time::Instant::now();
    for _ in 0..FLOOD {
        server.client("garbage\r\n\r\n").expect("HTTP/1.1 400 ");
        server.client(request("other:22")).expect("HTTP/1.1 403 ");
    }
    let mut neighbour = Peer::connect_from(Ipv4Addr::new(127, 0, 0, 9), server.public());
    neighbour.send("garbage\r\n\r\n");
    neighbour.expect("HTTP/1.1 400 ");
    server.settles(
        r#"connect_requests_total{code="400",reason="malformed"}"#,
        f64::from(FLOOD + 1),
    );
    server.settles(
        r#"connect_requests_total{code="403",reason="not_allowed"}"#,
        f64::from(FLOOD),
    );
    // Each of them is counted.
    let took = usize::try_from(since.elapsed().as_secs()).unwrap();
    let lines = access_lines(server);
    let (garbage, stands_for) = counted(&lines, "127.0.0.1", "malformed");
    assert_eq!(stands_for, u64::from(FLOOD));
    // One a second, and one of the rest at the end.
    assert!(garbage <= took + 3, "{garbage} lines in {took} s");
    let (denied, stands_for) = counted(&lines, "127.0.0.1", "not_allowed");
    assert_eq!(stands_for, u64::from(FLOOD));
    assert!(denied <= 10 * (took + 3), "{denied} lines in {took} s");
    assert_eq!(counted(&lines, "127.0.0.9", "malformed"), (1, 1));
}

#[test]
fn what_an_address_is_owed_is_written_within_seconds() {
    let mut server = Server::with(&Settings::new(""));
    for _ in 0..20 {
        server.client("garbage\r\n\r\n").expect("HTTP/1.1 400 ");
    }
    let mut count = 0;
    while count < 20 {
        let line: Value = serde_json::from_str(&server.process.stdout.next().unwrap()).unwrap();
        assert_eq!(line["reason"], "malformed");
        count += line["count"].as_u64().unwrap();
    }
    assert_eq!(count, 20);
}

#[test]
fn every_established_tunnel_has_a_line_of_its_own() {
    const TUNNELS: usize = 100;
    let target = Target::listen();
    let list = allow(&[("devbox:22", target.address())]);
    let server = Server::with(&Settings::new(&(list + NO_DELAY)));
    for _ in 0..TUNNELS {
        server.tunnel("devbox:22", &target);
    }
    server.settles("connections_active", 0.0);
    let lines = access_lines(server);
    assert_eq!(lines.len(), TUNNELS);
    assert!(lines.iter().all(|line| line["count"] == 1 && line["status"] == 200));
}

#[test]
fn a_crowd_of_addresses_does_not_get_a_line_each() {
    const ADDRESSES: u32 = 3_000;
    let server = Server::with(&Settings::new(NO_DELAY));
    let since = std::time::Instant::now();
    for number in 0..ADDRESSES {
        let source = Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 0).to_bits() + number);
        let mut client = Peer::connect_from(source, server.public());
        client.send("garbage\r\n\r\n");
        client.expect("HTTP/1.1 400 ");
    }
    let took = usize::try_from(since.elapsed().as_secs()).unwrap();
    let lines = access_lines(server);
    let stand_for: u64 = lines.iter().map(|line| line["count"].as_u64().unwrap()).sum();
    assert_eq!(stand_for, u64::from(ADDRESSES));
    assert!(lines.len() <= 1_025 * (took + 2), "{} lines in {took} s", lines.len());
}

/// The pipe is full, the queue is full, and still the process ends.
#[test]
fn a_stalled_reader_of_the_access_log_does_not_keep_the_process() {
    let (reader, writer) = pipe().unwrap();
    let target = Target::listen();
    let settings = Settings::new(&(allow(&[("devbox:22", target.address())]) + NO_DELAY));
    let mut server = Server::start_into(switchboard(&["serve", "--config", settings.path()]), writer);
    eventually("lines are dropped", || {
        for _ in 0..1_000 {
            server.tunnel("devbox:22", &target);
        }
        (server.scrape().value("log_lines_dropped_total") > 0.0).then_some(())
    });
    server.process.signal(Signal::TERM);
    assert_eq!(server.process.exit_status(), 0);
    drop(reader);
}
