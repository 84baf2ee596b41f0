//! `config --check` and `connect` by a WebSocket: the answers of load balancers instead of the proxy's, and credentials.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use crate::harness::allow;
use crate::harness::ports::Ports as _;
use crate::harness::process::switchboard;
use crate::harness::proxy::Proxy;
use crate::harness::target::Target;
use crate::identities::LINE;

/// The last line of a check of that proxy.
fn check(proxy: &str) -> String {
    let output = switchboard(&["config", "--check", "devbox:22", "--proxy", proxy])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    stdout.lines().last().unwrap().to_owned()
}

/// A server that answers each connection with these bytes once it has read a head, and closes it.
fn answering(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                head.extend(byte);
            }
            stream.write_all(answer.as_bytes()).ok();
        }
    });
    format!("ws://{address}/ssh")
}

#[test]
fn an_answer_that_is_not_the_proxys_is_told_apart() {
    for (answer, expected) in [
        (
            "HTTP/1.1 400 Bad Request\r\n\r\n",
            "the answer is 400: the load balancer does not pass WebSockets on: enable them there",
        ),
        (
            "HTTP/1.1 426 Upgrade Required\r\n\r\n",
            "the answer is 426: the load balancer does not pass WebSockets on: enable them there",
        ),
        (
            "HTTP/1.1 404 Not Found\r\n\r\n",
            "the answer is 404: nothing takes WebSockets there: is /ssh/ routed to switchboard, and `listen.websocket` set?",
        ),
        (
            "HTTP/1.1 502 Bad Gateway\r\n\r\n",
            "the answer is 502: the load balancer does not reach switchboard",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>Welcome",
            "the answer is 200: a web server has answered with a page: is /ssh/ routed to switchboard?",
        ),
        (
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
            "the answer is 101: the answer has not the Sec-WebSocket-Accept and the subprotocol of switchboard",
        ),
        ("", "the proxy closed the connection without an answer"),
        (
            "HTTP/1.1 101 Swi",
            "the proxy closed the connection in the middle of its answer",
        ),
        ("SSH-2.0-x\r\n", "the proxy's answer is not HTTP"),
    ] {
        let line = check(&answering(answer));
        assert!(
            line.starts_with(&format!("FAILS  WebSocket  {expected}")),
            "{answer:?}: {line}"
        );
    }
}

mod slow {
    use super::*;

    #[test]
    fn a_balancer_that_never_answers_ends_at_the_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let line = check(&format!("ws://{}/ssh", listener.local_addr().unwrap()));
        assert!(
            line.starts_with("FAILS  WebSocket  the proxy's answer took longer than 30s"),
            "{line}"
        );
    }
}

/// A refusal of the proxy is the proxy's, with its words, and a proxy without WebSockets says that it takes CONNECT only.
#[test]
fn a_refusal_of_the_proxy_is_one_of_its_own_step() {
    let target = Target::listen();
    let list = allow(&[("other:22", target.address())]);
    let proxy = Proxy::start(&format!("{}{list}", super::LISTEN));
    let line = check(&format!("ws://{}/ssh", proxy.public()));
    assert!(
        line.starts_with("FAILS  proxy      the proxy answered 403: the target is not on the allowlist"),
        "{line}"
    );
    let line = check(&format!("ws://{}/wrong", proxy.public()));
    assert!(
        line.starts_with("FAILS  proxy      the proxy answered 405: only CONNECT is served here"),
        "{line}"
    );
}

/// The credential is in the field for servers, and a 401 asks for it.
#[test]
fn a_credential_is_that_of_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    fs::write(&users, LINE).unwrap();
    let target = Target::listen();
    let plain = {
        let access = format!("access: {{mode: enforce, users: {{file: \"{}\"}}}}\n", users.display());
        let list = format!(
            "allowlist:\n  static:\n    - {{name: \"devbox:22\", addresses: [\"{}\"], allowed_users: [alice]}}\n",
            target.address()
        );
        Proxy::start(&format!("{}ssh_only: false\n{access}{list}", super::LISTEN))
    };
    let basic = ("Authorization", "Basic YWxpY2U6Y29ycmVjdA==");
    let asks = |proxy: &Proxy, fields: &[(&str, &str)]| {
        let mut client = proxy.client(super::upgrade("/ssh/devbox:22", fields));
        let head = client.read_exact::<12>();
        (String::from_utf8(head.to_vec()).unwrap(), client)
    };
    let (status, mut client) = asks(&plain, &[]);
    assert_eq!(status, "HTTP/1.1 401");
    let rest = client.rest_as_text();
    assert!(
        rest.contains("\r\nWWW-Authenticate: Basic ") && !rest.contains("Proxy-Authenticate"),
        "{rest}"
    );
    assert_eq!(asks(&plain, &[basic]).0, "HTTP/1.1 101");
    assert_eq!(asks(&plain, &[("Proxy-Authorization", basic.1)]).0, "HTTP/1.1 101");
    assert_eq!(
        asks(&plain, &[basic, ("Proxy-Authorization", basic.1)]).0,
        "HTTP/1.1 401"
    );
}
