//! A tunnel keeps to its limits in real time, whatever moves its bytes.
//!
//! The allowance of a limit is computed from the clock at every read, so a busy machine cannot break that bound. That a
//! flow is not much slower than its limit is asserted by half: the exact figures are in `benches/throttle.rs`.

use std::future::pending;
use std::time::Duration;

use crate::harness::loopback::{Rig, SETUPS, Wires};
use switchboard::tunnel::direction::Direction;
use switchboard::tunnel::limits::bucket::{MAX_WAIT, RateLimit};
use switchboard::tunnel::limits::{Rate, Size};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

const BURST: u64 = 64 << 10;
/// Of a flow that takes little more than a second.
const TIMEOUT: Duration = Duration::from_secs(60);

fn set(limit: &RateLimit, rate: u64, burst: u64) {
    limit.set(Rate::per_second(rate).unwrap(), Size::bytes(burst).unwrap());
}

fn limit(rig: &Rig, direction: Direction) -> &RateLimit {
    match direction {
        Direction::Upload => &rig.upload,
        Direction::Download => &rig.download,
    }
}

/// All at once, so that a test takes no longer than its clock.
async fn for_each_setup(test: impl AsyncFn(Rig)) {
    let [one, two, three, four] = SETUPS.map(Rig::new);
    tokio::join!(test(one), test(two), test(three), test(four));
}

/// The sender and the receiver of that direction.
fn sender_and_receiver(direction: Direction, client: TcpStream, target: TcpStream) -> (TcpStream, TcpStream) {
    match direction {
        Direction::Upload => (client, target),
        Direction::Download => (target, client),
    }
}

/// Sends until the other end is closed.
async fn flood(to: &mut TcpStream) {
    let bytes = vec![1; 256 << 10];
    while to.write_all(&bytes).await.is_ok() {}
}

/// The number of bytes received until `enough`; never more than `allowed` at the time.
async fn receive(from: &mut TcpStream, enough: impl Fn(u64) -> bool, allowed: impl Fn() -> f64) -> u64 {
    let mut buffer = vec![0; 256 << 10];
    let mut received = 0;
    while !enough(received) {
        let count = from.read(&mut buffer).await.unwrap() as u64;
        assert!(count > 0, "the flow has ended after {received}");
        received += count;
        let allowed = allowed();
        assert!(received as f64 <= allowed, "{received} received, {allowed} allowed");
    }
    received
}

/// The allowance of a limit from now on, as time goes by.
fn allowance(rate: u64, burst: u64) -> impl Fn() -> f64 {
    let start = Instant::now();
    move || burst as f64 + rate as f64 * start.elapsed().as_secs_f64() * 1.02
}

async fn keeps_to(rate: u64) {
    for_each_setup(async |rig| {
        for direction in Direction::ALL {
            set(limit(&rig, direction), rate, BURST);
            let allowed = allowance(rate, BURST);
            let start = Instant::now();
            let script = async |client, target| {
                let (mut from, mut to) = sender_and_receiver(direction, client, target);
                let period = Duration::from_millis(1200);
                tokio::select! {
                    () = flood(&mut from) => unreachable!("it never ends"),
                    received = receive(&mut to, |received| received > BURST && start.elapsed() >= period, allowed) => received,
                }
            };
            // How near it comes to its rate is the machine's affair, and the bench's; that it moves on behind the burst is not.
            let carried = rig.carry(Wires::new().await, pending(), script);
            let (_, received) = timeout(TIMEOUT, carried).await.expect("it moves on");
            assert!(received > BURST, "{received} {:?}", rig.setup);
            assert!(rig.totals.throttled(direction) > Duration::ZERO);
        }
    })
    .await;
}

#[tokio::test]
async fn a_slow_rate_is_kept_by_every_setup_either_way() {
    keeps_to(64 << 10).await;
}

#[tokio::test]
async fn a_usual_rate_is_kept_by_every_setup_either_way() {
    keeps_to(1 << 20).await;
}

#[tokio::test]
async fn a_fast_rate_is_kept_by_every_setup_either_way() {
    keeps_to(50 << 20).await;
}

#[tokio::test]
async fn the_burst_comes_at_once_at_the_start_and_after_a_pause() {
    const RATE: u64 = 64 << 10;
    const BURST: u64 = 512 << 10;
    // The time that the burst takes at the rate alone, and in which it is earned again.
    let earned = Duration::from_secs(BURST / RATE);
    for_each_setup(async |rig| {
        set(&rig.download, RATE, BURST);
        let script = async |mut client: TcpStream, mut target: TcpStream| {
            let bytes = vec![1; usize::try_from(BURST).unwrap()];
            for is_last in [false, true] {
                let allowed = allowance(RATE, BURST);
                let both = async {
                    let (written, received) = tokio::join!(
                        target.write_all(&bytes),
                        receive(&mut client, |received| received == BURST, allowed)
                    );
                    written.unwrap();
                    received
                };
                timeout(earned / 2, both).await.expect("a burst does not wait");
                if !is_last {
                    // The pause is what is tested.
                    sleep(earned + Duration::from_millis(100)).await;
                }
            }
        };
        rig.carry(Wires::new().await, pending(), script).await;
        assert_eq!(rig.totals.throttled(Direction::Upload), Duration::ZERO);
    })
    .await;
}

#[tokio::test]
async fn a_changed_limit_is_followed_while_the_tunnel_runs() {
    const SLOW: u64 = 64 << 10;
    const FAST: u64 = 8 << 20;
    for_each_setup(async |rig| {
        set(&rig.upload, SLOW, BURST);
        let script = async |mut client: TcpStream, mut target: TcpStream| {
            let changes = async {
                receive(&mut target, |received| received > BURST, allowance(SLOW, BURST)).await;
                for faster in [FAST, u64::MAX] {
                    set(&rig.upload, faster, BURST);
                    let much = receive(&mut target, |received| received > FAST / 2, || f64::INFINITY);
                    // It would take a minute at the old rate.
                    timeout(Duration::from_secs(50), much).await.expect("faster at once");
                    set(&rig.upload, SLOW, BURST);
                    // It may sleep, or read, under the old rate for once more; what the kernel holds is counted
                    // already.
                    let in_flight = FAST as f64 * MAX_WAIT.as_secs_f64() + f64::from(1 << 20);
                    let before = rig.meter.bytes(Direction::Upload);
                    let (start, allowed) = (Instant::now(), allowance(SLOW, BURST));
                    let moved = || rig.meter.bytes(Direction::Upload) - before;
                    while start.elapsed() < Duration::from_secs(1) {
                        let (moved, allowed) = (moved() as f64, allowed() + in_flight);
                        assert!(moved <= allowed, "{moved} moved, {allowed} allowed {:?}", rig.setup);
                        receive(&mut target, |received| received > 0, || f64::INFINITY).await;
                    }
                }
            };
            tokio::select! {
                () = flood(&mut client) => unreachable!("it never ends"),
                () = changes => {}
            }
        };
        rig.carry(Wires::new().await, pending(), script).await;
    })
    .await;
}

#[tokio::test]
async fn the_limit_of_one_direction_does_not_apply_to_the_other() {
    const RATE: u64 = 64 << 10;
    const FREE: u64 = 16 << 20;
    for_each_setup(async |rig| {
        for limited in Direction::ALL {
            let free = match limited {
                Direction::Upload => Direction::Download,
                Direction::Download => Direction::Upload,
            };
            set(limit(&rig, limited), RATE, BURST);
            set(limit(&rig, free), u64::MAX, BURST);
            let before = (rig.meter.bytes(limited), rig.totals.throttled(free));
            let allowed = allowance(RATE, BURST);
            let script = async |client: TcpStream, target: TcpStream| {
                let (mut slow, mut fast) = sender_and_receiver(limited, client, target);
                let ((mut slow_reads, mut slow_writes), (mut fast_reads, mut fast_writes)) =
                    (slow.split(), fast.split());
                let bytes = vec![1; 256 << 10];
                let send = async { while slow_writes.write_all(&bytes).await.is_ok() {} };
                let send_free = async { while fast_writes.write_all(&bytes).await.is_ok() {} };
                let (mut buffer, mut sink) = (vec![0; 256 << 10], vec![0; 256 << 10]);
                let read = async { while fast_reads.read(&mut sink).await.is_ok() {} };
                let read_free = async {
                    let mut received = 0;
                    while received < FREE {
                        received += slow_reads.read(&mut buffer).await.unwrap() as u64;
                    }
                };
                tokio::select! {
                    () = send => unreachable!("it never ends"),
                    () = send_free => unreachable!("it never ends"),
                    () = read => unreachable!("it never ends"),
                    // It would take four minutes at the other's rate: the deadline of the rig is half of that.
                    () = read_free => {}
                }
            };
            rig.carry(Wires::new().await, pending(), script).await;
            assert!(
                (rig.meter.bytes(limited) - before.0) as f64 <= allowed(),
                "{:?}",
                rig.setup
            );
            assert_eq!(rig.totals.throttled(free), before.1);
        }
    })
    .await;
}
