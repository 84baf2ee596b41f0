//! The cost of a limit at every read, and how exactly it is kept.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failed assumption fails the benchmark, and its report is its output"
)]

#[path = "support/thread_time.rs"]
mod thread_time;

use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group};
use switchboard::tunnel::direction::{Both, Direction};
use switchboard::tunnel::limits::bucket::RateLimit;
use switchboard::tunnel::limits::throttle::Throttle;
use switchboard::tunnel::limits::{Rate, Size};
use switchboard::tunnel::outcome::Close;
use switchboard::tunnel::relay::meter::{Meter, Totals};
use switchboard::tunnel::relay::{Options, RelayConfig, Resources, Transports, relay};
use thread_time::{ThreadTime, used};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep_until};

const RATES: [&str; 5] = ["64KiB/s", "1MiB/s", "10MiB/s", "100MiB/s", "1GiB/s"];
const BURST: &str = "1MiB";
const MAX_WRITE: usize = 256 * 1024;
/// Seconds that are measured, after the one in which the burst goes.
const SECONDS: u32 = 5;

fn limit(rate: &str) -> RateLimit {
    RateLimit::new(rate.parse().unwrap(), BURST.parse().unwrap())
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// The cost of one read's admission and payment, when it has not to wait.
fn cost(criterion: &mut Criterion<ThreadTime>) {
    let mut group = criterion.benchmark_group("throttle");
    let fastest = RateLimit::new(Rate::per_second(1 << 50).unwrap(), Size::bytes(1 << 50).unwrap());
    for (name, limit) in [("unlimited", limit("unlimited")), ("limited", fastest)] {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| {
                runtime().block_on(async {
                    let mut throttle = Throttle::new(&limit);
                    let start = used();
                    for _ in 0..iterations {
                        let admitted = throttle.admit(MAX_WRITE, |_| ()).await;
                        throttle.spend(admitted);
                    }
                    used() - start
                })
            });
        });
    }
    group.finish();
}

/// How far off the rate a count of bytes at the end of each second is, in percent.
#[derive(Debug)]
struct Accuracy {
    mean: f64,
    worst_second: f64,
}

impl Accuracy {
    /// `marks` are the time and the bytes so far, once a second.
    fn of(marks: &[(Instant, u64)], rate: Rate) -> Self {
        let off = |from: &(Instant, u64), to: &(Instant, u64)| {
            let expected = rate.get() as f64 * (to.0 - from.0).as_secs_f64();
            ((to.1 - from.1) as f64 / expected - 1.0) * 100.0
        };
        let seconds = marks.iter().zip(marks.iter().skip(1)).map(|(from, to)| off(from, to));
        let (first, last) = (marks.first().unwrap(), marks.last().unwrap());
        Self {
            mean: off(first, last),
            worst_second: seconds.max_by(|one, two| one.abs().total_cmp(&two.abs())).unwrap(),
        }
    }
}

/// Takes a mark after the second of the burst and after each that is measured.
async fn marks(count: impl Fn() -> u64) -> Vec<(Instant, u64)> {
    let start = Instant::now();
    let mut marks = Vec::new();
    for second in 1..=SECONDS + 1 {
        sleep_until(start + Duration::from_secs(second.into())).await;
        marks.push((Instant::now(), count()));
    }
    marks
}

/// As fast as the limit lets it, with no I/O at all.
async fn alone(rate: &str) -> Accuracy {
    let limit = limit(rate);
    let meter = Meter::new(Arc::new(Totals::default()));
    let flow = async {
        let mut throttle = Throttle::new(&limit);
        loop {
            let admitted = throttle.admit(MAX_WRITE, |_| ()).await;
            throttle.spend(admitted);
            meter.record(Direction::Download, admitted);
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = flow => unreachable!("it never ends"),
        marks = marks(|| meter.bytes(Direction::Download)) => Accuracy::of(&marks, limit.rate()),
    }
}

/// Through a relay whose peers send and receive in a thread of their own.
async fn relayed(rate: &str) -> Accuracy {
    let (limit, unlimited) = (limit(rate), limit("unlimited"));
    let meter = Meter::new(Arc::new(Totals::default()));
    let (resources, options) = (Resources::new(2), Options::default());
    let terms = RelayConfig {
        limits: Both {
            upload: (&unlimited).into(),
            download: (&limit).into(),
        },
        meter: &meter,
        resources: &resources,
        options: &options,
        on_close: None,
        guard: None,
        is_inspected: false,
    };
    let ((client, downstream), (target, upstream)) = (pair().await, pair().await);
    let mut ends = Transports {
        downstream,
        upstream,
        early: None,
    };
    let peers = std::thread::spawn(move || runtime().block_on(flood(client, target)));
    let accuracy = {
        let ending = std::pin::pin!(std::future::pending::<Close>());
        tokio::select! {
            close = relay(&mut ends, &terms, ending) => unreachable!("{close:?}"),
            marks = marks(|| meter.bytes(Direction::Download)) => Accuracy::of(&marks, limit.rate()),
        }
    };
    drop(ends);
    peers.join().unwrap();
    accuracy
}

async fn pair() -> (std::net::TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (peer, ours) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (peer.unwrap().into_std().unwrap(), ours.unwrap().0)
}

/// Sends and receives until the connection ends.
async fn flood(client: std::net::TcpStream, target: std::net::TcpStream) {
    let mut client = TcpStream::from_std(client).unwrap();
    let mut target = TcpStream::from_std(target).unwrap();
    let (bytes, mut buffer) = (vec![1; MAX_WRITE], vec![0; MAX_WRITE]);
    tokio::join!(async { while target.write_all(&bytes).await.is_ok() {} }, async {
        while client.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
    },);
}

/// Prints how far off each rate is: alone for all at once, through the relay one after the other.
fn report() {
    println!("\naccuracy over {SECONDS} s after the first, in % off the setting (burst {BURST})");
    println!("| rate | alone: mean | worst second | through the relay: mean | worst second |");
    println!("|---|---|---|---|---|");
    let threads: Vec<_> = RATES
        .iter()
        .map(|rate| std::thread::spawn(|| runtime().block_on(alone(rate))))
        .collect();
    for (rate, thread) in RATES.iter().zip(threads) {
        let alone = thread.join().unwrap();
        let relayed = runtime().block_on(relayed(rate));
        println!(
            "| {rate} | {:+.2} | {:+.2} | {:+.2} | {:+.2} |",
            alone.mean, alone.worst_second, relayed.mean, relayed.worst_second
        );
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .with_measurement(ThreadTime)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(1))
        .sample_size(30);
    targets = cost
}

fn main() {
    benches();
    // `cargo test --benches` only asks whether it runs.
    if std::env::args().any(|argument| argument == "--bench") {
        report();
    }
    Criterion::default().configure_from_args().final_summary();
}
