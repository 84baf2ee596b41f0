//! An invalid request is answered in JSON by the name of its error, and changes nothing.

use super::{all, tunnels, two_targets};
use crate::harness::allow;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings};
use crate::harness::target::Target;
use switchboard::daemon::admin::api;

#[test]
fn what_is_wrong_with_a_query_a_path_or_a_body_is_named() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "");
    let _open = server.tunnel("one:22", &one);
    let id = &all(&server, 1)[0].tunnel_id;
    for (method, path, body, status, names) in [
        ("GET", "/tunnels?sort=size", "", 400, "sort"),
        ("GET", "/tunnels?client=x", "", 400, "client"),
        ("GET", "/tunnels?limit=-1", "", 400, "limit"),
        ("GET", "/tunnels?cursor=x", "", 400, "cursor"),
        ("GET", "/tunnels?tagret=static/one:22", "", 400, "tagret"),
        ("GET", "/tunnels?sort=age&sort=idle", "", 400, "sort"),
        ("GET", "/targets?sort=age", "", 400, "sort"),
        ("GET", "/clients?user=a", "", 400, "user"),
        ("GET", &format!("/tunnels/{id}/diagnosis?over=1s"), "", 400, "over"),
        (
            "GET",
            &format!("/tunnels/{id}/diagnosis?over_ms=99999"),
            "",
            400,
            "over_ms",
        ),
        ("DELETE", "/tunnels", "", 400, "target"),
        ("DELETE", "/tunnels?target=", "", 400, "target: the value is empty"),
        ("DELETE", "/tunnels?target=static/one:22&user=", "", 400, "user: "),
        ("DELETE", "/tunnels?node&limit=1", "", 400, "node: "),
        ("DELETE", "/tunnels?tagret=static/one:22", "", 400, "tagret"),
        ("DELETE", "/tunnels?target=static/one:22&sort=age", "", 400, "sort"),
        ("DELETE", "/tunnels?target=static/one:22", "[1]", 400, "body: "),
        ("GET", "/tunnels/%ff", "", 400, "UTF-8"),
        ("GET", "/targets/static/one%ff", "", 400, "UTF-8"),
        ("GET", "/targets/static/one", "", 404, "static/one"),
        ("PATCH", &format!("/tunnels/{id}"), r#"{"rate": "1"}"#, 400, "rate"),
        ("PATCH", "/tunnels", "", 405, "only GET, HEAD, DELETE"),
        ("DELETE", &format!("/tunnels/{id}"), &" ".repeat(16_385), 413, "body: "),
    ] {
        let answer = server.tell_admin(method, path, body);
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        let fault: api::ErrorBody = serde_json::from_str(&answer.body).unwrap();
        assert!(fault.error.contains(names), "{method} {path}: {}", fault.error);
    }
    assert_eq!(tunnels(&server, "").total, 1);
}

#[test]
fn a_body_that_is_no_object_is_refused_with_the_form_that_is_wanted() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "");
    let _open = server.tunnel("one:22", &one);
    let id = &all(&server, 1)[0].tunnel_id;
    let (this, those) = (format!("/tunnels/{id}"), "/tunnels?target=static/one:22");
    let rates = r#"{"download": RATE, "upload": RATE}"#;
    let reason = r#"{"reason": TEXT, "move": BOOLEAN, "for": DURATION}"#;
    for (method, path, form) in [
        ("PATCH", &*this, rates),
        ("DELETE", &this, reason),
        ("DELETE", those, reason),
    ] {
        for body in ["[]", r#" ["1MiB/s"]"#, "null", r#""1MiB/s""#] {
            let answer = server.tell_admin(method, path, body);
            assert_eq!(answer.status, 400, "{method} {path} {body}: {}", answer.body);
            let fault: api::ErrorBody = serde_json::from_str(&answer.body).unwrap();
            assert_eq!(fault.error, format!("body: expected {form}"));
        }
    }
    assert_eq!(tunnels(&server, "").total, 1);
}

#[test]
fn the_oldest_tunnels_of_a_target_are_ended_up_to_a_limit() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "");
    let _open: Vec<_> = (0..3).map(|_| server.tunnel("one:22", &one)).collect();
    let ids: Vec<_> = all(&server, 3).into_iter().map(|tunnel| tunnel.tunnel_id).collect();
    let end = |query: &str| -> api::CloseResponse {
        let answer = server.ask_admin("DELETE", &format!("/tunnels?{query}"));
        serde_json::from_str(&answer.body).unwrap()
    };
    let none = end("target=static/one:22&limit=0");
    assert_eq!((none.closed.len(), none.left), (0, 3));
    let two = end("target=static/one:22&client=127.0.0.1&limit=2");
    assert_eq!((&two.closed[..], two.left), (&ids[..2], 1));
    all(&server, 1);
    let last = end("target=static%2Fone%3A22&limit=2");
    assert_eq!((&last.closed[..], last.left), (&ids[2..], 0));
}

/// Lists leave the domain of a cluster out where there is no room.
#[test]
fn a_static_target_is_named_as_lists_show_it() {
    let target = Target::listen();
    let server = Server::with(&Settings::new(&allow(&[(
        "box.team.svc.cluster.local:22",
        target.address(),
    )])));
    for (name, status) in [("box.team:22", 200), ("box.team:23", 404), ("other.team:22", 404)] {
        let answer = server.ask_admin("POST", &format!("/targets/static/{name}/cordon"));
        assert_eq!(answer.status, status, "{name}: {}", answer.body);
    }
    assert!(
        server
            .answer("box.team.svc.cluster.local:22")
            .starts_with("HTTP/1.1 503 ")
    );
}

/// The name of a static target is an authority: it has a colon, and brackets around IPv6.
#[test]
fn a_static_target_is_named_with_and_without_escapes() {
    let target = Target::listen();
    let list = format!(
        "allowlist: {{static: [{{name: 'box:22', addresses: ['{0}']}}, {{name: '[2001:db8::1]:22', addresses: ['{0}']}}]}}\n",
        target.address()
    );
    let server = Server::with(&Settings::new(&list));
    for (path, name) in [
        ("box:22", "box:22"),
        ("box%3A22", "box:22"),
        ("%62ox%3a22", "box:22"),
        ("%5B2001%3Adb8%3A%3A1%5D%3A22", "[2001:db8::1]:22"),
        ("[2001:db8::1]:22", "[2001:db8::1]:22"),
    ] {
        for (action, is_cordoned) in [("cordon", true), ("uncordon", false)] {
            let answer = server.ask_admin("POST", &format!("/targets/static/{path}/{action}"));
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            let alone = server.ask_admin("GET", &format!("/targets/static/{path}"));
            for answer in [answer, alone] {
                let target: api::Target = serde_json::from_str(&answer.body).unwrap();
                assert_eq!((&*target.service, target.is_cordoned), (name, is_cordoned));
            }
        }
    }
}

#[test]
fn a_list_of_targets_and_of_clients_is_in_parts() {
    let target = Target::listen();
    let items: Vec<_> = (0..5)
        .map(|number| format!("{{name: 'box{number}:22', addresses: ['{}']}}", target.address()))
        .collect();
    let server = Server::with(&Settings::new(&format!(
        "allowlist: {{static: [{}]}}\n",
        items.join(", ")
    )));
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let answer = server.ask_admin("GET", &format!("/targets?limit=2{cursor}"));
        let part: api::Targets = serde_json::from_str(&answer.body).unwrap();
        assert!(part.targets.len() <= 2 && part.total == 5);
        seen.extend(part.targets.into_iter().map(|target| target.service));
        match part.next {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, ["box0:22", "box1:22", "box2:22", "box3:22", "box4:22"]);
    let answer = server.ask_admin("GET", "/clients?limit=1");
    assert_eq!(
        serde_json::from_str::<api::Clients>(&answer.body).unwrap(),
        api::Clients::default()
    );
}
