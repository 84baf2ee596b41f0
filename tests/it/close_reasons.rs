//! The ends of tunnels, as both sides see them, and the one counter of each.

use crate::harness::allow;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::proxy::Proxy;
use crate::harness::target::Target;

struct Ending {
    reason: &'static str,
    by: &'static str,
    settings: &'static str,
    /// Ends the tunnel between the client and the server, and looks at what they see.
    play: fn(Peer, Peer, &Proxy),
}

const ENDINGS: [Ending; 13] = [
    Ending {
        reason: "eof",
        by: "client",
        settings: "",
        play: |mut client, mut server, _| {
            client.finish();
            server.expect_end();
            server.send("the ending");
            server.finish();
            client.expect("the ending");
            client.expect_end();
        },
    },
    Ending {
        reason: "eof",
        by: "target",
        settings: "",
        play: |mut client, mut server, _| {
            server.finish();
            client.expect_end();
            client.send("the ending");
            client.finish();
            server.expect("the ending");
            server.expect_end();
        },
    },
    Ending {
        reason: "reset",
        by: "client",
        settings: "",
        play: |client, mut server, _| {
            client.reset();
            server.expect_reset();
        },
    },
    Ending {
        reason: "reset",
        by: "target",
        settings: "",
        play: |mut client, server, _| {
            server.reset();
            client.expect_reset();
        },
    },
    Ending {
        reason: "reset",
        by: "client",
        settings: "",
        play: |mut client, mut server, _| {
            client.finish();
            server.expect_end();
            client.reset();
            server.expect_late_reset();
        },
    },
    Ending {
        reason: "reset",
        by: "target",
        settings: "",
        play: |mut client, mut server, _| {
            server.finish();
            client.expect_end();
            server.reset();
            client.expect_late_reset();
        },
    },
    Ending {
        reason: "idle",
        by: "proxy",
        settings: "timeouts: {idle: 300ms}\n",
        play: both_are_cut_off,
    },
    Ending {
        reason: "idle",
        by: "proxy",
        settings: "timeouts: {half_closed: 300ms}\n",
        play: |mut client, mut server, _| {
            client.finish();
            server.expect_end();
            client.expect_reset();
        },
    },
    Ending {
        reason: "idle",
        by: "proxy",
        settings: "timeouts: {half_closed: 300ms}\n",
        play: |mut client, mut server, _| {
            server.finish();
            client.expect_end();
            server.expect_reset();
        },
    },
    Ending {
        reason: "lifetime",
        by: "proxy",
        settings: "limits: {tunnel: {lifetime: 300ms}}\n",
        play: both_are_cut_off,
    },
    Ending {
        reason: "drained",
        by: "proxy",
        settings: "drain: {delay: 0s, timeout: 0s, spread: 0s}\n",
        play: |client, server, proxy| {
            proxy.stop();
            both_are_cut_off(client, server, proxy);
        },
    },
    Ending {
        reason: "drained",
        by: "proxy",
        settings: "drain: {delay: 1h}\n",
        play: |client, server, proxy| {
            proxy.stop();
            proxy.settles("draining", 1.0);
            proxy.stop();
            both_are_cut_off(client, server, proxy);
        },
    },
    Ending {
        reason: "target_removed",
        by: "proxy",
        settings: "",
        play: |client, server, proxy| {
            proxy.reload("");
            both_are_cut_off(client, server, proxy);
        },
    },
];

/// A reset, both ways: neither stream has ended.
fn both_are_cut_off(mut client: Peer, mut server: Peer, _: &Proxy) {
    client.expect_reset();
    server.expect_reset();
}

#[test]
fn each_ending_is_seen_by_both_sides_and_counted_once() {
    for Ending {
        reason,
        by,
        settings,
        play,
    } in ENDINGS
    {
        println!("{reason} by {by}, {settings:?}");
        let target = Target::listen();
        let list = allow(&[("devbox:22", target.address())]);
        let proxy = Proxy::start(&format!("{list}{settings}"));
        let (client, server) = proxy.tunnel("devbox:22", &target);
        play(client, server, &proxy);
        proxy.settles("connections_active", 0.0);
        let closed = proxy.scrape().counted("tunnels_closed_total");
        assert_eq!(closed, [(format!(r#"by="{by}",reason="{reason}""#), 1.0)]);
    }
}

/// Bytes that one side has sent just before its end still arrive, whichever side ends it.
#[test]
fn an_orderly_end_loses_no_byte() {
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|index| index.to_le_bytes()[0]).collect();
    let target = Target::listen();
    let proxy = Proxy::start(&allow(&[("devbox:22", target.address())]));
    for upload in [true, false] {
        for _ in 0..5 {
            let (client, server) = proxy.tunnel("devbox:22", &target);
            let (mut from, mut to) = if upload { (client, server) } else { (server, client) };
            let sent = bytes.clone();
            let sending = std::thread::spawn(move || {
                from.send(sent);
                // It closes at once, as a program does that has nothing more to do.
                drop(from);
            });
            assert!(to.rest() == bytes);
            sending.join().unwrap();
        }
    }
    proxy.settles("connections_active", 0.0);
}
