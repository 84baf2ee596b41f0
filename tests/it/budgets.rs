//! Budgets that tunnels share: of a target, of a client, of the process; reloaded under tunnels that run.
//!
//! Their exactness is tested on a paused clock beside `src/tunnel/limits/budget.rs`; here, that every tunnel is under them.

use std::thread;
use std::time::{Duration, Instant};

use crate::harness::allow;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::proxy::Proxy;
use crate::harness::target::Target;

const RATE: u64 = 4 << 20;
const BURST: u64 = 64 << 10;
/// The bytes of each of three tunnels: together more than a second's worth.
const EACH: usize = 2 << 20;

#[test]
fn tunnels_keep_to_each_budget_together() {
    for budget in ["target", "client", "process"] {
        for direction in ["download", "upload"] {
            let target = Target::listen();
            let list = allow(&[("devbox:22", target.address())]);
            let proxy = Proxy::start(&format!(
                "{list}limits: {{tunnel: {{burst: 64KiB}}, {budget}: {{{direction}: 4MiB/s}}}}\n"
            ));
            let tunnels: Vec<_> = (0..3).map(|_| proxy.tunnel("devbox:22", &target)).collect();
            let start = Instant::now();
            let moving: Vec<_> = tunnels
                .into_iter()
                .map(|(client, service)| match direction {
                    "download" => pour(service, client),
                    _ => pour(client, service),
                })
                .collect();
            let moved: usize = moving.into_iter().map(|moving| moving.join().unwrap()).sum();
            assert_eq!(moved, 3 * EACH);
            // Faster than the budget allows, and it is not kept; how much slower is the machine's affair.
            let least = Duration::from_secs_f64((moved as u64 - BURST) as f64 / RATE as f64);
            let took = start.elapsed() + Duration::from_millis(60);
            assert!(took >= least, "{budget} {direction}: {took:?} for what takes {least:?}");
        }
    }
}

#[test]
fn a_keystroke_goes_before_bulk_and_a_raised_budget_releases_waiting_tunnels() {
    let (bulk, shell) = (Target::listen(), Target::listen());
    let list = allow(&[("bulk:22", bulk.address()), ("shell:22", shell.address())]);
    let proxy = Proxy::start(&format!(
        "{list}limits: {{tunnel: {{burst: 4KiB}}, process: {{download: 64KiB/s, upload: 64KiB/s}}}}\n"
    ));
    let pouring: Vec<_> = (0..4)
        .map(|_| {
            let (client, service) = proxy.tunnel("bulk:22", &bulk);
            pour(service, client)
        })
        .collect();
    let throttled = r#"throttled_seconds_total{direction="download"}"#;
    crate::harness::eventually("throttled", || (proxy.scrape().value(throttled) > 0.0).then_some(()));
    // 8 MiB wait for two minutes of budget. Each key and its echo pass nevertheless.
    let (mut client, mut service) = proxy.tunnel("shell:22", &shell);
    for _ in 0..20 {
        client.send("k");
        service.expect("k");
        service.send("k");
        client.expect("k");
    }
    assert!(
        pouring.iter().all(|pouring| !pouring.is_finished()),
        "bulk was not held back"
    );
    proxy.reload(&list);
    for pouring in pouring {
        assert_eq!(pouring.join().unwrap(), EACH);
    }
}

/// Sends through a tunnel what each wants to move, and says how much came out.
fn pour(mut from: Peer, mut to: Peer) -> thread::JoinHandle<usize> {
    thread::spawn(move || {
        let sending = thread::spawn(move || {
            from.send(vec![b'x'; EACH]);
            from.finish();
            from
        });
        let moved = to.rest().len();
        drop(sending.join().unwrap());
        moved
    })
}
