//! The refusals of the page's port: requests without the secret, by foreign names, of other origins; and addresses that other
//! computers reach.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::process::Signal;

use super::browser::{Browser, FOREIGN};
use super::stage::{Desk, Pretender, tunnel};
use crate::harness::eventually;
use crate::harness::peer::Peer;
use crate::harness::process::{Process, switchboard};

fn desk() -> Desk {
    Desk::of(&[Pretender::start(vec![tunnel(0)], Vec::new()).address])
}

/// The answer to a request with these fields.
fn ask(desk: &Desk, request: &str, fields: &[String], body: &str) -> String {
    let mut peer = Peer::connect(desk.address());
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    let length = body.len();
    peer.send(format!(
        "{request} HTTP/1.1\r\n{fields}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
    peer.rest_as_text()
}

#[test]
fn nothing_is_told_or_changed_without_the_secret() {
    let desk = desk();
    let host = format!("Host: {}", desk.address());
    let shown = |text: &str| format!("Authorization: Bearer {text}");
    let right = shown(desk.secret());
    let wrong = shown(&"A".repeat(desk.secret().len()));
    let body = r#"{"replica": "x", "tunnel_id": "0005a1c2-0", "reason": "y"}"#;
    for request in [
        "GET /api/state?since=0",
        "GET /api/tunnel?replica=x&tunnel_id=0005a1c2-0",
        "GET /api/diagnosis?replica=x&tunnel_id=0005a1c2-0",
        "POST /api/close",
        "POST /api/close-target",
        "POST /api/limit",
        "POST /api/cordon",
    ] {
        for field in [
            "X: y",
            &wrong,
            &shown(""),
            "Authorization: Basic eDp5",
            &format!("Cookie: secret={}", desk.secret()),
        ] {
            let answer = ask(&desk, request, &[host.clone(), field.to_owned()], body);
            assert!(answer.starts_with("HTTP/1.1 403 "), "{request} {field}: {answer}");
            assert!(!answer.contains("198.51."), "{answer}");
        }
        let path = request.replace("?", &format!("?secret={}&", desk.secret()));
        assert!(
            ask(&desk, &path, std::slice::from_ref(&host), body).starts_with("HTTP/1.1 403 "),
            "{path}"
        );
        let answer = ask(&desk, request, &[host.clone(), right.clone()], body);
        assert!(!answer.starts_with("HTTP/1.1 403 "), "{request}: {answer}");
    }
    let answer = ask(&desk, "GET /api/state", &[host, right], "");
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.contains("0005a1c2-0"),
        "{answer}"
    );
}

#[test]
fn foreign_names_and_origins_are_refused_even_with_the_secret() {
    let desk = desk();
    let (port, own) = (desk.address().port(), desk.address());
    let right = format!("Authorization: Bearer {}", desk.secret());
    let host = |name: &str| format!("Host: {name}");
    for (fields, status) in [
        (vec![host(&own.to_string())], 200),
        (vec![host(&format!("localhost:{port}"))], 200),
        (vec![host(&own.to_string()), format!("Origin: http://{own}")], 200),
        (vec![host(&format!("{FOREIGN}:{port}"))], 403),
        (vec![host("localhost")], 403),
        (vec![host(&format!("localhost:{port}")), host(&own.to_string())], 403),
        (vec![], 403),
        (vec![host(&own.to_string()), "Origin: null".to_owned()], 403),
        (vec![host(&own.to_string()), format!("Origin: https://{own}")], 403),
        (
            vec![host(&own.to_string()), "Origin: http://localhost:1".to_owned()],
            403,
        ),
    ] {
        for path in ["/", "/assets/desk.js", "/api/state"] {
            let mut fields = fields.clone();
            fields.push(right.clone());
            let answer = ask(&desk, &format!("GET {path}"), &fields, "");
            // hyper itself refuses a request of HTTP/1.1 that has no Host, or not: either is a refusal.
            let is_refused = answer.starts_with("HTTP/1.1 403 ") || answer.starts_with("HTTP/1.1 400 ");
            assert_eq!(is_refused, status == 403, "{path} {fields:?}: {answer}");
        }
    }
}

#[test]
fn a_reason_for_an_end_can_be_read() {
    let desk = desk();
    let fields = [
        format!("Host: {}", desk.address()),
        format!("Authorization: Bearer {}", desk.secret()),
    ];
    for (path, which) in [
        ("close", r#""replica": "x", "tunnel_id": "0005a1c2-0""#),
        ("close-target", r#""target": "team-a/devbox""#),
    ] {
        for reason in ["", " ", "\u{200b}", "\u{2800}\u{3164}", "over\u{202e}", "\u{9b}2J"] {
            let body = format!(r#"{{{which}, "reason": "{reason}"}}"#);
            let answer = ask(&desk, &format!("POST /api/{path}"), &fields, &body);
            assert!(
                answer.starts_with("HTTP/1.1 400 ") && answer.contains("a reason"),
                "{path} {reason:?}: {answer}"
            );
        }
        let body = format!(r#"{{{which}, "reason": "it loops"}}"#);
        let answer = ask(&desk, &format!("POST /api/{path}"), &fields, &body);
        assert!(!answer.starts_with("HTTP/1.1 400 "), "{path}: {answer}");
    }
}

#[test]
fn a_change_is_an_object_and_no_array_of_its_fields() {
    let desk = desk();
    let fields = [
        format!("Host: {}", desk.address()),
        format!("Authorization: Bearer {}", desk.secret()),
    ];
    for (path, body) in [
        ("close", r#"["x", "0005a1c2-0", "it loops"]"#),
        ("close-target", r#"["team-a/devbox", "it loops"]"#),
        ("limit", r#"["x", "0005a1c2-0", {"download": "1MiB/s"}]"#),
        (
            "limit",
            r#"{"replica": "x", "tunnel_id": "0005a1c2-0", "rates": ["1MiB/s", "1MiB/s"]}"#,
        ),
        ("cordon", r#"["team-a/devbox", true]"#),
    ] {
        let answer = ask(&desk, &format!("POST /api/{path}"), &fields, body);
        assert!(answer.starts_with("HTTP/1.1 422 "), "{path} {body}: {answer}");
    }
}

#[test]
fn every_answer_tells_the_browser_to_keep_it_to_itself() {
    let desk = desk();
    let host = [format!("Host: {}", desk.address())];
    for path in ["/", "/assets/desk.css", "/assets/none", "/none", "/api/state"] {
        let answer = ask(&desk, &format!("GET {path}"), &host, "").to_ascii_lowercase();
        for field in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';",
            "cache-control: no-store\r\n",
            "referrer-policy: no-referrer\r\n",
            "x-frame-options: deny\r\n",
            "x-content-type-options: nosniff\r\n",
            "cross-origin-opener-policy: same-origin\r\n",
            "cross-origin-resource-policy: same-origin\r\n",
        ] {
            assert!(answer.contains(field), "{path}: {field}\n{answer}");
        }
        assert!(
            !answer.contains("set-cookie") && !answer.contains("access-control"),
            "{answer}"
        );
        assert!(!answer.contains(&desk.secret().to_ascii_lowercase()), "{answer}");
    }
}

#[test]
fn a_browser_shows_nothing_by_a_wrong_secret_or_a_foreign_name() {
    let desk = desk();
    let page = Browser::start(800, 600);
    page.open(&desk.url.replace(desk.secret(), "wrong"));
    page.waits("document.querySelector('#banner').innerText.includes('no valid secret')");
    assert_eq!(page.run("return document.querySelectorAll('.rows .row').length;"), 0);
    // The right one, in the same tab, is taken from the address and stays neither there nor in the history.
    page.run(&format!("location.hash = '{}';", desk.secret()));
    page.waits("document.querySelectorAll('.rows .row').length > 0");
    let kept = page.run("return [location.href, document.referrer, document.cookie];");
    assert!(!kept.to_string().contains(desk.secret()), "{kept}");
    page.run("location.reload();");
    page.waits("document.querySelectorAll('.rows .row').length > 0");
    // By a name of another computer, which has been pointed at this one, there is not even the page.
    page.open(&format!(
        "http://{FOREIGN}:{}/#{}",
        desk.address().port(),
        desk.secret()
    ));
    assert!(page.text("body").contains("another name"), "{}", page.text("body"));
}

#[test]
fn it_listens_on_loopback_only_and_ends_by_a_signal() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let mut refused = Process::spawn(switchboard(&["desk", "--admin", "127.0.0.1:1", "--listen", address]));
        assert_eq!(refused.exit_status(), 1, "{address}");
        let said = refused.stderr.rest().join("\n");
        assert!(said.contains("is not a loopback address"), "{said}");
    }
    for signal in [Signal::INT, Signal::TERM] {
        let mut desk = desk();
        desk.process.signal(signal);
        assert_eq!(desk.process.exit_status(), 0, "{signal:?}");
    }
}

#[test]
fn the_browser_is_opened_by_a_file_that_only_this_user_reads() {
    let folder = tempfile::tempdir().unwrap();
    let (program, said) = (folder.path().join("xdg-open"), folder.path().join("said"));
    fs::write(
        &program,
        format!(
            "#!/bin/sh\nprintf '%s\\n' \"$@\" >{0}.new\nmv {0}.new {0}\n",
            said.display()
        ),
    )
    .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = switchboard(&["desk", "--admin", "127.0.0.1:1", "--open"]);
    let path = std::env::var("PATH").unwrap();
    command
        .env("PATH", format!("{}:{path}", folder.path().display()))
        .env("TMPDIR", folder.path());
    let mut process = Process::spawn(command);
    let url = process.stdout.next().unwrap();
    let named = eventually("the browser is opened", || fs::read_to_string(&said).ok());
    let file = Path::new(named.trim_end());
    assert!(!named.contains(url.rsplit('#').next().unwrap()), "{named}");
    assert_eq!(fs::metadata(file).unwrap().mode() & 0o777, 0o600);
    assert!(fs::read_to_string(file).unwrap().contains(&url));
    process.signal(Signal::TERM);
    assert_eq!(process.exit_status(), 0);
    assert!(!file.exists(), "{}", file.display());
}
