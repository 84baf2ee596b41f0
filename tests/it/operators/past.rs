//! The past hour on the admin port: the tunnels that have ended, and the refusals.

use serde::de::DeserializeOwned;
use switchboard::daemon::admin::api;

use super::{all, two_targets};
use crate::harness::eventually;
use crate::harness::ports::Ports;
use crate::harness::process::Server;
use crate::harness::target::Target;

#[track_caller]
fn get<T: DeserializeOwned>(server: &Server, path: &str) -> T {
    let answer = server.ask_admin("GET", path);
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

/// The tunnels that have ended, once there are that many: a client sees its end a moment before.
#[track_caller]
fn ended(server: &Server, count: usize) -> Vec<api::EndedTunnel> {
    let ended = || Some(get::<api::EndedTunnels>(server, "/ended")).filter(|listed| listed.total == count);
    eventually("the ends are listed", ended).ended
}

#[test]
fn who_ended_a_tunnel_and_why_is_known_after_it_has_ended() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "");
    assert!(ended(&server, 0).is_empty());
    let (mut client, mut service) = server.tunnel("one:22", &one);
    client.send("abc");
    service.expect("abc");
    service.send("12345");
    client.expect("12345");
    let id = all(&server, 1)[0].tunnel_id.clone();
    let body = r#"{"reason": "it loops"}"#;
    assert_eq!(server.tell_admin("DELETE", &format!("/tunnels/{id}"), body).status, 200);
    client.expect_reset();
    let first = ended(&server, 1).remove(0);
    assert_eq!((&*first.tunnel_id, &*first.target_service), (&*id, "one:22"));
    assert_eq!((first.bytes_received, first.bytes_sent), (3, 5));
    assert_eq!((&*first.reason, &*first.closed_by), ("closed_by_operator", "proxy"));
    assert_eq!(
        (&*first.sentence, &*first.operator_reason),
        ("an operator ended the connection", "it loops")
    );
    assert!(first.ago_ms < 600_000 && first.age_ms < 600_000, "{first:?}");
    drop(server.tunnel("other:22", &other));
    let both = ended(&server, 2);
    assert_eq!((&*both[0].target_service, &*both[1].tunnel_id), ("other:22", &*id));
    for (query, total) in [
        ("?target=static/one:22", 1),
        ("?target=static/none:22", 0),
        ("?client=127.0.0.1", 2),
        ("?user=alice", 0),
        ("?node=node-7", 0),
    ] {
        let listed: api::EndedTunnels = get(&server, &format!("/ended{query}"));
        assert_eq!((listed.total, listed.ended.len()), (total, total), "{query}");
    }
    let page: api::EndedTunnels = get(&server, "/ended?limit=1");
    assert_eq!((page.total, &page.ended[0].tunnel_id), (2, &both[0].tunnel_id));
    let next: api::EndedTunnels = get(&server, &format!("/ended?limit=1&cursor={}", page.next.unwrap()));
    assert_eq!((&*next.ended[0].tunnel_id, next.next), (&*id, None));
    for faulty in ["?sort=age", "?cursor=x", "?since=1"] {
        assert_eq!(
            server.ask_admin("GET", &format!("/ended{faulty}")).status,
            400,
            "{faulty}"
        );
    }
}

#[test]
fn a_flood_of_refusals_leaves_those_of_others_listed() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "");
    let none: api::Refusals = get(&server, "/refusals");
    assert_eq!((none.reasons.len(), none.past), (0, None));
    assert!(server.answer("before:22").starts_with("HTTP/1.1 403 "));
    for _ in 0..20 {
        assert!(server.answer("again:22").starts_with("HTTP/1.1 403 "));
    }
    for number in 0..60 {
        assert!(server.answer(&format!("n{number}:22")).starts_with("HTTP/1.1 403 "));
    }
    let listed = || get::<api::Refusals>(&server, "/refusals?detail").past.unwrap();
    let sum = |past: &api::PastRefusals| {
        past.refusals
            .iter()
            .map(|entry| entry.count + entry.others)
            .sum::<u64>()
    };
    let past = eventually("all are counted", || Some(listed()).filter(|past| sum(past) == 81));
    // A network has a quarter of the latest entries; the rest is a number.
    assert_eq!((past.total, past.refusals.len()), (32, 32));
    let of = |name: &str| {
        past.refusals
            .iter()
            .find(|entry| entry.request.authority == name)
            .unwrap()
    };
    assert_eq!((of("before:22").count, of("again:22").count), (1, 20));
    let request = &of("before:22").request;
    assert_eq!(
        (request.status, &*request.reason, &*request.closed_by),
        (403, "not_allowed", "proxy")
    );
    assert_eq!(request.sentence, "the target is not on the allowlist");
    for (query, total) in [("&client=127.0.0.1", 32), ("&client=192.0.2.1", 0), ("&user=alice", 0)] {
        let listed: api::Refusals = get(&server, &format!("/refusals?detail{query}"));
        assert_eq!(listed.past.unwrap().total, total, "{query}");
    }
    assert_eq!(server.ask_admin("GET", "/refusals?details").status, 400);
}
