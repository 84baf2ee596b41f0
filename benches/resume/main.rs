//! The cost of a session compared to a plain connection, and how soon it goes on: keystrokes, bulk, cuts, a rollout, memory.
//!
//! `cargo bench --bench resume`, or `cargo bench --bench resume -- bulk` for one part. The real proxy, anchor and `connect`
//! run over loopback. It prints one line for each figure, and exits with 1 if one exceeds its bound. `SWITCHBOARD_BENCH_PROGRAM`
//! names another build's program to run, and `SWITCHBOARD_BENCH_ANCHOR` one whose anchor to run.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    unreachable_pub,
    reason = "a bench that cannot run has failed, and prints what it found"
)]

#[path = "../support/bare_relay.rs"]
mod bare_relay;
mod black_hole;
#[path = "../support/bounds.rs"]
mod bounds;
mod floor;
mod link;
mod programs;
mod target;

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use self::black_hole::BlackHole;
use self::bounds::bound;
use self::floor::Floor;
use self::link::Link;
use self::programs::{Anchor, Client, LOOPBACK, Mode, Process, Proxy, free_address};
use self::target::Target;

fn main() -> ExitCode {
    if floor::serve_if_asked() {
        return ExitCode::SUCCESS;
    }
    if black_hole::is_inside() {
        black_holes_inside();
        return bounds::status();
    }
    let parts: [Part; 7] = [
        ("keystrokes", keystrokes),
        ("bulk", bulk),
        ("set-up", set_up),
        ("cuts", cuts),
        ("black-holes", |_| black_hole::run_inside()),
        ("rollout", rollout),
        ("memory", memory),
    ];
    let asked: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    println!("load of the machine before: {}", load.trim());
    for (name, part) in parts {
        if asked.is_empty() || asked.iter().any(|asked| asked == name) {
            // Each part has processes of its own: what one has left in them is no part of another.
            part(&Stage::start());
        }
    }
    bounds::status()
}

/// A part's name, by which it is asked for, and its measurement.
type Part = (&'static str, fn(&Stage));

/// All but the clients.
struct Stage {
    target: Target,
    anchor: Anchor,
    proxy: Proxy,
}

impl Stage {
    fn start() -> Self {
        Self::start_at(LOOPBACK)
    }

    /// With the proxy at that address.
    fn start_at(proxy: IpAddr) -> Self {
        let target = Target::start();
        let anchor = Anchor::start(target.address);
        let proxy = Proxy::start(free_address(proxy), &names(&target, &anchor));
        Self { target, anchor, proxy }
    }

    fn address(&self) -> SocketAddr {
        self.proxy.address
    }
}

fn names(target: &Target, anchor: &Anchor) -> [(&'static str, SocketAddr); 2] {
    [("target", target.address), ("anchor", anchor.address)]
}

/// Round trips of one byte, in turns.
fn keystrokes(stage: &Stage) {
    let mut clients = [Mode::Plain, Mode::Session].map(|mode| Client::echoing(stage.address(), mode));
    let mut waits = [Vec::new(), Vec::new()];
    for _ in 0..KEYSTROKES {
        for (client, waits) in clients.iter_mut().zip(&mut waits) {
            waits.push(client.keystroke().unwrap());
            thread::sleep(BETWEEN_KEYSTROKES / 2);
        }
    }
    let [mut plain, mut session] = waits;
    for share in [0.5, 0.99] {
        let (plain, session) = (quantile(&mut plain, share), quantile(&mut session, share));
        let ratio = session.as_secs_f64() / plain.as_secs_f64();
        println!(
            "keystroke, p{}: plain {plain:.2?}, session {session:.2?}: {ratio:.2}",
            share * 100.0
        );
    }
}

/// The figures of one transfer.
#[derive(Clone, Copy)]
struct Bulk {
    /// GiB/s.
    rate: f64,
    /// Processor seconds per GiB of `connect`, the anchor, the target, and of the proxy.
    costs: [f64; 4],
}

/// The medians of the rounds.
struct Figures {
    rate: f64,
    /// Of `connect`, the anchor and the target together.
    sides: f64,
    costs: [f64; 4],
}

/// A way of bulk: through a proxy, and perhaps a program between it and the target.
struct Way<'a> {
    name: &'static str,
    address: SocketAddr,
    mode: Mode,
    proxy: &'a Process,
    between: &'a Process,
}

/// A session beside a plain connection, and beside its floors: a bare copy where the anchor is, and bare splices where the proxy is.
fn bulk(stage: &Stage) {
    let copy = Floor::copy(stage.target.address);
    let to_copy = Proxy::start(free_address(LOOPBACK), &[("target", copy.address)]);
    let splices = Floor::splices(stage.anchor.address);
    let (proxy, anchor) = (&stage.proxy.process, &stage.anchor.process);
    let way = |name, address, mode, proxy, between| Way {
        name,
        address,
        mode,
        proxy,
        between,
    };
    let ways = [
        way("plain", stage.address(), Mode::Plain, proxy, anchor),
        way("session", stage.address(), Mode::Session, proxy, anchor),
        way("copy", to_copy.address, Mode::Plain, &to_copy.process, &copy.process),
        way(
            "session by splices",
            splices.address,
            Mode::Session,
            &splices.process,
            anchor,
        ),
    ];
    for direction in ["down", "up"] {
        let [plain, session, copy, spliced] = in_turns(&ways, &stage.target, direction == "down");
        println!("bulk {direction}: GiB/s; CPU-s/GiB of both sides (connect, anchor, target); of the proxy");
        for (way, figures) in ways.iter().zip([&plain, &session, &copy, &spliced]) {
            let Figures {
                rate,
                sides,
                costs: [connect, anchor, target, proxy],
            } = figures;
            println!(
                "  {}: {rate:.2}; {sides:.3} ({connect:.3}, {anchor:.3}, {target:.3}); {proxy:.3}",
                way.name
            );
        }
        // An upload by BBR has missed it on each host.
        if direction == "down" {
            bound("GiB/s of a session: 0.8 times plain", session.rate >= 0.8 * plain.rate);
        }
        bound(
            "GiB/s of a session: 0.8 times the copy's",
            session.rate >= 0.8 * copy.rate,
        );
        for (what, most) in [
            ("1.5 times plain", 1.5 * plain.sides),
            ("1.2 times the copy's", 1.2 * copy.sides),
        ] {
            bound(format!("CPU-s/GiB of both sides: {what}"), session.sides <= most);
        }
        println!(
            "  a session's part of plain, and of its floor: GiB/s {:.2}, {:.2}; both sides {:.2}, {:.2}; the proxy {:.2}, {:.2}",
            session.rate / plain.rate,
            session.rate / copy.rate,
            session.sides / plain.sides,
            session.sides / copy.sides,
            session.costs[3] / plain.costs[3],
            session.costs[3] / spliced.costs[3]
        );
    }
}

/// The ways in turns, so that what else the machine does is shared.
fn in_turns<const N: usize>(ways: &[Way<'_>; N], target: &Target, is_down: bool) -> [Figures; N] {
    let mut rounds = ways.each_ref().map(|_| Vec::new());
    for round in 0..ROUNDS {
        for place in 0..N {
            let index = (place + round) % N;
            rounds[index].push(transfer(&ways[index], target, is_down));
        }
    }
    rounds.map(|rounds| {
        let cost = |index: usize| median(rounds.iter().map(|round| round.costs[index]));
        Figures {
            costs: [0, 1, 2, 3].map(cost),
            sides: median(rounds.iter().map(|round| round.costs[..3].iter().sum())),
            rate: median(rounds.iter().map(|round| round.rate)),
        }
    })
}

fn transfer(way: &Way<'_>, target: &Target, is_down: bool) -> Bulk {
    let asked = if is_down {
        format!("source_{BULK}")
    } else {
        "sink".to_owned()
    };
    let times = || [way.between.time(), target.bulk_time(), way.proxy.time()].map(|time| time.as_secs_f64());
    let (before, began) = (times(), Instant::now());
    let mut client = Client::start(way.address, way.mode, &asked);
    let mut chunk = vec![0; CHUNK];
    if !is_down {
        for _ in 0..BULK / CHUNK {
            client.send(&chunk).unwrap();
        }
        client.stdin.take();
    }
    let mut received = 0;
    loop {
        match client.stdout.read(&mut chunk).unwrap() {
            0 => break,
            read => received += read,
        }
    }
    let took = began.elapsed();
    assert_eq!(received, if is_down { BULK } else { 1 });
    client.stdin.take();
    let after = times();
    let gibibytes = BULK as f64 / (1 << 30) as f64;
    let [anchor, target, proxy] = [0, 1, 2].map(|index| (after[index] - before[index]) / gibibytes);
    Bulk {
        rate: gibibytes / took.as_secs_f64(),
        costs: [client.process.time().as_secs_f64() / gibibytes, anchor, target, proxy],
    }
}

/// From the start of the process to the first echo.
fn set_up(stage: &Stage) {
    let mut waits = [Vec::new(), Vec::new()];
    for _ in 0..SET_UPS {
        for mode in [Mode::Plain, Mode::Session] {
            let began = Instant::now();
            Client::echoing(stage.address(), mode).keystroke().unwrap();
            waits[mode as usize].push(began.elapsed());
        }
    }
    let [mut plain, mut session] = waits;
    for share in [0.5, 0.99] {
        let (plain, session) = (quantile(&mut plain, share), quantile(&mut session, share));
        println!(
            "set-up with the start of connect, p{}: plain {plain:.2?}, session {session:.2?}",
            share * 100.0
        );
    }
}

/// From the moment at which the link is back to the echo of a byte that was typed without it.
fn cuts(stage: &Stage) {
    for (outage, rounds) in OUTAGES {
        let sessions: Vec<_> = (0..CUT_SESSIONS)
            .map(|session| {
                let proxy = stage.address();
                thread::spawn(move || {
                    let link = Link::to(proxy);
                    let mut client = Client::echoing(link.address, Mode::Session);
                    thread::sleep(Duration::from_millis(37 * session));
                    let cut = |_| {
                        client.keystroke().unwrap();
                        thread::sleep(Duration::from_millis(300));
                        link.cut();
                        client.send(b"k").unwrap();
                        thread::sleep(outage);
                        link.restore();
                        let began = Instant::now();
                        client.receive().unwrap();
                        began.elapsed()
                    };
                    (0..rounds).map(cut).collect::<Vec<_>>()
                })
            })
            .collect();
        let waits = sessions.into_iter().flat_map(|session| session.join().unwrap());
        report_cut("cut", outage, waits.collect());
    }
}

fn report_cut(what: &str, outage: Duration, mut waits: Vec<Duration>) {
    let p99 = quantile(&mut waits, 0.99);
    println!(
        "{what} of {outage:?}, from the return of the link to an echo: p50 {:.2?}, p99 {p99:.2?}, max {:.2?} of {}",
        quantile(&mut waits, 0.5),
        quantile(&mut waits, 1.0),
        waits.len()
    );
    // Over loopback a round trip is no part of it.
    bound(
        format_args!("{what} of {outage:?}, p99: 1 s"),
        p99 <= Duration::from_secs(1),
    );
}

/// The same where packets vanish: no connection ends, and no new one is refused.
fn black_holes_inside() {
    let link = BlackHole::new();
    let stage = Stage::start_at(link.near());
    let mut clients = start_all(BLACK_HOLE_SESSIONS, || {
        Client::of(link.beside_clients(), stage.address(), Mode::Session, "echo")
    });
    for (outage, rounds) in BLACK_HOLES {
        let mut waits = Vec::new();
        for _ in 0..rounds {
            for client in &mut clients {
                client.keystroke().unwrap();
            }
            link.cut();
            for client in &mut clients {
                client.send(b"k").unwrap();
                // Apart from each other, as users type.
                thread::sleep(Duration::from_millis(29));
            }
            thread::sleep(outage.saturating_sub(Duration::from_millis(29) * BLACK_HOLE_SESSIONS as u32));
            link.restore();
            let began = Instant::now();
            thread::scope(|scope| {
                let receiving: Vec<_> = clients
                    .iter_mut()
                    .map(|client| {
                        scope.spawn(move || {
                            client.receive().unwrap();
                            began.elapsed()
                        })
                    })
                    .collect();
                waits.extend(receiving.into_iter().map(|client| client.join().unwrap()));
            });
        }
        report_cut("black hole", outage, waits);
    }
}

/// Keystrokes of many sessions while a proxy at the same port takes over from the first one, which drains.
fn rollout(stage: &Stage) {
    let clients = start_all(ROLLOUT_SESSIONS, || Client::echoing(stage.address(), Mode::Session));
    let mut second = None;
    let is_over = AtomicBool::new(false);
    let mut stalls = Vec::new();
    thread::scope(|scope| {
        let typing: Vec<_> = clients
            .into_iter()
            .map(|mut client| {
                scope.spawn({
                    let is_over = &is_over;
                    move || {
                        let mut max = Duration::ZERO;
                        while !is_over.load(Ordering::Relaxed) {
                            max = max.max(client.keystroke().ok()?);
                            thread::sleep(BETWEEN_ROLLOUT_KEYSTROKES);
                        }
                        Some(max)
                    }
                })
            })
            .collect();
        thread::sleep(Duration::from_secs(2));
        second = Some(Proxy::start(stage.address(), &names(&stage.target, &stage.anchor)));
        let before = stage.anchor.metric("switchboard_anchor_attachments_total");
        stage.proxy.process.terminate();
        thread::sleep(DRAIN_TIMEOUT);
        is_over.store(true, Ordering::Relaxed);
        stalls = typing.into_iter().map(|client| client.join().unwrap()).collect();
        let moved = stage.anchor.metric("switchboard_anchor_attachments_total") - before;
        println!("rollout: {ROLLOUT_SESSIONS} sessions, {moved} moves");
    });
    let lost = stalls.iter().filter(|stall| stall.is_none()).count();
    let mut stalls: Vec<_> = stalls.into_iter().flatten().collect();
    let max = quantile(&mut stalls, 1.0);
    println!(
        "rollout: {lost} of {ROLLOUT_SESSIONS} sessions cut; longest round trip of a session: p50 {:.2?}, p99 {:.2?}, max {max:.2?}",
        quantile(&mut stalls, 0.5),
        quantile(&mut stalls, 0.99)
    );
    bound("sessions cut by a rollout: 0", lost == 0);
    bound("longest round trip in a rollout: 2 s", max <= Duration::from_secs(2));
}

/// The anchor's memory with one session, with idle ones, and with ones without a connection that are full.
fn memory(stage: &Stage) {
    let hold = || {
        let mut client = Client::start(stage.address(), Mode::Session, "hold");
        client.keystroke().unwrap();
        client
    };
    let anchor = &stage.anchor;
    let fresh = anchor.process.resident();
    let first = hold();
    let one = anchor.process.resident();
    let others = start_all(SESSIONS - 1, hold);
    // Behind the delay of the last acknowledgements.
    thread::sleep(Duration::from_secs(1));
    let idle = anchor.process.resident();
    let each = idle.saturating_sub(one) as f64 / (SESSIONS - 1) as f64;
    println!("memory of the anchor: {fresh} KiB fresh, {one} KiB with one session");
    println!("memory of the anchor: {idle} KiB with {SESSIONS} idle sessions: {each:.1} KiB each");
    if programs::is_another_anchor() {
        bound("the small anchor with one session: 8 MiB", one <= 8 * 1024);
    }
    bound("an idle session of the anchor: 16 KiB", each <= 16.0);
    drop((first, others));
    let detached = r#"switchboard_anchor_sessions{state="detached"}"#;
    let began = Instant::now();
    while anchor.metric(detached) < SESSIONS as f64 && began.elapsed() < Duration::from_secs(20) {
        thread::sleep(Duration::from_millis(50));
    }
    let written = stage.target.flood();
    let ended = anchor.metric(r#"switchboard_anchor_session_ends_total{reason="memory"}"#);
    println!(
        "memory of the anchor: {} sessions detached, {ended} ended for memory, {:.0} MiB kept of {:.0} MiB written and {:.0} MiB \
         allowed, {} MiB resident",
        anchor.metric(detached),
        anchor.metric("switchboard_anchor_memory_bytes") / MIB,
        written as f64 / MIB,
        anchor.metric("switchboard_anchor_memory_limit_bytes") / MIB,
        anchor.process.resident() / 1024
    );
    bound("detached sessions ended for memory: 0", ended == 0.0);
}

/// Starts so many clients, some at a time.
fn start_all(count: usize, start: impl Fn() -> Client + Sync) -> Vec<Client> {
    let start = &start;
    thread::scope(|scope| {
        let starting: Vec<_> = (0..STARTERS)
            .map(|starter| scope.spawn(move || (starter..count).step_by(STARTERS).map(|_| start()).collect::<Vec<_>>()))
            .collect();
        starting
            .into_iter()
            .flat_map(|clients| clients.join().unwrap())
            .collect()
    })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn quantile(values: &mut [Duration], share: f64) -> Duration {
    values.sort();
    values[((values.len() - 1) as f64 * share) as usize]
}

const KEYSTROKES: usize = 1000;
const BETWEEN_KEYSTROKES: Duration = Duration::from_millis(20);
const ROUNDS: usize = 5;
const BULK: usize = 1 << 30;
/// As many as a pipe holds.
const CHUNK: usize = 64 * 1024;
const SET_UPS: usize = 100;
const CUT_SESSIONS: u64 = 10;
/// How long the link is down, and how often for each session.
const OUTAGES: [(Duration, usize); 4] = [
    (Duration::ZERO, 5),
    (Duration::from_secs(1), 10),
    (Duration::from_secs(5), 10),
    (Duration::from_secs(20), 5),
];
const BLACK_HOLE_SESSIONS: usize = 20;
/// How long packets vanish, and how often.
const BLACK_HOLES: [(Duration, usize); 4] = [
    (Duration::from_secs(1), 5),
    (Duration::from_secs(5), 5),
    (Duration::from_secs(10), 5),
    (Duration::from_secs(20), 5),
];
const ROLLOUT_SESSIONS: usize = 100;
const BETWEEN_ROLLOUT_KEYSTROKES: Duration = Duration::from_millis(50);
/// A second of delay, five in which the sessions move, and some more.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(9);
const SESSIONS: usize = 1000;
/// Clients that start at a time.
const STARTERS: usize = 8;
const MIB: f64 = (1 << 20) as f64;
