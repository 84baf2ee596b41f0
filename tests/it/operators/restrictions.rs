//! Limits and blocks of clients, users and targets: on the open tunnels, and on those that begin while they last.

use serde_json::Value;
use switchboard::daemon::admin::api;

use super::{all, tunnels, two_targets};
use crate::harness::eventually;
use crate::harness::ports::Ports;
use crate::harness::process::Server;
use crate::harness::target::Target;

#[track_caller]
fn put(server: &Server, body: &str) -> api::Restriction {
    let answer = server.tell_admin("PUT", "/restrictions", body);
    assert_eq!(answer.status, 200, "{body}: {}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

fn listed(server: &Server) -> api::Restrictions {
    serde_json::from_str(&server.ask_admin("GET", "/restrictions").body).unwrap()
}

/// The download rates of the open tunnels, the oldest first.
fn rates(server: &Server) -> Vec<String> {
    let listed = tunnels(server, "").tunnels.into_iter();
    listed.map(|tunnel| tunnel.download.rate).collect()
}

#[test]
fn a_limit_of_a_target_holds_for_open_and_new_tunnels_until_its_time_is_over() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "");
    let _open = [server.tunnel("one:22", &one), server.tunnel("other:22", &other)];
    let open = all(&server, 2);
    let limit = put(
        &server,
        r#"{"target": "static/one:22", "download": "1MiB/s", "for": "10m"}"#,
    );
    assert_eq!((limit.kind, limit.tunnels), (api::RestrictionKind::Limit, 1));
    assert_eq!(
        (&*limit.target, &*limit.download, &*limit.upload),
        ("static/one:22", "1MiB/s", "")
    );
    assert!((1..=600_000).contains(&limit.left_ms), "{limit:?}");
    let _new = server.tunnel("one:22", &one);
    all(&server, 3);
    assert_eq!(rates(&server), ["1MiB/s", "unlimited", "1MiB/s"]);
    // A tunnel's own rate is before that of a restriction.
    let own = format!("/tunnels/{}", open[0].tunnel_id);
    assert_eq!(
        server.tell_admin("PATCH", &own, r#"{"download": "5MiB/s"}"#).status,
        200
    );
    assert_eq!(rates(&server), ["5MiB/s", "unlimited", "1MiB/s"]);
    assert_eq!(
        server.tell_admin("PATCH", &own, r#"{"download": "default"}"#).status,
        200
    );
    assert_eq!(rates(&server), ["1MiB/s", "unlimited", "1MiB/s"]);
    put(&server, r#"{"client": "127.0.0.1", "download": "1KiB/s", "for": "1s"}"#);
    eventually("the limit of the client is over", || {
        (rates(&server) == ["1MiB/s", "unlimited", "1MiB/s"]).then_some(())
    });
    assert_eq!(listed(&server).total, 1);
    // By another spelling, as clients may request it.
    let lift = server.tell_admin("DELETE", "/restrictions", r#"{"target": "static/ONE.:22"}"#);
    assert_eq!(lift.status, 200, "{}", lift.body);
    assert_eq!(rates(&server), ["unlimited"; 3]);
    assert_eq!(listed(&server).total, 0);
}

#[test]
fn an_incomplete_restriction_is_refused() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "");
    for (body, status, words) in [
        ("{}", 400, "of whom?"),
        (r#"{"user": "", "download": "1MiB/s", "for": "1m"}"#, 400, "empty"),
        (r#"{"user": "a", "for": "1m"}"#, 400, "which rate?"),
        (
            r#"{"target": "static/none:22", "download": "1MiB/s", "for": "1m"}"#,
            404,
            "no target static/none:22 is on the allowlist",
        ),
        (r#"{"user": "a", "download": "1MiB/s"}"#, 400, "for: how long"),
        (
            r#"{"user": "a", "download": "1MiB/s", "for": "0s"}"#,
            400,
            "for: must be more",
        ),
        (r#"{"user": "a", "download": "fast", "for": "1m"}"#, 400, "download: "),
        (
            r#"{"kind": "block", "target": "static/one:22", "for": "1m"}"#,
            400,
            "cordon",
        ),
        (r#"{"kind": "wall", "user": "a", "for": "1m"}"#, 400, "wall"),
    ] {
        let answer = server.tell_admin("PUT", "/restrictions", body);
        assert!(
            answer.status == status && answer.body.contains(words),
            "{body}: {}",
            answer.body
        );
    }
}

#[test]
fn a_blocked_client_reads_the_reason_and_its_tunnels_end_unless_they_are_kept() {
    let (one, other) = (Target::listen(), Target::listen());
    let mut server = two_targets(&one, &other, "");
    let (mut open, mut service) = server.tunnel("one:22", &one);
    all(&server, 1);
    let keep = r#"{"kind": "block", "client": "127.0.0.1", "for": "10m", "reason": "it floods", "keep": true}"#;
    assert_eq!(put(&server, keep).tunnels, 1);
    let answer = server.answer("other:22");
    let expected = "HTTP/1.1 403 an operator has blocked this user or address: it floods\r\n";
    assert!(answer.starts_with(expected), "{answer}");
    let line = server.process.stdout.find("\"event\":\"refuse\"");
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["status"], &line["reason"]), (&403.into(), &"blocked".into()));
    assert_eq!(line["server.address"], "other");
    let why = line["authorization.reason"].as_str().unwrap();
    assert!(why.ends_with(": it floods"), "{why}");
    open.send("still");
    service.expect("still");
    let block = put(&server, &keep.replace(", \"keep\": true", ""));
    assert_eq!(
        (block.tunnels, &*block.reason, listed(&server).total),
        (1, "it floods", 1)
    );
    open.expect_reset();
    let line = server.process.stdout.find("closed_by_operator");
    assert!(line.contains(r#""operator.reason":"it floods""#), "{line}");
    let lift = server.tell_admin(
        "DELETE",
        "/restrictions",
        r#"{"kind": "block", "client": "::ffff:127.0.0.1"}"#,
    );
    assert_eq!(lift.status, 200, "{}", lift.body);
    drop(server.tunnel("other:22", &other));
    put(&server, r#"{"kind": "block", "client": "192.0.2.1", "for": "10m"}"#);
    drop(server.tunnel("other:22", &other));
}
