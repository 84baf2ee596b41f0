//! Users that the proxy itself proves, as the program does it: by a file of passwords, and by the keys of an OIDC issuer.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::CONFIRMATION;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Process, Server, Settings, switchboard};
use crate::harness::target::Target;
use crate::resumable::hello;

/// The password is `correct`: made by htpasswd(1).
pub(crate) const LINE: &str = "alice:$2y$05$C4ig4r120vyo1vh3fN8r8eElsx.pkSZw4WxY2QNujrvxq297xDBEu:ops\n";

const WRONG: &str = "HTTP/1.1 407 the user or the password is wrong";

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

/// The first line of the answer to a request with that credential.
fn ask(server: &Server, credential: &str) -> String {
    let mut client = request(server, credential);
    let text = client.rest_as_text();
    text.lines().next().unwrap_or_default().to_owned()
}

fn head(credential: &str) -> String {
    format!("CONNECT box:22 HTTP/1.1\r\nHost: box:22\r\nProxy-Authorization: {credential}\r\n\r\n")
}

fn request(server: &Server, credential: &str) -> Peer {
    let mut client = Peer::connect(server.public());
    client.send(head(credential));
    client
}

/// Access by that file of users, to `box:22` for the group `ops`. `access`: more keys of that section.
fn settings(users: &Path, target: &Target, access: &str) -> String {
    format!(
        "access: {{mode: enforce, {access}users: {{file: {}}}}}\nallowlist:\n  static:\n    - {{name: \"box:22\", addresses: \
         [\"{}\"], allowed_groups: [ops]}}\n",
        users.display(),
        target.address()
    )
}

#[test]
fn a_line_of_the_file_opens_a_target_and_its_removal_ends_the_tunnel() {
    let target = Target::listen();
    let folder = TempDir::new().unwrap();
    let users = folder.path().join("users");
    fs::write(
        &users,
        LINE.to_owned() + &LINE.replace("alice", "bob").replace(":ops", ":dev"),
    )
    .unwrap();
    let server = Server::with(&Settings::new(&settings(&users, &target, "")));
    for (user, password, expected) in [
        ("alice", "wrong", WRONG),
        ("carol", "correct", WRONG),
        ("bob", "correct", "HTTP/1.1 403 bob may not ssh to box:22"),
    ] {
        assert_eq!(ask(&server, &basic(user, password)), expected, "{user}");
    }
    let mut client = request(&server, &basic("alice", "correct"));
    let mut upstream = target.accept();
    client.expect(CONFIRMATION);
    client.send("ping");
    upstream.expect("ping");
    // A file that is empty, as one that is being written, ends nothing; the removed line does, at the next poll.
    fs::write(&users, "").unwrap();
    fs::write(&users, LINE.replace("alice", "bob")).unwrap();
    client.expect_late_reset();
    assert_eq!(ask(&server, &basic("alice", "correct")), WRONG);
}

#[test]
fn the_end_of_a_tunnel_that_claims_the_session_of_another_user_leaves_that_users_session() {
    let target = Target::listen();
    let folder = TempDir::new().unwrap();
    let users = folder.path().join("users");
    fs::write(&users, LINE.to_owned() + &LINE.replace("alice", "mallory")).unwrap();
    let server = Server::with(&Settings::new(&settings(&users, &target, "")));
    let resume = |user| {
        let mut client = request(&server, &basic(user, "correct"));
        client.expect(CONFIRMATION);
        let mut anchor = target.accept();
        client.send(hello("resume"));
        anchor.expect(hello("resume"));
        (client, anchor)
    };
    let [(mut hers, mut her_anchor), (mut forged, _anchor)] = ["alice", "mallory"].map(resume);
    let answer = server.tell_admin("DELETE", "/tunnels?user=mallory", r#"{"reason": "abuse"}"#);
    assert_eq!(answer.status, 200, "{}", answer.body);
    forged.expect_reset();
    hers.send("frames");
    her_anchor.expect("frames");
    // Neither is her session refused.
    let (mut hers, mut her_anchor) = resume("alice");
    hers.send("frames");
    her_anchor.expect("frames");
}

#[test]
fn a_faulty_file_of_users_is_one_line_of_the_log_which_says_its_level_once() {
    let folder = TempDir::new().unwrap();
    let users = folder.path().join("users");
    fs::write(&users, "alice:plain\n").unwrap();
    let settings = Settings::new(&format!(
        "access: {{mode: enforce, users: {{file: {}}}}}\n",
        users.display()
    ));
    let mut serve = Process::spawn(switchboard(&["serve", "--config", settings.path()]));
    let mut log = Vec::new();
    while log.last().is_none_or(|line: &String| !line.contains("admin port ")) {
        log.push(serve.stderr.next().unwrap());
    }
    let path = users.display().to_string();
    let named: Vec<_> = log.iter().filter(|line| line.contains(&path)).collect();
    let [line] = *named else { panic!("{log:#?}") };
    assert!(line.contains("ERROR") && line.contains("line 1: "), "{line}");
    assert!(
        !log.iter()
            .any(|line| line.contains("warning: ") || line.contains("error: ")),
        "{log:#?}"
    );
    // At SIGHUP once more.
    serve.signal(Signal::HUP);
    while !serve
        .stderr
        .next()
        .unwrap()
        .contains(line.split("ERROR").nth(1).unwrap())
    {}
}

#[test]
fn guesses_at_passwords_are_seen_and_bounded_and_lock_no_user_out() {
    let target = Target::listen();
    let folder = TempDir::new().unwrap();
    let users = folder.path().join("users");
    fs::write(&users, LINE).unwrap();
    let mut server = Server::with(&Settings::new(&(settings(&users, &target, "") + "ssh_only: false\n")));
    assert_eq!(ask(&server, &basic("mallory-7c1", "x")), WRONG);
    let mut guesses = (0..).map(|guess| basic("alice", &format!("guess-{guess}")));
    // Until it is limited: every ten seconds a guess is looked at.
    let mut limited = |user, password| loop {
        while ask(&server, &guesses.next().unwrap()) == WRONG {}
        let mut client = request(&server, &basic(user, password));
        let text = String::from_utf8(client.read_once()).unwrap();
        if text.starts_with("HTTP/1.1 429 ") {
            return text + &client.rest_as_text();
        }
    };
    let answers =
        [("alice", "correct"), ("alice", "x"), ("mallory-7c1", "y")].map(|(user, password)| limited(user, password));
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:#?}");
    for expected in [
        " too many wrong credentials from this network or for this user\r\n",
        "\r\nRetry-After: 10\r\n",
    ] {
        assert!(answers[0].contains(expected), "{}", answers[0]);
    }
    let mut elsewhere = Peer::connect_from(Ipv4Addr::new(127, 0, 0, 2), server.public());
    elsewhere.send(head(&basic("alice", "correct")));
    elsewhere.expect(CONFIRMATION);
    let counted = |result| {
        let series = format!("access_requests_total{{method=\"password\",result=\"{result}\"}}");
        server.scrape().value(&series)
    };
    assert!(counted("credentials_refused") >= 100.0 && counted("guess_rate") >= 3.0);
    let refused = counted("credentials_refused") + counted("guess_rate");
    elsewhere.reset();
    server.process.signal(Signal::TERM);
    let lines = server.process.stdout.rest();
    assert!(!lines.concat().contains("mallory"), "{lines:#?}");
    let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |reason: &'static str| lines.iter().filter(move |line| line["reason"] == reason);
    for reason in ["credentials_refused", "guess_rate"] {
        let named = of(reason).find(|line| line["auth.claimed_user"] == "alice" && line["user.name"] == "");
        assert!(named.is_some(), "{reason} {lines:#?}");
    }
    let count = |line: &Value| line["count"].as_f64().unwrap();
    let sum = of("credentials_refused")
        .chain(of("guess_rate"))
        .map(count)
        .sum::<f64>();
    assert_eq!(sum, refused);
}

#[test]
fn a_password_that_looks_like_a_token_says_nothing_of_names() {
    let folder = TempDir::new().unwrap();
    let users = folder.path().join("users");
    fs::write(&users, LINE).unwrap();
    let settings = format!("access: {{mode: enforce, users: {{file: {}}}}}\n", users.display());
    let server = Server::with(&Settings::new(&settings));
    for password in ["x".repeat(129), format!("eyJ{}", "x".repeat(90))] {
        for user in ["alice", "carol"] {
            assert_eq!(ask(&server, &basic(user, &password)), WRONG, "{user}");
        }
    }
}

#[test]
fn users_outlive_a_reload_of_other_settings_while_their_file_is_empty() {
    let target = Target::listen();
    let folder = TempDir::new().unwrap();
    let users = folder.path().join("users");
    fs::write(&users, LINE).unwrap();
    let settings = |on_expiry: &str| settings(&users, &target, &format!("on_expiry: {on_expiry}, "));
    let file = Settings::new(&settings("keep"));
    let mut server = Server::with(&file);
    let mut client = request(&server, &basic("alice", "correct"));
    let mut upstream = target.accept();
    client.expect(CONFIRMATION);
    fs::write(&users, "").unwrap();
    file.change(&settings("close"));
    server.process.signal(Signal::HUP);
    server.process.stderr.find("configuration reloaded");
    client.send("ping");
    upstream.expect("ping");
    let mut again = request(&server, &basic("alice", "correct"));
    let _upstream = target.accept();
    again.expect(CONFIRMATION);
}

#[test]
fn a_token_of_the_issuer_opens_a_target_and_a_forged_one_does_not() {
    let target = Target::listen();
    let folder = TempDir::new().unwrap();
    let keys = folder.path().join("keys.json");
    let (pair, other) = (Ed25519KeyPair::generate().unwrap(), Ed25519KeyPair::generate().unwrap());
    let public = URL_SAFE_NO_PAD.encode(pair.public_key());
    fs::write(
        &keys,
        format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"1","x":"{public}"}}]}}"#),
    )
    .unwrap();
    let settings = format!(
        "access: {{mode: enforce, oidc: [{{issuer: \"https://id.example\", audiences: [switchboard], jwks: {}}}]}}\n\
         allowlist:\n  static:\n    - {{name: \"box:22\", addresses: [\"{}\"], allowed_users: [alice]}}\n",
        keys.display(),
        target.address()
    );
    let server = Server::with(&Settings::new(&settings));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let token = |pair: &Ed25519KeyPair, user: &str, expires: u64| {
        let claims = format!(r#"{{"iss":"https://id.example","aud":"switchboard","exp":{expires},"sub":"{user}"}}"#);
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"EdDSA","kid":"1"}"#);
        let message = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims));
        let signature = URL_SAFE_NO_PAD.encode(pair.sign(message.as_bytes()));
        format!("{message}.{signature}")
    };
    let good = token(&pair, "alice", now + 600);
    let bearer = |token: &str| format!("Bearer {token}");
    for (credential, expected) in [
        (
            bearer(&token(&other, "alice", now + 600)),
            "407 the token's signature is wrong",
        ),
        (bearer(&token(&pair, "alice", now - 600)), "407 the token has expired"),
        (bearer(&token(&pair, "bob", now + 600)), "403 bob may not ssh to box:22"),
        (
            bearer(&good[..80]),
            "407 the token is cut: this client sends at most 80 characters",
        ),
        (
            basic("x", &good[..80]),
            "407 the token is cut: this client sends at most 80 characters",
        ),
    ] {
        assert_eq!(
            ask(&server, &credential),
            format!("HTTP/1.1 {expected}"),
            "{credential}"
        );
    }
    for credential in [bearer(&good), basic("any", &good)] {
        let mut client = request(&server, &credential);
        let _upstream = target.accept();
        client.expect(CONFIRMATION);
    }
}
