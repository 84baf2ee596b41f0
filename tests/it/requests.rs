//! Every request, however it is chopped, gets its tunnel or its refusal, and nothing else reaches a target.

mod tables;

use std::thread;

use crate::harness::peer::{Peer, shown};
use crate::harness::ports::Ports;
use crate::harness::proxy::Proxy;
use crate::harness::target::Target;
use crate::harness::{CONFIRMATION, allow, refusal, refused, request};
use switchboard::tunnel::outcome::RefusalReason;
use tables::{BAD_TARGETS, GOOD, LABEL, MALFORMED, UNKNOWN};

const NAME: &str = "svc-a.ns.svc.cluster.local:80";

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
    // Lengths that the handshake's buffer holds, that it does not, and that no socket buffer holds either.
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

/// A request that is refused, the bytes behind it, and the whole answer.
fn requests() -> Vec<(Vec<u8>, String)> {
    let bad = |phrase| refusal(400, phrase, "http_request_error", "");
    let not_allowed = refused(RefusalReason::NotAllowed);
    let method = refusal(
        405,
        &RefusalReason::MethodNotAllowed.phrase().to_string(),
        "http_request_error",
        "Allow: CONNECT\r\n",
    );
    let large = refused(RefusalReason::RequestHeaderTooLarge);
    let mut all = Vec::new();
    for (head, phrase) in MALFORMED {
        all.push((head.to_vec(), bad(phrase)));
    }
    for (target, phrase) in BAD_TARGETS {
        all.push((request(target).into_bytes(), bad(phrase)));
    }
    for label in ["a".repeat(64), "a.".repeat(128)] {
        all.push((request(&format!("{label}:80")).into_bytes(), bad(LABEL)));
    }
    for name in UNKNOWN {
        all.push((request(name).into_bytes(), not_allowed.clone()));
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
        all.push((
            format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes(),
            method.clone(),
        ));
    }
    let head = "CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\n";
    all.push((
        format!("{head}{}\r\n", "X: y\r\n".repeat(64)).into_bytes(),
        large.clone(),
    ));
    for long in [
        format!("CONNECT {}", "a".repeat(20_000)),
        "A".repeat(20_000),
        format!("{head}X: {}\r\n\r\n", "y".repeat(20_000)),
        format!("{head}{}: x\r\n\r\n", "X".repeat(20_000)),
    ] {
        all.push((long.into_bytes(), large.clone()));
    }
    all
}

#[test]
fn each_refused_request_gets_its_exact_answer_and_no_dial() {
    let target = Target::listen();
    let proxy = proxy_to(&target, "");
    let requests = requests();
    let mut count = 0;
    for (head, answer) in &requests {
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
    target.expect_no_connection();
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
    client.expect(refused(RefusalReason::RequestHeaderTooLarge));
    proxy.settles("connections_active", 0.0);
    // The rest of it may fit the buffers of the kernel, or fail.
    sent.join().unwrap().ok();
}

#[test]
fn a_truncated_head_is_malformed() {
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
    target.expect_no_connection();
}

#[test]
fn a_connection_without_a_byte_gets_no_answer() {
    let target = Target::listen();
    let proxy = proxy_to(&target, "");
    let mut probe = proxy.client("");
    probe.finish();
    probe.expect_end();
    proxy.client("").reset();
    proxy.settles(r#"connect_requests_total{code="499",reason="port_probe"}"#, 2.0);
    proxy.settles("connections_active", 0.0);
}
