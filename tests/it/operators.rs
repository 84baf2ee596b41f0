//! The API of operators on the admin port: which tunnels are open, the end of some, the rates of one, targets that take no new
//! tunnels, and events.

use serde_json::Value;
use switchboard::daemon::admin::api;

use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings, switchboard_with_descriptors};
use crate::harness::target::Target;
use crate::harness::{allow, eventually, request};

mod description;
mod faults;
mod legs;
mod past;
mod restrictions;

/// A proxy with two targets.
fn two_targets(one: &Target, other: &Target, more: &str) -> Server {
    let list = allow(&[("one:22", one.address()), ("other:22", other.address())]);
    Server::with(&Settings::new(&(list + more)))
}

#[track_caller]
fn tunnels(server: &Server, query: &str) -> api::Tunnels {
    let answer = server.ask_admin("GET", &format!("/tunnels{query}"));
    assert_eq!(answer.status, 200, "{}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

/// The tunnels, once there are that many: a client has its 200 a moment before the tunnel is listed.
#[track_caller]
pub(crate) fn all(server: &Server, count: usize) -> Vec<api::Tunnel> {
    let all = || Some(tunnels(server, "")).filter(|listed| listed.total == count);
    eventually("the tunnels are listed", all).tunnels
}

#[test]
fn open_tunnels_are_listed_with_their_client_target_and_bytes() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "limits: {tunnel: {download: 5MiB/s}}\n");
    assert_eq!(tunnels(&server, "").total, 0);
    let (mut client, mut service) = server.tunnel("one:22", &one);
    client.send("abc");
    service.expect("abc");
    service.send("12345");
    client.expect("12345");
    let _second = server.tunnel("other:22", &other);
    all(&server, 2);
    // A byte is counted a moment after its peer has it.
    let listed = eventually("the bytes are counted", || {
        Some(tunnels(&server, "?target=static/one:22")).filter(|listed| {
            let counted = |tunnel: &api::Tunnel| (tunnel.bytes_received, tunnel.bytes_sent) == (3, 5);
            listed.tunnels.iter().all(counted)
        })
    });
    assert_eq!((listed.total, listed.tunnels.len(), listed.next), (1, 1, None));
    let tunnel = &listed.tunnels[0];
    assert_eq!(tunnel.client_port, client.address().port());
    assert_eq!(
        (&*tunnel.target_service, tunnel.upstream_address),
        ("one:22", Some(one.address()))
    );
    assert_eq!((&*tunnel.download.rate, &*tunnel.upload.rate), ("5MiB/s", "unlimited"));
    assert!(!tunnel.is_resumable && !tunnel.download.is_own);
    let alone = server.ask_admin("GET", &format!("/tunnels/{}", tunnel.tunnel_id));
    let alone: api::Tunnel = serde_json::from_str(&alone.body).unwrap();
    assert_eq!((&alone.tunnel_id, &alone.since), (&tunnel.tunnel_id, &tunnel.since));
    drop((client, service));
    eventually("one is left", || (tunnels(&server, "").total == 1).then_some(()));
    let gone = server.ask_admin("GET", &format!("/tunnels/{}", tunnel.tunnel_id));
    assert_eq!(gone.status, 404, "{}", gone.body);
}

#[test]
fn a_list_is_sorted_filtered_and_in_parts() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "");
    let open: Vec<_> = (0..5_usize)
        .map(|number| {
            let (mut client, mut service) = server.tunnel("one:22", &one);
            client.send("x".repeat(10 * number));
            service.expect("x".repeat(10 * number));
            (client, service)
        })
        .collect();
    all(&server, 5);
    let bytes = |query: &str| -> Vec<u64> {
        let listed = tunnels(&server, query).tunnels;
        listed.iter().map(|tunnel| tunnel.bytes_received).collect()
    };
    // A byte is counted a moment after its peer has it.
    eventually("the bytes are counted", || {
        (bytes("?sort=bytes") == [40, 30, 20, 10, 0]).then_some(())
    });
    assert_eq!(bytes("?sort=age"), [0, 10, 20, 30, 40]);
    assert_eq!(bytes("?target=static/other:22"), [0; 0]);
    assert_eq!(bytes("?client=127.0.0.2"), [0; 0]);
    assert_eq!(bytes("?client=127.0.0.1&sort=bytes&limit=1"), [40]);
    let first = tunnels(&server, "?sort=bytes&limit=3");
    let next = first.next.unwrap();
    assert_eq!(bytes(&format!("?sort=bytes&limit=3&cursor={next}")), [10, 0]);
    for faulty in ["?sort=size", "?client=x", "?limit=x", "?cursor=x"] {
        let answer = server.ask_admin("GET", &format!("/tunnels{faulty}"));
        assert_eq!(answer.status, 400, "{faulty}: {}", answer.body);
    }
    drop(open);
}

#[test]
fn an_operator_ends_one_tunnel_or_those_of_a_target_and_the_log_says_why() {
    let (one, other) = (Target::listen(), Target::listen());
    let mut server = two_targets(&one, &other, "");
    let (mut kept, mut kept_service) = server.tunnel("other:22", &other);
    let mut ended = [server.tunnel("one:22", &one), server.tunnel("one:22", &one)];
    let open = all(&server, 3);
    let id = &open[1].tunnel_id;
    let answer = server.tell_admin(
        "DELETE",
        &format!("/tunnels/{id}"),
        r#"{"reason": "it \u001b[31mloops"}"#,
    );
    let closed: api::CloseResponse = serde_json::from_str(&answer.body).unwrap();
    assert_eq!((answer.status, &closed.closed), (200, &vec![id.clone()]));
    let (client, service) = &mut ended[0];
    client.expect_reset();
    service.expect_reset();
    let line: Value = serde_json::from_str(&server.process.stdout.next().unwrap()).unwrap();
    assert_eq!(
        (&line["reason"], &line["closed_by"]),
        (&"closed_by_operator".into(), &"proxy".into())
    );
    assert_eq!(line["tunnel_id"], **id);
    let said = line["operator.reason"].as_str().unwrap();
    assert!(
        said.starts_with("it ") && said.ends_with("[31mloops") && !said.contains('\u{1b}'),
        "{said}"
    );
    let answer = server.ask_admin("DELETE", "/tunnels?target=static/one:22");
    let closed: api::CloseResponse = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(closed.closed, [open[2].tunnel_id.clone()]);
    ended[1].0.expect_reset();
    // The count follows the reset by a moment.
    server.settles(r#"tunnels_closed_total{by="proxy",reason="closed_by_operator"}"#, 2.0);
    kept.send("still");
    kept_service.expect("still");
    for (path, body, status) in [
        ("/tunnels", "", 400),
        ("/tunnels?target=", "{", 400),
        ("/tunnels?target=", r#"{"because": "x"}"#, 400),
        ("/tunnels/00000000-1", "", 404),
        ("/tunnels/x", "", 404),
    ] {
        let answer = server.tell_admin("DELETE", path, body);
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        assert!(answer.body.starts_with(r#"{"error":""#), "{path}: {}", answer.body);
    }
}

#[test]
fn an_operator_limits_a_tunnel_until_it_ends() {
    const SENT: usize = 4 << 20;
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "limits: {tunnel: {burst: 16KiB}}\n");
    let (mut client, service) = server.tunnel("one:22", &one);
    let id = &all(&server, 1)[0].tunnel_id;
    let limit = |body: &str| server.tell_admin("PATCH", &format!("/tunnels/{id}"), body);
    let answer = limit(r#"{"upload": "1KiB/s"}"#);
    let limited: api::Tunnel = serde_json::from_str(&answer.body).unwrap();
    assert_eq!((&*limited.upload.rate, limited.upload.is_own), ("1KiB/s", true));
    assert!(!limited.download.is_own);
    let reader = std::thread::spawn(move || {
        let mut service = service;
        service.expect("x".repeat(SENT));
    });
    let writer = std::thread::spawn(move || {
        client.send("x".repeat(SENT));
        client
    });
    eventually("it waits for its own limit", || {
        let tunnel = &tunnels(&server, "").tunnels[0];
        (tunnel.upload.waited_ms > 0).then_some(())
    });
    // At that rate it would take an hour.
    let answer = limit(r#"{"upload": "default"}"#);
    let limited: api::Tunnel = serde_json::from_str(&answer.body).unwrap();
    assert_eq!((&*limited.upload.rate, limited.upload.is_own), ("unlimited", false));
    reader.join().unwrap();
    drop(writer.join().unwrap());
    for (body, names) in [
        (r#"{"upload": "fast"}"#, "upload: "),
        (r#"{"upload": "1KiB/s", "download": "-1"}"#, "download: "),
        (r#"{"both": "1KiB/s"}"#, "both"),
        ("[]", "body: "),
    ] {
        let answer = limit(body);
        // The tunnel may have ended by now.
        assert!([400, 404].contains(&answer.status), "{body}: {}", answer.body);
        assert!(
            answer.status == 404 || answer.body.contains(names),
            "{body}: {}",
            answer.body
        );
    }
}

#[test]
fn a_cordoned_target_takes_no_new_tunnels_and_keeps_those_that_it_has() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "");
    let (mut client, mut service) = server.tunnel("one:22", &one);
    all(&server, 1);
    let cordoned = server.ask_admin("POST", "/targets/static/one:22/cordon");
    let cordoned: api::Target = serde_json::from_str(&cordoned.body).unwrap();
    assert!(cordoned.is_cordoned && cordoned.tunnels == 1, "{cordoned:?}");
    assert!(server.answer("one:22").starts_with("HTTP/1.1 503 "));
    server.settles(r#"connect_requests_total{code="503",reason="target_closed"}"#, 1.0);
    drop(server.tunnel("other:22", &other));
    client.send("on");
    service.expect("on");
    let listed = server.ask_admin("GET", "/targets");
    let listed: api::Targets = serde_json::from_str(&listed.body).unwrap();
    let names: Vec<_> = listed
        .targets
        .iter()
        .map(|target| (&*target.service, target.is_cordoned))
        .collect();
    assert_eq!(names, [("one:22", true), ("other:22", false)]);
    assert_eq!(
        (listed.targets[0].endpoints_ready, &listed.targets[0].addresses),
        (1, &vec![one.address()])
    );
    server.ask_admin("POST", "/targets/static/one%3A22/uncordon");
    drop(server.tunnel("one:22", &one));
    assert_eq!(server.ask_admin("POST", "/targets/static/none:22/cordon").status, 404);
    assert_eq!(server.ask_admin("GET", "/targets/static/one:22/cordon").status, 405);
}

#[test]
fn clients_are_listed_by_their_tunnels() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "");
    let _open = [server.tunnel("one:22", &one), server.tunnel("other:22", &other)];
    all(&server, 2);
    let answer = server.ask_admin("GET", "/clients");
    let listed: api::Clients = serde_json::from_str(&answer.body).unwrap();
    let [client] = &listed.clients[..] else {
        panic!("{listed:?}")
    };
    assert_eq!((client.address.to_string().as_str(), client.tunnels), ("127.0.0.1", 2));
}

#[test]
fn clients_have_the_rates_of_their_tunnels() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "");
    let mut tunnels = [server.tunnel("one:22", &one), server.tunnel("other:22", &other)];
    eventually("both tunnels count", || {
        for (client, service) in &mut tunnels {
            service.send([b'd'; 5000]);
            client.expect([b'd'; 5000]);
            client.send([b'u'; 500]);
            service.expect([b'u'; 500]);
        }
        let answer = server.ask_admin("GET", "/clients");
        let listed: api::Clients = serde_json::from_str(&answer.body).unwrap();
        let [client] = &listed.clients[..] else {
            return None;
        };
        let each: Vec<_> = all(&server, 2).iter().map(|open| open.sent_per_second).collect();
        let is_sum = client.sent_per_second == each.iter().sum::<u64>() && each.iter().all(|rate| *rate > 0);
        (is_sum && client.received_per_second > 0).then_some(())
    });
}

#[test]
fn a_static_target_says_how_its_last_dial_ended() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "");
    let last = || {
        let answer = server.ask_admin("GET", "/targets/static/one:22");
        let target: api::Target = serde_json::from_str(&answer.body).unwrap();
        target.last_dial.map(|dial| (dial.error, dial.sentence))
    };
    assert_eq!(last(), None);
    drop(server.tunnel("one:22", &one));
    assert_eq!(last(), Some((String::new(), String::new())));
    drop(one);
    assert!(server.answer("one:22").starts_with("HTTP/1.1 502 "));
    let refused = ["target_refused", "the target refused the connection"].map(str::to_owned);
    assert_eq!(last(), Some(refused.into()));
}

#[test]
fn events_are_told_as_they_happen() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "");
    let mut events = Peer::connect(server.admin());
    events.send("GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    events.expect("HTTP/1.1 200 OK\r\n");
    events.read_past("\r\n\r\n");
    let (client, _service) = server.tunnel("one:22", &one);
    events.read_past("event: opened\ndata: {");
    server.ask_admin("POST", "/targets/static/one:22/cordon");
    events.read_past(
        r#"event: changed
data: {"change":"cordoned","name":"static/one:22"}"#,
    );
    server.client(request("one:22")).expect("HTTP/1.1 503 ");
    events.read_past("event: refused\ndata: {");
    events.read_past(r#""reason":"target_closed""#);
    client.reset();
    events.read_past("event: closed\ndata: {");
    events.read_past(r#""reason":"reset""#);
}

/// An eighth of the descriptors is kept for the connections of the admin port.
#[test]
fn the_admin_port_takes_no_more_connections_than_descriptors_are_kept_for() {
    let settings = Settings::new("");
    let command = switchboard_with_descriptors(128, &["serve", "--config", settings.path()]);
    let server = Server::start(command);
    let mut readers: Vec<_> = (0..16)
        .map(|_| {
            let mut events = Peer::connect(server.admin());
            events.send("GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n");
            events.read_past("\r\n\r\n");
            events
        })
        .collect();
    let _one_more = Peer::connect(server.admin());
    // The oldest one.
    readers.remove(0).rest();
    assert!(server.answer("nowhere:22").starts_with("HTTP/1.1 403 "));
    for events in &mut readers {
        events.read_past("event: refused\n");
    }
}

/// Names of clients and users, and what changes something, are for this host and its terminals only.
#[test]
fn pages_of_browsers_and_other_hosts_see_no_names() {
    let server = Server::with(&Settings::new(""));
    for path in ["/tunnels", "/targets", "/clients", "/events", "/tunnels/x"] {
        for (field, reason) in [
            ("Origin: http://localhost", "not from a page in a browser"),
            ("Sec-Fetch-Site: cross-site", "not from a page in a browser"),
            (
                "Host: rebound.example.com",
                "only as localhost or by a loopback address",
            ),
            ("Host: x@localhost", "only as localhost or by a loopback address"),
        ] {
            let mut client = Peer::connect(server.admin());
            client.send(format!("GET {path} HTTP/1.0\r\n{field}\r\n\r\n"));
            let answer = client.rest_as_text();
            assert!(
                answer.starts_with("HTTP/1.0 403 ") && answer.contains(reason),
                "{answer}"
            );
        }
    }
}

#[test]
fn where_scrapes_are_of_this_host_only_no_other_learns_which_targets_there_are() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "admin_scrape: loopback\n");
    for path in [
        "/metrics",
        "/activity?target=static/one:22",
        "/activity?target=static/none",
    ] {
        let elsewhere = server.ask_admin_as("GET", path, "switchboard.example.com");
        assert_eq!(elsewhere.status, 403, "{path}: {}", elsewhere.body);
        assert_ne!(server.ask_admin("GET", path).status, 403, "{path}");
    }
    for path in ["/livez", "/readyz", "/drain"] {
        assert_eq!(
            server.ask_admin_as("GET", path, "switchboard.example.com").status,
            200,
            "{path}"
        );
    }
}

#[test]
fn a_target_is_in_use_from_its_first_tunnel_on_and_only_this_host_learns_by_whom() {
    let (one, other) = (Target::listen(), Target::listen());
    let server = two_targets(&one, &other, "");
    let activity = |query: &str| -> api::Activity {
        let answer = server.ask_admin("GET", &format!("/activity{query}"));
        assert_eq!(answer.status, 200, "{query}: {}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    };
    let unused = activity("?target=static/one:22");
    assert_eq!(
        (unused.has_activity, unused.last_activity, unused.why),
        (false, None, Some(vec![]))
    );
    let (client, _service) = server.tunnel("one:22", &one);
    let open = all(&server, 1);
    let used = activity("?target=static/one:22");
    let why = used.why.unwrap();
    assert!(used.has_activity && open[0].is_active && why[0].is_active);
    assert_eq!(used.last_activity.as_ref(), Some(&open[0].last_active));
    assert_eq!(
        (&why[0].tunnel_id, why[0].client_address),
        (&open[0].tunnel_id, client.address().ip())
    );
    assert_eq!(why.len(), 1);
    assert!(!activity("?target=static/other:22").has_activity);
    let elsewhere = server.ask_admin_as("GET", "/activity?target=static/one:22", "switchboard.example.com");
    let elsewhere: api::Activity = serde_json::from_str(&elsewhere.body).unwrap();
    assert_eq!((elsewhere.has_activity, elsewhere.why), (true, None));
    let page = server.scrape();
    let timestamp =
        page.value(r#"target_last_activity_timestamp_seconds{target_namespace="static",target_service="one:22"}"#);
    assert!(timestamp > 1.7e9, "{timestamp}");
    for (query, status) in [("", 400), ("?target=static/two:22", 404)] {
        assert_eq!(
            server.ask_admin("GET", &format!("/activity{query}")).status,
            status,
            "{query}"
        );
    }
}
