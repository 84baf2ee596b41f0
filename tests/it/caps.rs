//! Caps on tunnels, connections and dials: the one above the cap is refused, and every slot is free again.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Process, Server, Settings, switchboard_with_descriptors};
use crate::harness::proxy::Proxy;
use crate::harness::target::{Blackhole, Closed, Echo, Target};
use crate::harness::{CONFIRMATION, allow, eventually, refusal, refused, request};
use crate::http2::raw::{PREFACE, Raw, SETTINGS};
use rustix::process::Signal;
use switchboard::tunnel::outcome::RefusalReason;

/// Another client.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn full(status: u16, phrase: &str, seconds: u32) -> String {
    let retry = format!("Retry-After: {seconds}\r\n");
    refusal(status, phrase, "connection_limit_reached", &retry)
}

/// The caps on tunnels: what sets each to `max`, and the answer to the tunnel that is too many.
fn caps(max: u32) -> [(String, String); 3] {
    let patient = "connects_per_second: unlimited";
    [
        (
            format!("limits: {{client: {{{patient}}}, process: {{max_tunnels: {max}}}}}\n"),
            refused(RefusalReason::ProxyFull),
        ),
        (
            format!("limits: {{client: {{{patient}, max_tunnels: {max}}}}}\n"),
            full(
                429,
                &format!("this client address has reached its tunnel limit of {max}, try again later"),
                30,
            ),
        ),
        (
            format!("limits: {{client: {{{patient}}}, target: {{max_tunnels: {max}}}}}\n"),
            full(
                503,
                &format!("the target has reached its tunnel limit of {max}, try again later"),
                30,
            ),
        ),
    ]
}

/// A tunnel, as soon as there is a slot for it.
#[track_caller]
fn open_when_free(proxy: &Proxy, target: &Target) -> (Peer, Peer) {
    let client = eventually("a free slot", || {
        let mut client = proxy.client(request("devbox:22"));
        (client.read_once() == CONFIRMATION.as_bytes()).then_some(client)
    });
    (client, target.accept())
}

#[test]
fn a_tunnel_above_the_cap_is_refused_and_every_ending_frees_its_slot() {
    type Ending = fn(Peer, Peer);
    let endings: [(&str, Ending); 6] = [
        ("the client closes", |client, _server| drop(client)),
        ("the target closes", |_client, server| drop(server)),
        ("the client resets", |client, mut server| {
            client.reset();
            server.expect_reset();
        }),
        ("the target resets", |mut client, server| {
            server.reset();
            client.expect_reset();
        }),
        ("the client finishes, then the target", |mut client, mut server| {
            client.finish();
            server.expect_end();
            server.send("tail");
            server.finish();
            client.expect("tail");
            client.expect_end();
        }),
        ("the target finishes, then the client", |mut client, mut server| {
            server.finish();
            client.expect_end();
            client.send("tail");
            client.finish();
            server.expect("tail");
            server.expect_end();
        }),
    ];
    for (settings, too_many) in caps(3) {
        let target = Target::listen();
        let proxy = Proxy::start(&format!("{}{settings}", allow(&[("devbox:22", target.address())])));
        let mut open: Vec<_> = (0..3).map(|_| proxy.tunnel("devbox:22", &target)).collect();
        for (what, end) in endings {
            assert_eq!(proxy.answer("devbox:22"), too_many, "{what}");
            target.expect_no_connection();
            let (client, server) = open.remove(0);
            end(client, server);
            open.push(open_when_free(&proxy, &target));
        }
        assert_eq!(proxy.answer("devbox:22"), too_many);
        target.expect_no_connection();
    }
}

#[test]
fn a_failed_dial_frees_its_slots() {
    let closed = Closed::bind();
    for (settings, too_many) in caps(1) {
        let (target, hole) = (Target::listen(), Blackhole::open());
        let one_target = settings.contains("target:");
        // The target's own cap is tried with a target that first cannot be reached, then does not answer, then does.
        let list = |address: SocketAddr, more: &[(&str, SocketAddr)]| {
            let other = if one_target { address } else { target.address() };
            let timeouts = "timeouts: {dial: 1h, connect: 1h}\n";
            let targets = [&[("fails:22", address), ("devbox:22", other)], more].concat();
            format!("{}{timeouts}{settings}", allow(&targets))
        };
        let proxy = Proxy::start(&list(closed.address(), &[]));
        for _ in 0..3 {
            assert_eq!(proxy.answer("fails:22"), refused(RefusalReason::TargetRefused));
        }
        // One more target says that the reload was applied.
        proxy.reload(&list(hole.address(), &[("third:22", target.address())]));
        proxy.settles("allowlist_targets", 3.0);
        let dialling = proxy.client(request("fails:22"));
        hole.expect_dials(1);
        let asked = if one_target { "fails:22" } else { "devbox:22" };
        assert_eq!(proxy.answer(asked), too_many);
        hole.expect_dials(1);
        dialling.reset();
        hole.expect_dials(0);
        proxy.reload(&list(target.address(), &[]));
        proxy.settles("allowlist_targets", 2.0);
        drop(open_when_free(&proxy, &target));
    }
}

#[test]
fn a_clients_cap_does_not_affect_other_clients() {
    let target = Target::listen();
    let list = allow(&[("devbox:22", target.address())]);
    let proxy = Proxy::start(&format!("{list}limits: {{client: {{max_tunnels: 1}}}}\n"));
    let (_client, _server) = proxy.tunnel("devbox:22", &target);
    assert!(proxy.answer("devbox:22").starts_with("HTTP/1.1 429 "));
    let mut other = Peer::connect_from(ELSEWHERE, proxy.public());
    other.send(request("devbox:22"));
    other.expect(CONFIRMATION);
    proxy.settles(r#"connect_requests_total{code="429",reason="client_full"}"#, 1.0);
}

#[test]
fn dials_of_one_target_are_capped_and_the_next_one_waits_for_its_slot() {
    let hole = Blackhole::open();
    let list = allow(&[("hole:22", hole.address())]);
    let limits = "limits: {target: {max_dials: 2}, client: {connects_per_second: unlimited}}\n";
    let proxy = Proxy::start(&format!("{list}timeouts: {{dial: 1h, connect: 1h}}\n{limits}"));
    let first = proxy.client(request("hole:22"));
    let second = proxy.client(request("hole:22"));
    hole.expect_dials(2);
    let _third = proxy.client(request("hole:22"));
    proxy.settles("connections_active", 3.0);
    proxy.settles("connections_unfinished", 0.0);
    hole.expect_dials(2);
    first.reset();
    second.reset();
    hole.expect_dials(1);
}

#[test]
fn the_queue_of_a_target_that_answers_nothing_is_bounded() {
    const QUEUE: usize = 1024;
    let hole = Blackhole::open();
    let list = allow(&[("hole:22", hole.address())]);
    let limits = "limits: {target: {max_dials: 2}, client: {connects_per_second: unlimited, max_tunnels: unlimited}}\n";
    let proxy = Proxy::start(&format!("{list}timeouts: {{dial: 1h, connect: 1h}}\n{limits}"));
    let _waiting: Vec<_> = (0..QUEUE + 2).map(|_| proxy.client(request("hole:22"))).collect();
    proxy.settles("connections_active", (QUEUE + 2) as f64);
    proxy.settles("connections_unfinished", 0.0);
    let busy = refused(RefusalReason::TargetBusy);
    assert_eq!(proxy.answer("hole:22"), busy);
    hole.expect_dials(2);
}

/// Refused clients may take a second to leave: they hold a slot, as connections with an incomplete request do.
#[test]
fn refused_clients_that_linger_are_evicted_too() {
    let limits = "limits: {client: {max_unfinished: 10, connects_per_second: unlimited}}\n";
    let proxy = Proxy::start(limits);
    let stay: Vec<Peer> = (0..300)
        .map(|_| {
            let mut client = proxy.client(request("nowhere:22"));
            client.expect("HTTP/1.1 403 ");
            client
        })
        .collect();
    // They are 300 if they may all stay for their second. An evicted one may be on its way out yet.
    let active = || proxy.scrape().value("connections_active");
    assert!(active() < 100.0, "{}", active());
    eventually("the evicted connections are closed", || {
        (active() <= 11.0).then_some(())
    });
    drop(stay);
    proxy.settles("connections_active", 0.0);
}

/// An evicted connection frees its descriptor at once, with any protocol that its first bytes have begun.
#[test]
fn evicted_connections_of_http_2_do_not_linger() {
    let limits = "limits: {process: {max_unfinished: 10}, client: {connects_per_second: unlimited}}\n";
    let proxy = Proxy::start(&format!("{limits}timeouts: {{request_header: 1h}}\n"));
    let stay: Vec<Raw> = (0..300)
        .map(|_| {
            let mut client = Raw::from(proxy.client(PREFACE));
            // The connection is one of HTTP/2 now.
            assert_eq!(client.any().kind, SETTINGS);
            client
        })
        .collect();
    // They are 300 if they may all stay for a second. An evicted one may be on its way out yet.
    let active = || proxy.scrape().value("connections_active");
    assert!(active() < 100.0, "{}", active());
    proxy.settles("connections_active", 10.0);
    proxy.settles(r#"connect_requests_total{code="503",reason="evicted"}"#, 290.0);
    drop(stay);
    proxy.settles("connections_active", 0.0);
}

fn a_thousand_slow_and_silent_clients_delay_no_login() {
    const EACH: u16 = 50;
    let echo = Echo::listen();
    let list = allow(&[("echo:22", echo.address())]);
    // The caps are as they come.
    let [proxy, quiet] =
        [(); 2].map(|()| Proxy::start(&format!("{list}timeouts: {{request_header: 1h}}\nlimits: {{}}\n")));
    let request = request("echo:22");
    let log_in = |proxy: &Proxy| {
        let start = Instant::now();
        let mut good = proxy.client(&request);
        good.expect(CONFIRMATION);
        good.send("hello");
        good.expect("hello");
        start.elapsed()
    };
    let median = |mut took: Vec<Duration>| {
        took.sort_unstable();
        took[took.len() / 2]
    };
    // From twenty addresses, each below what one client may have.
    let mut held: Vec<Peer> = Vec::new();
    for client in 0..20 * EACH {
        let [_, last] = (client / EACH).to_be_bytes();
        let source = Ipv4Addr::new(127, 0, 1, last);
        held.push(Peer::connect_from(source, proxy.public()));
    }
    let (mut alone, mut took) = (Vec::new(), Vec::new());
    for byte in request.as_bytes().iter().take(20) {
        // Half of them never say a word.
        for slow in held.iter_mut().step_by(2) {
            slow.send([*byte]);
        }
        // In turns with a proxy without them: other work on the machine has to be in both.
        alone.push(log_in(&quiet));
        took.push(log_in(&proxy));
    }
    proxy.settles("connections_unfinished", 1000.0);
    let (alone, beside) = (median(alone), median(took));
    eprintln!("median of a login beside 500 slow and 500 silent clients: {beside:?}; alone: {alone:?}");
    // Held to what this machine does without them, whatever else it has to do.
    assert!(
        beside < alone * 20 + Duration::from_millis(100),
        "{beside:?}, alone {alone:?}"
    );
    // From one address they are sent away instead, but for those that are allowed.
    let all: Vec<Peer> = (0..300)
        .map(|_| Peer::connect_from(ELSEWHERE, proxy.public()))
        .collect();
    proxy.settles("connections_unfinished", 1000.0 + 256.0);
    drop(all);
}

#[test]
fn caps_change_under_tunnels_that_run() {
    let target = Target::listen();
    let list = allow(&[("devbox:22", target.address())]);
    let with = |settings: &str| format!("{list}{settings}");
    let ([(two, _), ..], [(one, too_many), ..]) = (caps(2), caps(1));
    let proxy = Proxy::start(&with(&two));
    let (mut first, mut server) = proxy.tunnel("devbox:22", &target);
    let (second, _) = proxy.tunnel("devbox:22", &target);
    proxy.reload(&with(&one));
    proxy.settles("tunnels_limit", 1.0);
    // No tunnel ends for it, and none is opened until a slot is free.
    first.send("still");
    server.expect("still");
    assert_eq!(proxy.answer("devbox:22"), too_many);
    drop(second);
    proxy.settles(
        r#"tunnels_active{target_namespace="static",target_service="devbox:22"}"#,
        1.0,
    );
    assert_eq!(proxy.answer("devbox:22"), too_many);
    proxy.reload(&with(&two));
    proxy.settles("tunnels_limit", 2.0);
    open_when_free(&proxy, &target);
    first.send("still");
    server.expect("still");
}

#[test]
fn a_low_descriptor_limit_is_told_once_and_warned_of_only_below_a_number_that_was_chosen() {
    for (limits, level) in [
        ("limits: {}\n", " INFO "),
        ("limits: {process: {max_tunnels: unlimited}}\n", " INFO "),
        ("limits: {process: {max_tunnels: 5000}}\n", " WARN "),
    ] {
        let settings = Settings::new(limits);
        let arguments = ["serve", "--config", settings.path()];
        let mut process = Process::spawn(switchboard_with_descriptors(256, &arguments));
        let told = process.stderr.find("capacity: ");
        assert!(told.contains(level) && told.contains("256"), "{told}");
        process.signal(Signal::HUP);
        while let Some(line) = process.stderr.next() {
            assert!(!line.contains("capacity: "), "{line}");
            if line.contains("configuration reloaded") {
                break;
            }
        }
    }
}

/// The least limit with which the program serves: what it has open itself is the largest part there.
#[test]
fn the_probes_answer_at_the_least_limit_of_descriptors_beside_all_connections_that_fit() {
    const DESCRIPTORS: u32 = 128;
    let echo = Echo::listen();
    let list = allow(&[("echo:22", echo.address())]);
    let settings = Settings::new(&format!(
        "{list}limits: {{client: {{connects_per_second: unlimited}}}}\n\
         timeouts: {{request_header: 1h}}\n"
    ));
    let command = switchboard_with_descriptors(DESCRIPTORS, &["serve", "--config", settings.path()]);
    let mut server = Server::start(command);
    let slots = server.scrape().value("tunnels_limit");
    let mut open = Vec::new();
    while (open.len() as f64) < slots {
        open.push(server.open("echo:22"));
    }
    let _silent: Vec<Peer> = (0..DESCRIPTORS).map(|_| server.client("")).collect();
    let _silent_admins: Vec<Peer> = (0..200).map(|_| Peer::connect(server.admin())).collect();
    for path in ["/livez", "/readyz"] {
        assert_eq!(server.ask_admin("GET", path).status, 200, "{path}");
    }
    open[0].send("served");
    open[0].expect("served");
    server.process.signal(Signal::KILL);
    let said = server.process.stderr.rest();
    assert!(said.iter().all(|line| !line.contains("pausing")), "{said:#?}");
}

#[test]
fn the_cap_follows_from_the_descriptor_limit_which_is_never_reached() {
    const DESCRIPTORS: u32 = 256;
    let echo = Echo::listen();
    let list = allow(&[("echo:22", echo.address())]);
    let settings = Settings::new(&format!(
        "{list}limits: {{client: {{connects_per_second: unlimited}}}}\n"
    ));
    let command = switchboard_with_descriptors(DESCRIPTORS, &["serve", "--config", settings.path()]);
    let server = Server::start(command);
    let slots = server.scrape().value("tunnels_limit");
    assert!((40.0..100.0).contains(&slots), "{slots}");
    // Silent ones take descriptors as well.
    let silent: Vec<Peer> = (0..DESCRIPTORS).map(|_| server.client("")).collect();
    for _ in 0..2 {
        let mut open = Vec::new();
        let last = loop {
            let mut client = server.client(request("echo:22"));
            let answer = client.read_once();
            if answer != CONFIRMATION.as_bytes() {
                break String::from_utf8([answer, client.rest()].concat()).unwrap();
            }
            open.push(client);
        };
        assert_eq!(last, refused(RefusalReason::ProxyFull));
        assert_eq!(open.len().to_string(), slots.to_string());
        for client in &mut open {
            client.send("served");
            client.expect("served");
        }
        drop(open);
        server.settles(
            r#"tunnels_active{target_namespace="static",target_service="echo:22"}"#,
            0.0,
        );
    }
    assert_eq!(server.scrape().value("accept_paused_total"), 0.0);
    drop(silent);
}

tests_in! { measured: a_thousand_slow_and_silent_clients_delay_no_login }
