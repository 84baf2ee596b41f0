//! A credential is in nothing that the program writes or answers, whatever the log level.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings, switchboard};
use crate::harness::target::Target;
use crate::http2::peer::Peer;

/// The password is `correct`: made by htpasswd(1).
const LINE: &str = "alice:$2y$05$C4ig4r120vyo1vh3fN8r8eElsx.pkSZw4WxY2QNujrvxq297xDBEu:ops\n";

/// The libraries are silent by default; they can be made to speak in the search for a fault.
const LIBRARIES: &str = "trace,h2=trace,hyper=trace,hyper_util=trace,rustls=trace,tokio_util=trace";

/// A token of `https://id.example` for alice.
fn token(pair: &Ed25519KeyPair) -> String {
    let expires = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 600;
    let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"EdDSA","kid":"1"}"#);
    let claims = format!(r#"{{"iss":"https://id.example","aud":"switchboard","exp":{expires},"sub":"alice"}}"#);
    let message = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims));
    let signature = URL_SAFE_NO_PAD.encode(pair.sign(message.as_bytes()));
    format!("{message}.{signature}")
}

/// The parts of a field's value that are secret: itself, what is encoded in it, the password, and the signature of a token.
fn secrets(value: &str) -> Vec<String> {
    let (scheme, sent) = value.split_once(' ').unwrap();
    let mut secrets = vec![sent.to_owned()];
    if scheme == "Basic" {
        let decoded = String::from_utf8(STANDARD.decode(sent).unwrap()).unwrap();
        let (_, password) = decoded.split_once(':').unwrap();
        secrets.extend([password.to_owned(), STANDARD.encode(password), decoded.clone()]);
    } else {
        secrets.push(STANDARD.encode(sent));
    }
    let parts = secrets.iter().filter_map(|secret| secret.rsplit_once('.'));
    let signatures: Vec<_> = parts.map(|(_, signature)| signature.to_owned()).collect();
    secrets.extend(signatures);
    secrets
}

/// The settings of a target that alice may reach, by a token of that key or by her password.
fn settings(folder: &TempDir, target: &Target, pair: &Ed25519KeyPair) -> Settings {
    let public = URL_SAFE_NO_PAD.encode(pair.public_key());
    let [keys, users] = ["keys.json", "users"].map(|name| folder.path().join(name));
    let set = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"1","x":"{public}"}}]}}"#);
    fs::write(&keys, set).unwrap();
    fs::write(&users, LINE).unwrap();
    Settings::new(&format!(
        "ssh_only: false\naccess: {{mode: enforce, users: {{file: \"{}\"}}, oidc: [{{issuer: \"https://id.example\", \
         audiences: [switchboard], jwks: \"{}\"}}]}}\n\
         allowlist: {{static: [{{name: \"box:22\", addresses: [\"{}\"], allowed_users: [alice]}}]}}\n",
        users.display(),
        keys.display(),
        target.address()
    ))
}

/// The answers to a request with each of these fields, by HTTP/1.1 and by HTTP/2.
fn answers(server: &Server, target: &Target, fields: &[(String, &str)]) -> String {
    let mut heard = String::new();
    let mut peer = Peer::connect(server.public());
    for (index, (value, status)) in fields.iter().enumerate() {
        let mut client = server.client(format!(
            "CONNECT box:22 HTTP/1.1\r\nHost: box:22\r\nProxy-Authorization: {value}\r\n\r\n"
        ));
        let stream = u32::try_from(2 * index + 1).unwrap();
        let asked = [
            (":method", "CONNECT"),
            (":authority", "box:22"),
            ("proxy-authorization", value),
        ];
        peer.ask_with(stream, &asked);
        if *status == "200" {
            heard += &String::from_utf8_lossy(&client.read_once());
            drop((target.accept(), target.accept()));
        } else {
            heard += &client.rest_as_text();
        }
        heard += &peer.expect_status(stream, status).to_string();
    }
    assert_eq!(heard.matches("HTTP/1.1 200 ").count(), 3, "{heard}");
    heard
}

#[test]
fn no_credential_is_in_the_logs_the_metrics_or_the_answers_at_any_level() {
    let (target, folder) = (Target::listen(), TempDir::new().unwrap());
    let (pair, other) = (Ed25519KeyPair::generate().unwrap(), Ed25519KeyPair::generate().unwrap());
    let settings = settings(&folder, &target, &pair);
    let basic = |user: &str, password: &str| format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
    let (good, forged) = (token(&pair), token(&other));
    let fields = [
        (format!("Bearer {good}"), "200"),
        (format!("Bearer {forged}"), "407"),
        (basic("any", &good), "200"),
        (basic("any", &forged), "407"),
        (basic("alice", "correct"), "200"),
        (basic("alice", "hunter2-s3cret"), "407"),
        // Malformed, cut and unknown ones are secrets, too.
        (format!("Bearer {}", &good[..80]), "407"),
        ("Bearer opaque-s3cret-but-unknown".to_owned(), "407"),
        (basic("nobody", "another-s3cret"), "407"),
    ];
    for level in ["debug", "trace", LIBRARIES] {
        let mut server = Server::start(switchboard(&["serve", "--log", level, "--config", settings.path()]));
        let mut written = answers(&server, &target, &fields);
        written += &server.ask_admin("GET", "/metrics").body;
        server.process.signal(Signal::TERM);
        server.process.signal(Signal::TERM);
        server.process.exit_status();
        let (lines, messages) = (server.process.stdout.rest(), server.process.stderr.rest());
        // Refusals of one address and reason share a line.
        let tunnels = lines.iter().filter(|line| line.contains("\"event\":\"close\""));
        assert_eq!(tunnels.count(), 6, "{lines:#?}");
        assert!(lines.iter().any(|line| line.contains("\"status\":407")), "{lines:#?}");
        let is_verbose = messages.iter().any(|line| line.contains("TRACE"));
        assert!(is_verbose || level != LIBRARIES, "{messages:#?}");
        written.extend(lines.into_iter().chain(messages));
        for secret in fields.iter().flat_map(|(value, _)| secrets(value)) {
            // A word as common as this one is not searched for: its field is.
            assert!(secret == "correct" || !written.contains(&secret), "{level}: {secret}");
        }
        assert!(!written.contains(":correct") && !written.contains("s3cret"), "{level}");
    }
}
