//! Users: what a request without the right credential, or without the right, is answered, by every version of HTTP.

mod certificates;
mod listing;
mod modes;
mod secrets;
mod taken_back;
mod world;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;
use switchboard::daemon::admin::api::Query;
use switchboard::policy::access::{Cleartext, Mode};
use switchboard::proxy::connection::Port;
use switchboard::proxy::open_tunnels::restrictions::{Effect, Restriction};
use switchboard::tunnel::drain::{self, Tasks};
use switchboard::tunnel::outcome::RefusalReason;
use switchboard::tunnel::proxy_header::Policy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

use self::world::{World, head};
use crate::harness::{CONFIRMATION, DEADLINE};

fn request(name: &str, version: &str, fields: &str) -> String {
    format!("CONNECT {name} HTTP/{version}\r\nHost: x\r\n{fields}\r\n")
}

fn bearer(token: &str) -> String {
    format!("Proxy-Authorization: Bearer {token}\r\n")
}

fn basic(user: &str, password: &str) -> String {
    let encoded = STANDARD.encode(format!("{user}:{password}"));
    format!("Proxy-Authorization: Basic {encoded}\r\n")
}

const CHALLENGE: &str = "\r\nProxy-Authenticate: Basic realm=\"switchboard\", charset=\"UTF-8\"\r\n\
                         Proxy-Authenticate: Bearer realm=\"switchboard\"";
const REQUIRED: &str = "407 credentials are required: a token, or a user and a password";

#[tokio::test]
async fn a_request_is_answered_by_its_user_and_that_users_right() {
    let world = World::new(Mode::Enforce, |_| {}).await;
    let right = "Proxy-Status: switchboard; error=http_request_denied; details=\"alice may not ssh to b.team: \
                 needs create services/ssh of team/b\"";
    let (alices, twice) = (bearer("alices"), bearer("alices") + &bearer("bobs"));
    let unknown = format!("403 {}", RefusalReason::NotAllowed.phrase());
    for (name, fields, status, holds) in [
        ("a.team:22", "", REQUIRED, CHALLENGE),
        // A name is no oracle: unknown ones are answered in the same way.
        ("unknown:22", "", REQUIRED, CHALLENGE),
        (
            "a.team:22",
            &bearer("carols"),
            "407 the token is not valid",
            "Bearer realm=\"switchboard\", error=\"invalid_token\"\r\n",
        ),
        ("a.team:22", &twice, "407 Proxy-Authorization is there twice", CHALLENGE),
        (
            "a.team:22",
            "Proxy-Authorization: Digest x\r\n",
            "407 Proxy-Authorization is neither Basic nor Bearer",
            CHALLENGE,
        ),
        ("b.team:22", &alices, "403 alice may not ssh to b.team", right),
        ("B.Team.svc.cluster.local.:22", &alices, &unknown, "\r\n"),
        ("unknown:22", &alices, &unknown, "\r\n"),
        (
            "box.local:22",
            &alices,
            "403 alice may not ssh to box.local:22",
            "details=\"alice may not ssh to box.local:22: the target names no allowed_users and no allowed_groups\"",
        ),
        ("a.team:22", &basic("", "alices"), "200", ""),
        ("A.Team.:22", &basic("whoever", "alices"), "200", ""),
        ("a.team:22", &alices, "200", ""),
    ] {
        for version in ["1.0", "1.1"] {
            let (answer, _client) = world.ask(&request(name, version, fields)).await;
            let answered = match status {
                "200" => CONFIRMATION.trim_end().to_owned(),
                _ if status.starts_with("407") => format!("HTTP/{version} {status}\r\n"),
                _ => format!("HTTP/1.1 {status}\r\n"),
            };
            assert!(answer.starts_with(&answered), "{name} {fields}: {answer}");
            assert!(answer.contains(holds), "{name} {fields}: {answer}");
            assert!(!answer.contains("alices"), "{answer}");
        }
    }
}

#[tokio::test]
async fn a_user_who_is_blocked_during_the_review_gets_no_tunnel_and_others_do() {
    let world = World::new(Mode::Enforce, |_| {}).await;
    world.cluster.allow("bob", "team/a");
    let ask = async |token: &str| world.ask(&request("a.team:22", "1.1", &bearer(token))).await;
    let block = || Restriction {
        of: Query {
            user: Some("alice".to_owned()),
            ..Query::default()
        },
        effect: Effect::Block {
            reason: "it floods".into(),
            keeps_tunnels: false,
        },
        until: tokio::time::Instant::now() + Duration::from_mins(10),
    };
    let restrictions = &world.shared.registry.restrictions;
    let held = world.cluster.answers.lock().await;
    let (mut asked, _serving) = world.connect().await;
    asked
        .write_all(request("a.team:22", "1.1", &bearer("alices")).as_bytes())
        .await
        .unwrap();
    let reviewed = async {
        while world.cluster.access_reviews.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, reviewed).await.unwrap();
    assert!(restrictions.add(block()));
    drop(held);
    let refused = head(&mut asked).await;
    let expected = "HTTP/1.1 403 an operator has blocked this user or address: it floods\r\n";
    assert!(refused.starts_with(expected), "{refused}");
    let (answer, _client) = ask("bobs").await;
    assert!(answer.starts_with(CONFIRMATION.trim_end()), "{answer}");
    assert!(restrictions.remove(true, &block().of).is_some());
    let (answer, _client) = ask("alices").await;
    assert!(answer.starts_with(CONFIRMATION.trim_end()), "{answer}");
}

#[tokio::test]
async fn malformed_and_large_fields_are_refused_without_a_question() {
    let world = World::new(Mode::Enforce, |_| {}).await;
    let long = "x".repeat(12 * 1024 + 1);
    let folded = "Proxy-Authorization: Bearer\r\n alices\r\n";
    for (fields, status) in [
        (bearer("ali\0ces"), "400 a header field is malformed"),
        (folded.to_owned(), "400 a header field is malformed"),
        (bearer(" alices"), "407 the Bearer token is malformed"),
        (basic("", " alices"), "407 "),
        (basic("x", "ali\u{0}ces"), "407 the Basic credential is malformed"),
        (bearer(&long), "407 the token is longer than 12 KiB"),
        (bearer(&"x".repeat(17 * 1024)), "431 "),
        (bearer("eyJhbGciOiJSUzI1NiJ9.e30"), "407 the token is cut"),
        ("Proxy-Authorization: \r\n".to_owned(), "407 "),
    ] {
        let (answer, _client) = world.ask(&request("a.team:22", "1.1", &fields)).await;
        let shown = fields.get(..60).unwrap_or(&fields);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{shown}: {answer}");
        assert!(!answer.contains("xxxx"), "{answer}");
    }
    assert_eq!(world.cluster.token_reviews.load(Ordering::Relaxed), 0);
}

/// The first answer of a connection in clear by a load balancer, whose client is elsewhere.
async fn in_clear(world: &World, fields: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let trusted: IpNet = "127.0.0.0/8".parse().unwrap();
    let port = Port {
        proxy_header: Policy::Required {
            trusted: [trusted].into(),
        },
        ..Port::from(listener.local_addr().unwrap())
    };
    let (mut client, _serving) = world.connect_to(listener, port).await;
    let request = request("a.team:22", "1.1", fields);
    let bytes = format!("PROXY TCP4 192.0.2.1 192.0.2.2 4000 22\r\n{request}");
    client.write_all(bytes.as_bytes()).await.unwrap();
    head(&mut client).await
}

#[tokio::test]
async fn a_port_in_clear_never_challenges() {
    let world = World::new(Mode::Enforce, |_| {}).await;
    for fields in ["", &bearer("alices"), &bearer("wrong")] {
        let answer = in_clear(&world, fields).await;
        let expected = "HTTP/1.1 403 credentials need TLS: use an https:// proxy\r\n";
        assert!(answer.starts_with(expected), "{answer}");
        assert!(!answer.contains("Authenticate"), "{answer}");
    }
    let world = World::new(Mode::Enforce, |options| options.cleartext = Cleartext::Allow).await;
    let answer = in_clear(&world, &bearer("alices")).await;
    assert_eq!(answer, CONFIRMATION);
}

#[tokio::test]
async fn in_open_mode_a_credential_is_not_looked_at_and_in_report_mode_it_is_not_needed() {
    for mode in [Mode::Open, Mode::Report] {
        let world = World::new(mode, |_| {}).await;
        for fields in [
            "",
            &bearer("wrong"),
            "Proxy-Authorization: x\r\nProxy-Authorization: y\r\n",
        ] {
            let (answer, _client) = world.ask(&request("b.team:22", "1.1", fields)).await;
            assert_eq!(answer, CONFIRMATION, "{mode:?} {fields}");
        }
        assert_eq!(in_clear(&world, &bearer("alices")).await, CONFIRMATION);
    }
}

#[tokio::test]
async fn hidden_names_are_answered_as_unknown_ones() {
    let world = World::new(Mode::Enforce, |options| options.hide_names = true).await;
    let answers = ["b.team:22", "unknown:22", "box.local:22"].map(|name| request(name, "1.1", &bearer("alices")));
    let mut heard = Vec::new();
    for request in &answers {
        let (mut answer, mut client) = world.ask(request).await;
        client.read_to_string(&mut answer).await.unwrap();
        heard.push(answer);
    }
    assert!(heard.iter().all(|answer| *answer == heard[0]), "{heard:#?}");
}

#[tokio::test]
async fn hidden_names_are_answered_as_unknown_ones_before_the_first_list_too() {
    let team = || Some(vec!["team".into()]);
    let other = || Some(vec!["other".into()]);
    for (awaited, forbidden, unknown, status) in [
        (other(), "b.team:22", "unknown.team:22", 403),
        (team(), "b.team:22", "unknown.team:22", 503),
        (other(), "box.local:22", "unknown:22", 403),
        (None, "box.local:22", "unknown:22", 503),
    ] {
        let world = World::new(Mode::Enforce, |options| options.hide_names = true).await;
        world.writer.await_services(awaited);
        let mut heard = Vec::new();
        for name in [forbidden, unknown] {
            let (mut answer, mut client) = world.ask(&request(name, "1.1", &bearer("alices"))).await;
            client.read_to_string(&mut answer).await.unwrap();
            heard.push(answer);
        }
        assert_eq!(heard[0], heard[1]);
        assert!(heard[0].starts_with(&format!("HTTP/1.1 {status} ")), "{}", heard[0]);
    }
}

#[tokio::test]
async fn hidden_names_are_answered_as_unknown_ones_during_a_drain_too() {
    let mut world = World::new(Mode::Enforce, |options| options.hide_names = true).await;
    let cluster = Arc::clone(&world.cluster);
    let held = cluster.proofs.lock().await;
    let mut clients = Vec::new();
    // Two questions at a time are asked on behalf of one client.
    for (number, name) in (1..).zip(["b.team:22", "unknown:22"]) {
        let token = format!("alices{number}");
        cluster.tokens.lock().insert(token.clone(), "alice");
        let (mut client, _serving) = world.connect().await;
        client
            .write_all(request(name, "1.1", &bearer(&token)).as_bytes())
            .await
            .unwrap();
        clients.push(client);
        let asked = async {
            while cluster.token_reviews.load(Ordering::Relaxed) < number {
                tokio::task::yield_now().await;
            }
        };
        timeout(DEADLINE, asked).await.unwrap();
    }
    let conductor = world.conductor.take().unwrap();
    let draining = tokio::spawn(async move {
        let tasks = Tasks::default();
        let _connection = tasks.connections.token();
        let options = drain::Options {
            delay: Duration::ZERO,
            timeout: Duration::from_secs(600),
            ..drain::Options::default()
        };
        conductor.run(&options, &tasks, std::future::pending()).await
    });
    timeout(DEADLINE, world.shared.drain.draining(0)).await.unwrap();
    drop(held);
    for mut client in clients {
        let answer = head(&mut client).await;
        assert!(
            answer.starts_with("HTTP/1.1 503 the proxy is shutting down"),
            "{answer}"
        );
    }
    draining.abort();
}

#[tokio::test]
async fn without_an_answer_of_the_api_server_the_client_is_told_to_try_again() {
    let world = World::new(Mode::Enforce, |_| {}).await;
    world.cluster.is_away.store(true, Ordering::Relaxed);
    let (answer, _client) = world.ask(&request("a.team:22", "1.1", &bearer("alices"))).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("\r\nRetry-After: 5\r\n"), "{answer}");
}

/// The statuses of streams on one HTTP/2 connection.
#[tokio::test]
async fn each_stream_of_http_2_is_judged_by_its_own_credential() {
    let world = World::new(Mode::Enforce, |_| {}).await;
    let (client, _serving) = world.connect().await;
    let (requests, driver) = h2::client::handshake(client).await.unwrap();
    tokio::spawn(driver);
    for (name, token, status) in [
        ("a.team:22", Some("alices"), 200),
        ("a.team:22", Some("bobs"), 403),
        ("a.team:22", None, 407),
        ("a.team:22", Some("wrong"), 407),
        ("b.team:22", Some("alices"), 403),
        ("a.team:22", Some("alices"), 200),
    ] {
        let mut request = http::Request::connect(name);
        if let Some(token) = token {
            request = request.header("proxy-authorization", format!("Bearer {token}"));
        }
        let mut ready = requests.clone().ready().await.unwrap();
        let (answer, _body) = ready.send_request(request.body(()).unwrap(), false).unwrap();
        let answer = timeout(DEADLINE, answer).await.unwrap().unwrap();
        assert_eq!(answer.status(), status, "{name} {token:?}");
        let challenges: Vec<_> = answer.headers().get_all("proxy-authenticate").iter().collect();
        assert_eq!(challenges.len(), if status == 407 { 2 } else { 0 });
        if status == 403 {
            let told = answer.headers()["proxy-status"].to_str().unwrap();
            assert!(
                told.contains("may not ssh to") && told.contains(": needs create services/ssh of team/"),
                "{told}"
            );
        }
    }
}
