//! A client that leaves while its target is dialled frees the dial; one that has only finished sending has not left.

use crate::harness::peer::Peer;
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
    let leave: [fn(Peer); 3] = [Peer::reset, |mut client| client.finish(), drop];
    // Without early bytes a FIN means that it has left; with them only a reset does, however many they are.
    for (early, ways) in [
        (0, &leave[..]),
        (10, &leave[..1]),
        (16_384, &leave[..1]),
        (100_000, &leave[..1]),
    ] {
        for way in ways {
            let blackhole = Blackhole::open();
            let proxy = proxy_to(&blackhole);
            let mut client = proxy.client(request("hole:22"));
            client.send(vec![b'x'; early]);
            blackhole.expect_dials(1);
            assert_eq!(proxy.scrape().value("connections_active"), 1.0);
            way(client);
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
}

#[test]
fn early_bytes_of_a_client_that_has_finished_still_reach_the_target() {
    for early in [1, 1_000, 16_384, 100_000] {
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
