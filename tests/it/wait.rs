//! `switchboard connect --wait`: a 429 or 503 is followed by another request, when and for as long as both sides say.

use std::fs;
use std::time::{Duration, Instant};

use crate::harness::peer::Peer;
use crate::harness::process::{Process, switchboard};
use crate::harness::target::Target;
use crate::harness::{CONFIRMATION, refusal};

fn connect(proxy: &Target, flags: &[&str]) -> Process {
    let url = format!("http://{}", proxy.address());
    Process::spawn(switchboard(
        &[&["connect", "--resume", "off", "--proxy", &url], flags, &["box:22"]].concat(),
    ))
}

/// The next request, of which the head has been read.
fn asked(proxy: &Target) -> Peer {
    let mut peer = proxy.accept();
    peer.read_past("\r\n\r\n");
    peer
}

fn busy(status: u16, retry_after: &str) -> String {
    refusal(status, "busy", "x", retry_after)
}

#[test]
fn the_next_request_comes_when_the_proxy_says_and_the_session_begins() {
    for status in [429, 503] {
        let proxy = Target::listen();
        let mut client = connect(&proxy, &["--wait"]);
        for _ in 0..2 {
            let mut first = asked(&proxy);
            let refused = Instant::now();
            first.send(busy(status, "Retry-After: 1\r\n"));
            drop(first);
            let mut next = asked(&proxy);
            assert!(
                refused.elapsed() >= Duration::from_millis(900),
                "{:?}",
                refused.elapsed()
            );
            next.send(busy(status, "Retry-After: 0\r\n"));
        }
        let mut peer = asked(&proxy);
        peer.send(CONFIRMATION);
        peer.send("hello\n");
        peer.finish();
        assert_eq!(client.stdout.next().as_deref(), Some("hello"));
        assert_eq!(client.exit_status(), 0);
        // Said once, whatever is waited for.
        let said = client.stderr.rest();
        let expected = format!("switchboard: the proxy answered {status}: busy (retry after 1s): waiting");
        assert_eq!(said, [expected]);
    }
}

#[test]
fn the_wait_is_bounded_as_a_whole_and_not_begun_in_vain() {
    let proxy = Target::listen();
    let began = Instant::now();
    let mut client = connect(&proxy, &["--wait=15s", "--verbose"]);
    asked(&proxy).send(busy(503, "Retry-After: 8\r\n"));
    asked(&proxy).send(busy(503, "Retry-After: 8\r\n"));
    assert_eq!(client.exit_status(), 1);
    let said = client.stderr.rest();
    assert_eq!(
        said,
        [
            "switchboard: the proxy answered 503: busy (retry after 8s): waiting",
            "switchboard: box:22: the proxy answered 503: busy (retry after 8s)"
        ]
    );

    let mut client = connect(&proxy, &["--wait=90s"]);
    asked(&proxy).send(busy(503, "Retry-After: 100\r\n"));
    assert_eq!(client.exit_status(), 1);
    assert!(began.elapsed() < Duration::from_secs(90));
    let said = client.stderr.rest();
    assert_eq!(
        said,
        ["switchboard: box:22: the proxy answered 503: busy (retry after 100s)"]
    );
    proxy.expect_no_connection();
}

#[test]
fn a_client_that_must_start_nothing_says_so_by_its_flag_its_variable_or_its_file() {
    let proxy = Target::listen();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    let url = format!("http://{}", proxy.address());
    let entry = format!("proxies: [{{names: [\"*\"], proxy: \"{url}\", no_wake: true, resume: \"off\"}}]\n");
    fs::write(&file, entry).unwrap();
    let file = file.to_str().unwrap();
    let named = ["--resume", "off", "--proxy", &url];
    for (flags, variable, is_said) in [
        (&[][..], None, false),
        (&[], Some("false"), false),
        (&["--no-wake"], None, true),
        (&[], Some("1"), true),
        (&["--config", file], None, true),
    ] {
        let proxy_flags = if flags.contains(&file) { &[][..] } else { &named };
        let mut command = switchboard(&[&["connect"], proxy_flags, flags, &["box:22"]].concat());
        command.envs(variable.map(|value| ("SWITCHBOARD_NO_WAKE", value)));
        let mut client = Process::spawn(command);
        let mut peer = proxy.accept();
        let head = peer.read_past("\r\n\r\n");
        assert_eq!(
            head.contains("\r\nSwitchboard-Wake: ?0\r\n"),
            is_said,
            "{flags:?} {variable:?}: {head}"
        );
        peer.send(busy(403, ""));
        assert_eq!(client.exit_status(), 1);
    }
}

#[test]
fn every_other_refusal_ends_at_once_and_so_does_a_busy_proxy_without_the_flag() {
    let proxy = Target::listen();
    for (flags, status) in [
        (&["--wait"][..], 400),
        (&["--wait"], 403),
        (&["--wait"], 404),
        (&["--wait"], 407),
        (&["--wait"], 500),
        (&["--wait"], 502),
        (&["--wait"], 504),
        (&[], 429),
        (&[], 503),
    ] {
        let mut client = connect(&proxy, flags);
        asked(&proxy).send(busy(status, "Retry-After: 1\r\n"));
        assert_eq!(client.exit_status(), 1, "{status}");
        let said = client.stderr.rest().join("\n");
        assert!(said.contains(&format!("the proxy answered {status}")), "{said}");
        assert!(!said.contains("waiting"), "{said}");
        proxy.expect_no_connection();
    }
}
