//! The scenarios: each puts one load on one proxy and gives figures.

use std::io;
use std::net::SocketAddr;
use std::process::{self, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::load::{Bulk, SetUps, due_set_ups, open_many, read_from_all, round_trips, set_ups};
use crate::proxies::{Kind, Machine, Program, Proxy, kernel_memory};
use crate::route::Route;
use crate::target::{Role, TRICKLE};
use crate::typing::typing;

/// The row of a figure, and the figure.
pub(crate) type Figure = (&'static str, f64);

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    /// Of each load.
    pub(crate) period: Duration,
    pub(crate) idle_tunnels: usize,
}

/// A load for a proxy that runs already.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) run: Load,
    /// Who has what it needs.
    pub(crate) kinds: &'static [Kind],
}

/// A load that one proxy has to bear.
pub(crate) type Load = fn(&Proxy, Effort) -> io::Result<Vec<Figure>>;

/// For all of them.
pub(crate) const fn common(name: &'static str, run: Load) -> Scenario {
    let kinds = &[Kind::Switchboard, Kind::Envoy, Kind::HaProxy];
    Scenario { name, run, kinds }
}

/// For those that speak HTTP.
pub(crate) const fn http(name: &'static str, run: Load) -> Scenario {
    let kinds = &[Kind::Switchboard, Kind::Envoy];
    Scenario { name, run, kinds }
}

/// For all of them and the floor.
pub(crate) const fn with_floor(name: &'static str, run: Load) -> Scenario {
    let kinds = &[Kind::Switchboard, Kind::Envoy, Kind::HaProxy, Kind::Floor];
    Scenario { name, run, kinds }
}

pub(crate) const fn ours(name: &'static str, run: Load) -> Scenario {
    let kinds = &[Kind::Switchboard];
    Scenario { name, run, kinds }
}

/// In the order of a round.
pub(crate) const SCENARIOS: [Scenario; 13] = [
    with_floor("down8", |proxy, effort| {
        bulk(proxy, effort, Role::Download, 8, ["down8.cpu", "down8.rate"])
    }),
    with_floor("down1", |proxy, effort| {
        bulk(proxy, effort, Role::Download, 1, ["down1.cpu", "down1.rate"])
    }),
    with_floor("up8", |proxy, effort| {
        bulk(proxy, effort, Role::Upload, 8, ["up8.cpu", "up8.rate"])
    }),
    with_floor("up1", |proxy, effort| {
        bulk(proxy, effort, Role::Upload, 1, ["up1.cpu", "up1.rate"])
    }),
    with_floor("both8", |proxy, effort| {
        bulk(proxy, effort, Role::Both, 8, ["both8.cpu", "both8.rate"])
    }),
    with_floor("both1", |proxy, effort| {
        bulk(proxy, effort, Role::Both, 1, ["both1.cpu", "both1.rate"])
    }),
    with_floor("trip", trip),
    with_floor("beside", beside),
    common("typing", |proxy, effort| {
        let rows = ["typing.p50", "typing.p99", "typing.cores", "typing.rate", "typing.late"];
        typing(proxy, effort, Role::Download, rows)
    }),
    common("typing-paced", |proxy, effort| {
        let rows = ["paced.p50", "paced.p99", "paced.cores", "paced.rate", "paced.late"];
        typing(proxy, effort, Role::Paced(60), rows)
    }),
    with_floor("setup", set_up),
    Scenario {
        name: "limited",
        run: limited,
        kinds: &[Kind::Switchboard, Kind::Floor],
    },
    ours("fifty", fifty),
];

fn bulk(proxy: &Proxy, effort: Effort, role: Role, tunnels: usize, rows: [&'static str; 2]) -> io::Result<Vec<Figure>> {
    let bulk = Bulk::start(Route::for_bulk(proxy), role, tunnels)?;
    Ok(carry(proxy, &bulk, effort.period).figures(rows))
}

fn trip(proxy: &Proxy, effort: Effort) -> io::Result<Vec<Figure>> {
    let mut tunnel = [Route::through(proxy).open(Role::Echo)?];
    round_trips(&mut tunnel, WARM_UP)?;
    let before = proxy.processor_time();
    let times = round_trips(&mut tunnel, effort.period)?;
    let used = proxy.processor_time() - before;
    Ok(vec![
        ("trip.cpu", micros(used) / times.len() as f64),
        ("trip.p50", micros(percentile(&times, 0.5))),
        ("trip.p99", micros(percentile(&times, 0.99))),
    ])
}

fn beside(proxy: &Proxy, effort: Effort) -> io::Result<Vec<Figure>> {
    let route = Route::for_bulk(proxy);
    let mut tunnel = [route.open(Role::Echo)?];
    let _bulk = Bulk::start(route, Role::Paced(60), 4)?;
    round_trips(&mut tunnel, WARM_UP)?;
    let times = round_trips(&mut tunnel, effort.period)?;
    Ok(vec![
        ("beside.p50", micros(percentile(&times, 0.5))),
        ("beside.p99", micros(percentile(&times, 0.99))),
    ])
}

fn set_up(proxy: &Proxy, effort: Effort) -> io::Result<Vec<Figure>> {
    let route = Route::through(proxy);
    set_ups(route, CLIENTS, WARM_UP)?;
    counted_set_ups(proxy, route, effort, ["setup.rate", "setup.cpu", "setup.p99"])
}

/// What set-ups by several clients cost, once they have begun to.
pub(crate) fn counted_set_ups(
    proxy: &Proxy,
    route: Route<'_>,
    effort: Effort,
    [rate, cpu, p99]: [&'static str; 3],
) -> io::Result<Vec<Figure>> {
    settle(proxy);
    let before = proxy.processor_time();
    let SetUps { times, took } = set_ups(route, CLIENTS, effort.period)?;
    settle(proxy);
    let used = proxy.processor_time() - before;
    Ok(vec![
        (rate, times.len() as f64 / took.as_secs_f64()),
        (cpu, micros(used) / times.len() as f64),
        (p99, micros(percentile(&times, 0.99)) / 1e3),
    ])
}

fn limited(proxy: &Proxy, effort: Effort) -> io::Result<Vec<Figure>> {
    let bulk = Bulk::start(Route::through(proxy).named("ten.bench:22"), Role::Download, 1)?;
    // Long enough for 20 sleeps at least.
    let used = carry(proxy, &bulk, effort.period.max(Duration::from_secs(2)));
    Ok(vec![("limited.cpu", used.seconds_per_gibibyte())])
}

fn fifty(proxy: &Proxy, effort: Effort) -> io::Result<Vec<Figure>> {
    let bulk = Bulk::start(Route::through(proxy).named("one.bench:22"), Role::Download, 50)?;
    let used = carry(proxy, &bulk, effort.period);
    Ok(vec![(
        "fifty.cpu",
        used.processor.as_secs_f64() / used.period.as_secs_f64(),
    )])
}

/// Idle tunnels, in a process that has carried nothing before.
pub(crate) fn idle(program: &Program, target: SocketAddr, effort: Effort) -> io::Result<Vec<Figure>> {
    let proxy = program.start(target, &Machine::default())?;
    let route = Route::through(&proxy);
    let kernel = kernel_memory();
    let ([memory, descriptors], _tunnels) =
        held_by_idle(&proxy, effort.idle_tunnels, |count| open_many(route, Role::Echo, count))?;
    let kernel = (kernel_memory() - kernel) / effort.idle_tunnels as f64;
    let before = proxy.processor_time();
    sleep(effort.period);
    let used = proxy.processor_time() - before;
    Ok(vec![
        ("idle.memory", memory),
        ("idle.kernel", kernel),
        ("idle.descriptors", descriptors),
        ("idle.cpu", used.as_secs_f64() * 1e3 / effort.period.as_secs_f64()),
    ])
}

/// Many slow downloads: how many descriptors they hold at most, pipes among them, and what they cost.
pub(crate) fn slow(program: &Program, target: SocketAddr, effort: Effort) -> io::Result<Vec<Figure>> {
    let proxy = program.start(target, &Machine::default())?;
    let before = (proxy.resident(), proxy.descriptors());
    let tunnels = open_many(Route::through(&proxy), Role::Trickle, SLOW_TUNNELS)?;
    read_from_all(&tunnels, WARM_UP)?;
    let (is_over, used) = (AtomicBool::new(false), proxy.processor_time());
    let (descriptors, read) = thread::scope(|scope| {
        let most = scope.spawn(|| {
            let mut most = 0;
            while !is_over.load(Ordering::Relaxed) {
                most = most.max(proxy.descriptors());
                sleep(Duration::from_millis(20));
            }
            most
        });
        let read = read_from_all(&tunnels, effort.period);
        is_over.store(true, Ordering::Relaxed);
        (most.join().unwrap(), read)
    });
    let used = proxy.processor_time() - used;
    if read? < (SLOW_TUNNELS * TRICKLE) as u64 / 2 {
        return Err(io::Error::other("the slow downloads have stalled"));
    }
    let each = |all: f64| all / SLOW_TUNNELS as f64;
    Ok(vec![
        ("slow.descriptors", each(descriptors as f64 - before.1 as f64)),
        ("slow.memory", each(proxy.resident() - before.0)),
        ("slow.cores", used.as_secs_f64() / effort.period.as_secs_f64()),
    ])
}

/// Resident memory in KiB and descriptors for each of so many idle tunnels, and the tunnels.
pub(crate) fn held_by_idle<T>(
    proxy: &Proxy,
    count: usize,
    open: impl Fn(usize) -> io::Result<T>,
) -> io::Result<([f64; 2], T)> {
    // The first tunnels pay for what all share.
    drop(open(50)?);
    settle(proxy);
    let (memory, descriptors) = (proxy.resident(), proxy.descriptors());
    let tunnels = open(count)?;
    settle(proxy);
    let memory = proxy.resident() - memory;
    let descriptors = proxy.descriptors() as f64 - descriptors as f64;
    Ok(([memory, descriptors].map(|all| all / count as f64), tunnels))
}

/// The proxy on one processor, everything else on another.
pub(crate) fn pinned(program: &Program, target: SocketAddr, effort: Effort) -> io::Result<Vec<Figure>> {
    let machine = Machine { processor: Some(0) };
    let proxy = program.start(target, &machine)?;
    if proxy.kind == Kind::HaProxy {
        return Ok(Vec::new());
    }
    let route = Route::through(&proxy);
    set_ups(route, 2, WARM_UP)?;
    hold_this_process_to("1")?;
    let times = due_set_ups(route, 3500, effort.period.max(Duration::from_secs(1)));
    hold_this_process_to("0-1023")?;
    let times = times?;
    Ok(vec![
        ("pinned.p50", micros(percentile(&times, 0.5)) / 1e3),
        ("pinned.p99", micros(percentile(&times, 0.99)) / 1e3),
    ])
}

fn hold_this_process_to(processors: &str) -> io::Result<()> {
    let mut taskset = Command::new("taskset");
    taskset.args([
        "--all-tasks",
        "--cpu-list",
        "--pid",
        processors,
        &process::id().to_string(),
    ]);
    let output = taskset.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// What a bulk load moved, and what it took.
pub(crate) struct Used {
    bytes: u64,
    processor: Duration,
    period: Duration,
}

impl Used {
    /// The cost in that row, and the speed in the next.
    pub(crate) fn figures(&self, [cpu, rate]: [&'static str; 2]) -> Vec<Figure> {
        vec![
            (cpu, self.seconds_per_gibibyte()),
            (rate, self.gibibytes() / self.period.as_secs_f64()),
        ]
    }

    fn seconds_per_gibibyte(&self) -> f64 {
        self.processor.as_secs_f64() / self.gibibytes()
    }

    fn gibibytes(&self) -> f64 {
        self.bytes as f64 / (1_u64 << 30) as f64
    }
}

/// Measures a load that has just begun.
pub(crate) fn carry(proxy: &Proxy, bulk: &Bulk, period: Duration) -> Used {
    sleep(WARM_UP);
    let (before, moved, start) = (proxy.processor_time(), bulk.moved(), Instant::now());
    sleep(period);
    Used {
        processor: proxy.processor_time() - before,
        bytes: bulk.moved() - moved,
        period: start.elapsed(),
    }
}

/// Waits until the proxy has done what is left to do: closing, logging, freeing.
pub(crate) fn settle(proxy: &Proxy) {
    let deadline = Instant::now() + Duration::from_secs(3);
    let mut before = proxy.processor_time();
    while Instant::now() < deadline {
        sleep(Duration::from_millis(150));
        let now = proxy.processor_time();
        if now - before < Duration::from_millis(1) {
            return;
        }
        before = now;
    }
}

pub(crate) fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// The time that this part of all times is not above.
pub(crate) fn percentile(times: &[Duration], part: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// Before a load is measured it runs for that long.
pub(crate) const WARM_UP: Duration = Duration::from_millis(400);
/// Each would hold four descriptors more if it kept its pipes.
const SLOW_TUNNELS: usize = 2_000;
/// Who set up tunnels at once.
pub(crate) const CLIENTS: usize = 8;
