//! The cost of relaying: the processor time of the thread that relays, by engine, size of the peers' reads and writes,
//! direction and number of tunnels.
//!
//! The relay has a thread and a runtime of its own, whose processor time is what criterion shows: its throughput is one
//! for each second of processor time. The peers are threads with blocking sockets. The table at the end has both the
//! rate by the clock on the wall and the processor seconds per GiB.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed assumption fails the benchmark, and its report is its output"
)]

#[path = "support/thread_time.rs"]
mod thread_time;

use std::collections::BTreeMap;
use std::future::pending;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use criterion::{Criterion, SamplingMode, Throughput, criterion_group};
use switchboard::tunnel::direction::Both;
use switchboard::tunnel::limits::bucket::RateLimit;
use switchboard::tunnel::limits::{Rate, Size};
use switchboard::tunnel::relay::meter::{Meter, Totals};
use switchboard::tunnel::relay::{Options, RelayConfig, Resources, Transports, relay};
use thread_time::{ThreadTime, used};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

type Engine = fn() -> Resources;

const ENGINES: [(&str, Engine); 3] = [
    ("copy", || Resources::new(0)),
    ("splice", || Resources::splicing_all(PIPES)),
    ("adaptive", || Resources::new(PIPES)),
];
const PIPES: usize = 128;
/// The bytes of one iteration in each direction that it uses, over all tunnels.
const BULK: u64 = 64 << 20;
/// How many messages go there and back in one iteration, and how large they are.
const ROUNDS: u64 = 1000;
const MESSAGE: usize = 64;

/// The work of the peers of each tunnel.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// Bulk one way or both, through so many tunnels, in reads and writes of that size.
    Bulk {
        up: bool,
        down: bool,
        tunnels: u64,
        piece: usize,
    },
    /// One small message at a time, there and back.
    RoundTrips,
}

impl Load {
    fn tunnels(self) -> u64 {
        match self {
            Self::Bulk { tunnels, .. } => tunnels,
            Self::RoundTrips => 1,
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Self::Bulk { up, down, .. } => BULK * (u64::from(up) + u64::from(down)),
            Self::RoundTrips => ROUNDS * 2 * MESSAGE as u64,
        }
    }
}

/// Time that was used, by the clock on the wall and by the relaying thread.
#[derive(Clone, Copy, Debug)]
struct Figures {
    bytes: u64,
    wall: Duration,
    processor: Duration,
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let ours = listener.accept().unwrap().0;
    for stream in [&peer, &ours] {
        stream.set_nodelay(true).unwrap();
    }
    ours.set_nonblocking(true).unwrap();
    (peer, ours)
}

fn run(engine: fn() -> Resources, load: Load, iterations: u64) -> Figures {
    let (peers, ends): (Vec<_>, Vec<_>) = (0..load.tunnels())
        .map(|_| {
            let ((client, downstream), (target, upstream)) = (pair(), pair());
            ((client, target), (downstream, upstream))
        })
        .unzip();
    let start = Instant::now();
    let threads: Vec<_> = peers
        .into_iter()
        .flat_map(|(client, target)| play(load, iterations, client, target))
        .collect();
    let relaying = thread::spawn(move || relay_all(engine, ends));
    for thread in threads {
        thread.join().unwrap();
    }
    let wall = start.elapsed();
    Figures {
        bytes: load.bytes() * iterations,
        wall,
        processor: relaying.join().unwrap(),
    }
}

fn play(load: Load, iterations: u64, client: TcpStream, target: TcpStream) -> Vec<JoinHandle<()>> {
    match load {
        Load::Bulk {
            up,
            down,
            tunnels,
            piece,
        } => {
            let share = |moves| u64::from(moves) * iterations * BULK / tunnels;
            let (upload, download) = (share(up), share(down));
            let (client_reads, target_reads) = (client.try_clone().unwrap(), target.try_clone().unwrap());
            vec![
                thread::spawn(move || send(&client, upload, piece)),
                thread::spawn(move || send(&target, download, piece)),
                thread::spawn(move || receive(&client_reads, download, piece)),
                thread::spawn(move || receive(&target_reads, upload, piece)),
            ]
        }
        Load::RoundTrips => {
            let rounds = iterations * ROUNDS;
            vec![
                thread::spawn(move || ask(&client, rounds)),
                thread::spawn(move || answer(&target)),
            ]
        }
    }
}

fn send(mut to: &TcpStream, bytes: u64, piece: usize) {
    let buffer = vec![1; piece];
    let mut left = bytes;
    while left > 0 {
        let now = usize::try_from(left).unwrap().min(piece);
        to.write_all(buffer.get(..now).unwrap()).unwrap();
        left -= now as u64;
    }
    to.shutdown(Shutdown::Write).unwrap();
}

fn receive(mut from: &TcpStream, bytes: u64, piece: usize) {
    let mut buffer = vec![0; piece];
    let mut received = 0;
    loop {
        match from.read(&mut buffer).unwrap() {
            0 => break,
            read => received += read as u64,
        }
    }
    assert_eq!(received, bytes);
}

fn ask(mut stream: &TcpStream, rounds: u64) {
    let mut message = [7; MESSAGE];
    for _ in 0..rounds {
        stream.write_all(&message).unwrap();
        stream.read_exact(&mut message).unwrap();
    }
    stream.shutdown(Shutdown::Write).unwrap();
}

fn answer(mut stream: &TcpStream) {
    let mut message = [0; MESSAGE];
    while stream.read_exact(&mut message).is_ok() {
        stream.write_all(&message).unwrap();
    }
}

/// Relays all tunnels to their ends in this thread, and says what processor time that took.
fn relay_all(engine: fn() -> Resources, ends: Vec<(TcpStream, TcpStream)>) -> Duration {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let resources = Arc::new(engine());
        let limit = Arc::new(RateLimit::new(Rate::UNLIMITED, Size::bytes(1 << 20).unwrap()));
        let start = used();
        let mut tunnels = JoinSet::new();
        for (downstream, upstream) in ends {
            let mut ends: Transports<tokio::net::TcpStream> = Transports {
                downstream: downstream.try_into().unwrap(),
                upstream: upstream.try_into().unwrap(),
                early: None,
            };
            let (resources, limit) = (Arc::clone(&resources), Arc::clone(&limit));
            tunnels.spawn(async move {
                let terms = RelayConfig {
                    limits: Both::from_fn(|_| (&*limit).into()),
                    meter: &Meter::new(Arc::new(Totals::default())),
                    resources: &resources,
                    options: &Options::default(),
                    on_close: None,
                    guard: None,
                    is_inspected: false,
                };
                relay(&mut ends, &terms, pin!(pending())).await
            });
        }
        tunnels.join_all().await;
        used() - start
    })
}

fn loads() -> Vec<(String, Load)> {
    let bulk = |up, down, tunnels, piece| Load::Bulk {
        up,
        down,
        tunnels,
        piece,
    };
    let mut loads = vec![("round_trips/64B".to_owned(), Load::RoundTrips)];
    for (name, piece) in [("4KiB", 4 << 10), ("32KiB", 32 << 10), ("256KiB", 256 << 10)] {
        loads.push((format!("upload/{name}"), bulk(true, false, 1, piece)));
        loads.push((format!("download/{name}"), bulk(false, true, 1, piece)));
        loads.push((format!("both/{name}"), bulk(true, true, 1, piece)));
    }
    loads.push(("download_of_8/32KiB".to_owned(), bulk(false, true, 8, 32 << 10)));
    loads
}

/// All figures of a load and an engine.
type Table = Mutex<BTreeMap<(String, &'static str), Vec<Figures>>>;

static TABLE: Table = Mutex::new(BTreeMap::new());

fn relays(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("relay");
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    for (name, load) in loads() {
        // Engine by engine within one load: what the machine does meanwhile hits all of them.
        for (label, engine) in ENGINES {
            group.throughput(match load {
                Load::Bulk { .. } => Throughput::Bytes(load.bytes()),
                Load::RoundTrips => Throughput::Elements(ROUNDS),
            });
            group.bench_function(format!("{name}/{label}"), |bencher| {
                bencher.iter_custom(|iterations| {
                    let figures = run(engine, load, iterations);
                    let mut table = TABLE.lock().unwrap();
                    table.entry((name.clone(), label)).or_default().push(figures);
                    figures.processor
                });
            });
        }
    }
    group.finish();
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prints the medians of all that ran.
fn report() {
    const GIB: f64 = (1_u64 << 30) as f64;
    let table = TABLE.lock().unwrap();
    if table.is_empty() {
        return;
    }
    println!("\n| load | engine | GiB/s | processor s/GiB | processor µs a round trip |\n|---|---|---|---|---|");
    for ((load, engine), figures) in &*table {
        let of = |figure: &dyn Fn(&Figures) -> f64| median(figures.iter().map(figure).collect());
        let rate = of(&|figures| figures.bytes as f64 / GIB / figures.wall.as_secs_f64());
        let cost = of(&|figures| figures.processor.as_secs_f64() / (figures.bytes as f64 / GIB));
        if load.starts_with("round_trips") {
            let micros = cost * 1e6 * 2.0 * MESSAGE as f64 / GIB;
            println!("| {load} | {engine} | | | {micros:.1} |");
        } else {
            println!("| {load} | {engine} | {rate:.2} | {cost:.3} | |");
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .with_measurement(ThreadTime)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1000));
    targets = relays
}

fn main() {
    benches();
    report();
    Criterion::default().configure_from_args().final_summary();
}
