//! What clients send, however it is chopped, gets its tunnel or its refusal, and nothing else reaches a target.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

#[path = "harness/harness.rs"]
#[expect(dead_code, reason = "each file of tests uses a part of it")]
mod harness;

use std::thread;

use harness::peer::{Peer, shown};
use harness::ports::Ports;
use harness::proxy::Proxy;
use harness::target::Target;
use harness::{CONFIRMATION, allow, refusal, request};

const NAME: &str = "svc-a.ns.svc.cluster.local:80";

/// What clients were seen to send, in their own writes, and some that are as good.
const GOOD: [(&str, &[&str]); 23] = [
    (
        "proxytunnel",
        &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: 127.0.0.1\r\nProxy-Connection: Keep-Alive\r\n\r\n"],
    ),
    (
        "proxytunnel -o",
        &[
            "CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: svc-a.ns.svc.cluster.local\r\n\
             Proxy-Connection: Keep-Alive\r\n\r\n",
        ],
    ),
    (
        "proxytunnel -P",
        &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\
             Proxy-Authorization: Basic dXNlcjpwYXNz\r\nProxy-Connection: Keep-Alive\r\n\r\n"],
    ),
    ("nc", &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.0\r\n", "\r\n"]),
    (
        "nc -P",
        &[
            "CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.0\r\n",
            "Proxy-Authorization: Basic dXNlcjpwYXNz\r\n",
            "\r\n",
        ],
    ),
    ("ncat", &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.0\r\n\r\n"]),
    (
        "a fork of corkscrew",
        &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.0\n\r\n"],
    ),
    (
        "socat with proxyauth",
        &[
            "CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.0\r\n",
            "Proxy-authorization: Basic dXNlcjpwYXNz\r\n",
            "\r\n",
        ],
    ),
    (
        "curl",
        &[
            "CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: svc-a.ns.svc.cluster.local:80\r\n\
             User-Agent: curl/7.88.1\r\nProxy-Connection: Keep-Alive\r\n\r\n",
        ],
    ),
    (
        "plink",
        &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: svc-a.ns.svc.cluster.local:80\r\n\r\n"],
    ),
    ("JSch", &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.0\r\n", "\r\n"]),
    (
        "JSch with a password",
        &[
            "CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.0\r\n",
            "Proxy-Authorization: Basic ",
            "dXNlcjpwYXNz",
            "\r\n",
            "\r\n",
        ],
    ),
    (
        "upper case",
        &["CONNECT SVC-A.NS.svc.Cluster.Local:80 HTTP/1.0\r\n\r\n"],
    ),
    (
        "a trailing dot",
        &["CONNECT svc-a.ns.svc.cluster.local.:80 HTTP/1.0\r\n\r\n"],
    ),
    (
        "zeros before the port",
        &["CONNECT svc-a.ns.svc.cluster.local:00080 HTTP/1.0\r\n\r\n"],
    ),
    (
        "bare line feeds",
        &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\nHost: a\n\n"],
    ),
    (
        "an empty Host",
        &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost:\r\n\r\n"],
    ),
    (
        "another Host",
        &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: unknown.example:1\r\n\r\n"],
    ),
    (
        "no content, said",
        &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"],
    ),
    (
        "a wish to see 100 first",
        &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n"],
    ),
    (
        "a wish to upgrade",
        &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"],
    ),
    (
        "an empty line first",
        &["\r\n", "CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.0\r\n\r\n"],
    ),
    ("an IPv6 address", &["CONNECT [FD00:0::1]:22 HTTP/1.0\r\n\r\n"]),
];

const REQUEST_LINE: &str = "the request line is malformed";
const VERSION: &str = "the HTTP version must be 1.0 or 1.1";
const FIELD: &str = "a header field is malformed";
const CONTENT: &str = "a CONNECT request must not have content";
const HOSTS: &str = "there is more than one Host header";
const BAD_HOST: &str = "the Host header is malformed";
const FORM: &str = "the request target must be host:port";
const PORT: &str = "the port must be 1 to 65535 in decimal digits";
const NO_PORT: &str = "the request target has no port";
const NO_HOST: &str = "the request target has no host";
const USERINFO: &str = "the request target must not hold userinfo";
const BARE_IPV6: &str = "an IPv6 address needs brackets";
const LITERAL: &str = "only an IPv6 address may stand in brackets";
const LABEL: &str = "a label of the host name is empty or too long";
const HOST_BYTE: &str = "the host name holds a forbidden character";
const TLS: &str = "this port does not speak TLS";

/// Whole heads that are malformed, and what the 400 says.
const MALFORMED: [(&[u8], &str); 41] = [
    (b"CONNECT svc-a.ns.svc.cluster.local:80\r\n\r\n", REQUEST_LINE),
    (
        b"CONNECT  svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        REQUEST_LINE,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80  HTTP/1.1\r\nHost: a\r\n\r\n",
        VERSION,
    ),
    (
        b" CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        REQUEST_LINE,
    ),
    (
        b"CONNECT\tsvc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        REQUEST_LINE,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\rHost: a\r\n\r\n",
        REQUEST_LINE,
    ),
    (
        b"CONNECT svc-a.ns\0.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        REQUEST_LINE,
    ),
    (
        b"CONN\0ECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        REQUEST_LINE,
    ),
    (b"\r\n\r\n\r\n\r\n\r\n\r\n\r\n", REQUEST_LINE),
    (b"\n\n\n\n\n\n\n\n\n\n\n\n", REQUEST_LINE),
    (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", REQUEST_LINE),
    (b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/0.9\r\n\r\n", VERSION),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.2\r\nHost: a\r\n\r\n",
        VERSION,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/2.0\r\nHost: a\r\n\r\n",
        VERSION,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 http/1.1\r\nHost: a\r\n\r\n",
        VERSION,
    ),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", VERSION),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", TLS),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nX: y\r\n folded\r\n\r\n",
        FIELD,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
        FIELD,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n",
        FIELD,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost : a\r\n\r\n",
        FIELD,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\n Host: a\r\n\r\n",
        FIELD,
    ),
    (b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost\r\n\r\n", FIELD),
    (b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\n: a\r\n\r\n", FIELD),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\n\r\n",
        "the Host header is missing",
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        HOSTS,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n",
        HOSTS,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a, b\r\n\r\n",
        BAD_HOST,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: http://a/\r\n\r\n",
        BAD_HOST,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: u@a\r\n\r\n",
        BAD_HOST,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nContent-Length: 64\r\n\r\n",
        CONTENT,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nContent-Length: +0\r\n\r\n",
        CONTENT,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n",
        CONTENT,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 9\r\n\r\n",
        CONTENT,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        CONTENT,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.0\r\ntransfer-encoding: xchunked\r\n\r\n",
        CONTENT,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\
          Transfer-Encoding: chunked\r\n\r\n",
        CONTENT,
    ),
    (b"CONNECT HTTP/1.1\r\nHost: a\r\n\r\n", REQUEST_LINE),
    (b"CONNECT b\xc3\xbccher.example:80 HTTP/1.0\r\n\r\n", HOST_BYTE),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80\xff HTTP/1.0\r\n\r\n",
        REQUEST_LINE,
    ),
    (
        b"CONNECT \x7fsvc-a.ns.svc.cluster.local:80 HTTP/1.0\r\n\r\n",
        REQUEST_LINE,
    ),
];

/// Request targets that are not `host:port`, and what the 400 says.
const BAD_TARGETS: [(&str, &str); 29] = [
    ("svc-a.ns.svc.cluster.local", NO_PORT),
    ("svc-a.ns.svc.cluster.local:", NO_PORT),
    ("svc-a.ns.svc.cluster.local:0", PORT),
    ("svc-a.ns.svc.cluster.local:65536", PORT),
    ("svc-a.ns.svc.cluster.local:65616", PORT),
    ("svc-a.ns.svc.cluster.local:000080", PORT),
    ("svc-a.ns.svc.cluster.local:+80", PORT),
    ("svc-a.ns.svc.cluster.local:-80", PORT),
    ("svc-a.ns.svc.cluster.local:80x", PORT),
    ("svc-a.ns.svc.cluster.local:0x50", PORT),
    ("svc-a.ns.svc.cluster.local:http", PORT),
    (":80", NO_HOST),
    (".:80", NO_HOST),
    ("root@svc-a.ns.svc.cluster.local:80", USERINFO),
    ("a:b@svc-a.ns.svc.cluster.local:80", USERINFO),
    ("[svc-a.ns.svc.cluster.local]:80", LITERAL),
    ("[127.0.0.1]:80", LITERAL),
    ("[fd00::1%25eth0]:22", LITERAL),
    ("[fd00::1:22", LITERAL),
    ("fd00::1:22", BARE_IPV6),
    ("svc-a.ns.svc.cluster.local:80:80", BARE_IPV6),
    ("svc-a..svc.cluster.local:80", LABEL),
    (".svc-a.ns.svc.cluster.local:80", LABEL),
    ("svc%2da.ns.svc.cluster.local:80", HOST_BYTE),
    ("svc-a.ns.svc.cluster.local,b:80", HOST_BYTE),
    ("/svc-a.ns.svc.cluster.local:80", FORM),
    ("http://svc-a.ns.svc.cluster.local:80/", FORM),
    ("svc-a.ns.svc.cluster.local:80?x", FORM),
    ("*", FORM),
];

/// Names that are well formed, and not on the list.
const UNKNOWN: [&str; 12] = [
    "svc-b.ns.svc.cluster.local:80",
    "svc-a.ns.svc.cluster.local:22",
    "svc-a.ns:80",
    "svc-a:80",
    "localhost:80",
    "127.0.0.1:80",
    "127.1:80",
    "0x7f000001:80",
    "2130706433:80",
    "xn--bcher-kva.example:80",
    "[::1]:80",
    "[::ffff:127.0.0.1]:80",
];

/// The three ways in which bytes are sent.
fn choppings(writes: &[&[u8]]) -> [Vec<Vec<u8>>; 3] {
    let whole = writes.concat();
    [
        vec![whole.clone()],
        writes.iter().map(|write| write.to_vec()).collect(),
        whole.chunks(1).map(<[u8]>::to_vec).collect(),
    ]
}

/// A proxy whose list holds two names for one target.
fn proxy_to(target: &Target, settings: &str) -> Proxy {
    let list = allow(&[(NAME, target.address()), ("[fd00::1]:22", target.address())]);
    Proxy::start(&format!("{list}{settings}"))
}

/// Sends all of it, even when the proxy has answered already.
fn send(client: &mut Peer, writes: &[Vec<u8>]) {
    for write in writes {
        if client.try_send(write).is_err() {
            break;
        }
    }
}

#[test]
fn every_client_gets_its_tunnel_however_it_chops_its_request() {
    let target = Target::listen();
    let proxy = proxy_to(&target, "");
    for (who, writes) in GOOD {
        let writes: Vec<&[u8]> = writes.iter().map(|write| write.as_bytes()).collect();
        for chopped in choppings(&writes) {
            println!("{who} in {} writes", chopped.len());
            let mut client = Peer::connect(proxy.public());
            send(&mut client, &chopped);
            // One read: the answer is one write, and nothing follows it that the target did not send.
            assert_eq!(shown(&client.read_once()), shown(CONFIRMATION.as_bytes()));
            let mut server = target.accept();
            server.send("SSH-2.0-server\r\n");
            client.expect("SSH-2.0-server\r\n");
            client.send("SSH-2.0-client\r\n");
            server.expect("SSH-2.0-client\r\n");
            client.finish();
            server.expect_end();
            server.finish();
            client.expect_end();
        }
    }
    proxy.settles("connections_active", 0.0);
}

#[test]
fn bytes_behind_the_head_reach_the_target_first_and_in_order() {
    let target = Target::listen();
    let proxy = proxy_to(&target, "");
    // What the handshake's buffer holds, what it does not, and what no socket buffer holds either.
    for length in [1, 16, 2_048, 16_383, 16_384, 16_385, 100_000, 4 << 20] {
        let early: Vec<u8> = (0..length).map(|index| u8::try_from(index % 251).unwrap()).collect();
        for behind in [true, false] {
            let mut client = Peer::connect(proxy.public());
            let mut sending = client.again();
            let bytes = early.clone();
            let sent = thread::spawn(move || {
                if behind {
                    sending.send([request(NAME).as_bytes(), &bytes].concat());
                } else {
                    sending.send(request(NAME));
                    sending.send(&bytes);
                }
                sending.finish();
            });
            let mut server = target.accept();
            let reached = server.rest();
            assert!(reached == early, "{} of {length} bytes", reached.len());
            sent.join().unwrap();
            server.finish();
            client.expect(CONFIRMATION);
            client.expect_end();
        }
    }
}

#[test]
fn a_banner_that_is_there_first_follows_the_confirmation() {
    let target = Target::listen();
    let proxy = proxy_to(&target, "");
    for _ in 0..20 {
        let mut client = proxy.client(request(NAME));
        let mut server = target.accept();
        server.send("SSH-2.0-server\r\n");
        server.finish();
        client.expect(format!("{CONFIRMATION}SSH-2.0-server\r\n"));
        client.expect_end();
    }
}

/// What must be refused, what comes behind it, and the whole answer.
fn refused() -> Vec<(Vec<u8>, String)> {
    let bad = |phrase| refusal(400, phrase, "http_request_error", "");
    let not_allowed = refusal(403, "the target is not on the allowlist", "http_request_denied", "");
    let method = refusal(
        405,
        "only CONNECT is served here",
        "http_request_error",
        "Allow: CONNECT\r\n",
    );
    let large = refusal(431, "the request head is too large", "http_request_error", "");
    let mut refused = Vec::new();
    for (head, phrase) in MALFORMED {
        refused.push((head.to_vec(), bad(phrase)));
    }
    for (target, phrase) in BAD_TARGETS {
        refused.push((request(target).into_bytes(), bad(phrase)));
    }
    for label in ["a".repeat(64), "a.".repeat(128)] {
        refused.push((request(&format!("{label}:80")).into_bytes(), bad(LABEL)));
    }
    for name in UNKNOWN {
        refused.push((request(name).into_bytes(), not_allowed.clone()));
    }
    for line in [
        "GET /",
        "GET http://svc-a.ns.svc.cluster.local:80/",
        "connect svc-a.ns.svc.cluster.local:80",
        "Connect svc-a.ns.svc.cluster.local:80",
        "CONNECTX svc-a.ns.svc.cluster.local:80",
        "OPTIONS *",
        "POST /",
    ] {
        refused.push((
            format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes(),
            method.clone(),
        ));
    }
    let head = "CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\n";
    refused.push((
        format!("{head}{}\r\n", "X: y\r\n".repeat(64)).into_bytes(),
        large.clone(),
    ));
    for long in [
        format!("CONNECT {}", "a".repeat(20_000)),
        "A".repeat(20_000),
        format!("{head}X: {}\r\n\r\n", "y".repeat(20_000)),
        format!("{head}{}: x\r\n\r\n", "X".repeat(20_000)),
    ] {
        refused.push((long.into_bytes(), large.clone()));
    }
    refused
}

#[test]
fn whatever_is_refused_is_told_exactly_and_opens_nothing() {
    let target = Target::listen();
    let proxy = proxy_to(&target, "");
    let refused = refused();
    let mut count = 0;
    for (head, answer) in &refused {
        let pipelined = [request(NAME).as_bytes(), b"SSH-2.0-smuggled\r\n"].concat();
        for chopped in choppings(&[head, &pipelined]) {
            let mut client = Peer::connect(proxy.public());
            let mut sending = client.again();
            let written = chopped.len();
            let sent = thread::spawn(move || send(&mut sending, &chopped));
            let told = client.rest_as_text();
            assert_eq!(&told, answer, "{} in {written} writes", shown(head));
            sent.join().unwrap();
            count += 1;
        }
    }
    proxy.settles("connections_active", 0.0);
    let page = proxy.scrape();
    let answered: f64 = page
        .counted("connect_requests_total")
        .iter()
        .map(|(_, value)| value)
        .sum();
    assert_eq!(answered, f64::from(count));
    assert_eq!(page.value("dial_duration_seconds_count"), 0.0);
    target.expect_nobody();
}

#[test]
fn up_to_64_fields_and_16_kib_are_a_head() {
    let target = Target::listen();
    let proxy = proxy_to(&target, "");
    let start = format!("CONNECT {NAME} HTTP/1.1\r\nHost: a\r\n");
    let padding = 16_384 - start.len() - "X: \r\n\r\n".len();
    for (head, fits) in [
        (format!("{start}{}\r\n", "X: y\r\n".repeat(63)), true),
        (format!("{start}X: {}\r\n\r\n", "y".repeat(padding)), true),
        (format!("{start}X: {}\r\n\r\n", "y".repeat(padding + 1)), false),
    ] {
        let mut client = proxy.client(&head);
        if fits {
            client.expect(CONFIRMATION);
            target.accept();
        } else {
            client.expect("HTTP/1.1 431 ");
        }
    }
}

#[test]
fn a_line_of_4_mib_is_refused_at_its_first_16_kib() {
    let target = Target::listen();
    let proxy = proxy_to(&target, "");
    let mut client = Peer::connect(proxy.public());
    let mut sending = client.again();
    let line = format!("CONNECT {}", "a".repeat(4 << 20));
    let sent = thread::spawn(move || sending.try_send(line));
    client.expect(refusal(431, "the request head is too large", "http_request_error", ""));
    proxy.settles("connections_active", 0.0);
    // Whether the rest of it fits the buffers of the kernel or fails is all the same.
    sent.join().unwrap().ok();
}

#[test]
fn a_head_that_ends_too_soon_is_told_so() {
    let target = Target::listen();
    let proxy = proxy_to(&target, "");
    let head = request(NAME);
    let answer = refusal(400, "the request head is incomplete", "http_request_error", "");
    for end in (1..head.len()).step_by(7).chain([head.len() - 1]) {
        let mut client = proxy.client(&head[..end]);
        client.finish();
        assert_eq!(client.rest_as_text(), answer, "{end}");
    }
    proxy.settles("connections_active", 0.0);
    target.expect_nobody();
}

#[test]
fn who_sends_nothing_is_told_nothing() {
    let target = Target::listen();
    let proxy = proxy_to(&target, "");
    let mut probe = proxy.client("");
    probe.finish();
    probe.expect_end();
    proxy.client("").reset();
    proxy.settles(r#"connect_requests_total{code="499",reason="no_request"}"#, 2.0);
    proxy.settles("connections_active", 0.0);
}
