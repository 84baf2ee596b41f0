//! A client that leaves while its target is dialled frees the dial; one that has only finished sending has not left.

use crate::harness::ports::Ports;
use crate::harness::proxy::Proxy;
use crate::harness::target::Blackhole;
use crate::harness::{CONFIRMATION, allow, request};

/// Dials that would last for an hour: what ends them within a test's deadline is not their own.
fn proxy_to(blackhole: &Blackhole) -> Proxy {
    let list = allow(&[("hole:22", blackhole.address())]);
    Proxy::start(&format!("{list}timeouts: {{dial: 1h, connect: 1h}}\n"))
}

#[test]
fn a_client_that_leaves_during_the_dial_ends_the_dial() {
    // Only a reset means that it has left, however many early bytes there are.
    for early in [0, 10, 16_384, 100_000] {
        let blackhole = Blackhole::open();
        let proxy = proxy_to(&blackhole);
        let mut client = proxy.client(request("hole:22"));
        client.send(vec![b'x'; early]);
        blackhole.expect_dials(1);
        assert_eq!(proxy.scrape().value("connections_active"), 1.0);
        client.reset();
        blackhole.expect_dials(0);
        proxy.settles("connections_active", 0.0);
        let answered = proxy.scrape().counted("connect_requests_total");
        assert_eq!(
            answered,
            [(r#"code="499",reason="client_disconnected""#.to_owned(), 1.0)],
            "{early}"
        );
    }
}

#[test]
fn a_client_that_half_closes_right_after_its_head_gets_its_answer() {
    let blackhole = Blackhole::open();
    let proxy = proxy_to(&blackhole);
    for (name, begins) in [("hole:22", CONFIRMATION), ("nowhere:22", "HTTP/1.1 403 ")] {
        let mut client = proxy.client(request(name));
        client.finish();
        if name == "hole:22" {
            blackhole.expect_dials(1);
            blackhole.relent().finish();
        }
        let answer = client.rest_as_text();
        assert!(answer.starts_with(begins), "{answer}");
    }
}

#[test]
fn early_bytes_of_a_client_that_has_finished_still_reach_the_target() {
    for early in [0, 1, 1_000, 16_384, 100_000] {
        let blackhole = Blackhole::open();
        let proxy = proxy_to(&blackhole);
        let mut client = proxy.client(request("hole:22"));
        let bytes = vec![b'x'; early];
        client.send(&bytes);
        client.finish();
        blackhole.expect_dials(1);
        let mut server = blackhole.relent();
        assert!(server.rest() == bytes);
        server.send("done");
        server.finish();
        client.expect(CONFIRMATION);
        client.expect("done");
        client.expect_end();
    }
}
