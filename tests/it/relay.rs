//! Drives the relay over real connections: equal bytes, exact counts, and every ending passed on as what it was.

mod properties;
mod resumable;
mod timeouts;

use std::cell::Cell;
use std::future::pending;
use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use crate::harness::loopback::{Part, Rig, SETUPS, Splices, Wires, play, reset};
use rustix::net::{SendFlags, send};
use socket2::Socket;
use switchboard::net::sock_diag::TcpInfo;
use switchboard::tunnel::direction::Direction;
use switchboard::tunnel::outcome::{Close, CloseReason, Side};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(future)
}

/// All at once: most tests wait for clocks more than for the processor.
async fn for_each_setup(test: impl AsyncFn(Rig)) {
    let [one, two, three, four] = SETUPS.map(Rig::new);
    tokio::join!(test(one), test(two), test(three), test(four));
}

fn eof(by: Side) -> Close {
    Close {
        by,
        reason: CloseReason::Eof,
    }
}

fn reset_by(by: Side) -> Close {
    Close {
        by,
        reason: CloseReason::Reset,
    }
}

#[tokio::test]
async fn after_one_side_has_finished_the_other_can_still_send() {
    for_each_setup(async |rig| {
        for first in [Side::Client, Side::Target] {
            let (close, ()) = rig
                .carry(Wires::new().await, pending(), async |client, target| {
                    let (mut finishes, mut goes_on) = match first {
                        Side::Client => (client, target),
                        Side::Target | Side::Proxy => (target, client),
                    };
                    finishes.write_all(b"request").await.unwrap();
                    finishes.shutdown().await.unwrap();
                    let mut request = Vec::new();
                    goes_on.read_to_end(&mut request).await.unwrap();
                    assert_eq!(request, b"request");
                    let answer = vec![7; 300_000];
                    let mut received = Vec::new();
                    let (written, read) = tokio::join!(
                        async {
                            goes_on.write_all(&answer).await.unwrap();
                            goes_on.shutdown().await
                        },
                        finishes.read_to_end(&mut received)
                    );
                    assert!(written.is_ok() && read.is_ok());
                    assert!(received == answer);
                })
                .await;
            assert_eq!(close, eof(first));
        }
    })
    .await;
}

#[tokio::test]
async fn a_reset_of_an_idle_tunnel_is_passed_on_either_way() {
    for_each_setup(async |rig| {
        for side in [Side::Client, Side::Target] {
            let (close, end) = rig
                .carry(Wires::new().await, pending(), async |client, target| {
                    let (breaks, mut stays) = match side {
                        Side::Client => (client, target),
                        Side::Target | Side::Proxy => (target, client),
                    };
                    reset(breaks);
                    stays.read(&mut [0; 1]).await
                })
                .await;
            assert_eq!(close, reset_by(side));
            assert_eq!(end.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        }
    })
    .await;
}

/// Tells whether bytes of it wait for the receiver: both sockets are looked at from outside.
#[tokio::test]
async fn the_kernel_waits_for_a_receiver_as_long_as_its_window_is_noted_to_be_closed() {
    for_each_setup(async |rig| {
        for (direction, is_full) in [(Direction::Download, true), (Direction::Upload, false)] {
            let wires = Wires::with(Vec::new(), Some(32_768)).await;
            let writer = match direction {
                Direction::Upload => &wires.ends.upstream,
                Direction::Download => &wires.ends.downstream,
            };
            let writer = Socket::from(writer.as_fd().try_clone_to_owned().unwrap());
            let usual = Some(Duration::from_secs(120));
            writer.set_tcp_user_timeout(usual).unwrap();
            let script = async |client: TcpStream, mut target: TcpStream| {
                let sending = async {
                    if is_full {
                        loop {
                            target.write_all(&[7; 65_536]).await.unwrap();
                        }
                    }
                    pending().await
                };
                let watching = async {
                    if is_full {
                        rig.stalled(direction).await;
                    }
                    for (is_closed, expected) in [(true, None), (false, usual), (true, None), (false, usual)] {
                        let receiver = TcpInfo {
                            send_queue: u32::from(is_closed),
                            not_sent: 1,
                            ..TcpInfo::default()
                        };
                        let none = TcpInfo::default();
                        let is_news = match direction {
                            Direction::Upload => rig.meter.note_windows(&none, &receiver),
                            Direction::Download => rig.meter.note_windows(&receiver, &none),
                        };
                        assert!(is_news);
                        while writer.tcp_user_timeout().unwrap() != expected {
                            tokio::task::yield_now().await;
                        }
                    }
                };
                tokio::select! {
                    () = sending => {}
                    () = watching => {}
                }
                reset(client);
            };
            let (close, ()) = rig.carry(wires, pending(), script).await;
            assert_eq!(close, reset_by(Side::Client));
        }
    })
    .await;
}

/// A server that closes as soon as it has sent all gets a late message of its client, and its kernel answers with a
/// reset. The proxy has the whole download by then, and its end: a reset of the client would throw the tail away.
#[tokio::test]
async fn a_reset_after_the_end_loses_no_byte() {
    const SENT: usize = 200_000;
    for_each_setup(async |rig| {
        for side in [Side::Client, Side::Target] {
            let direction = match side {
                Side::Client => Direction::Upload,
                Side::Target | Side::Proxy => Direction::Download,
            };
            let before = rig.meter.bytes(direction);
            let (resets, told) = oneshot::channel();
            let script = async |client, target| {
                let (mut finishes, mut stays): (TcpStream, TcpStream) = match side {
                    Side::Client => (client, target),
                    Side::Target | Side::Proxy => (target, client),
                };
                finishes.write_all(&vec![7; SENT]).await.unwrap();
                finishes.shutdown().await.unwrap();
                rig.counted(direction, before + SENT as u64).await;
                // The end itself is seen once the bytes before it are.
                let mut first = [0; 1];
                stays.read_exact(&mut first).await.unwrap();
                stays.write_all(b"late").await.unwrap();
                finishes.read_exact(&mut [0; 4]).await.unwrap();
                reset(finishes);
                resets.send(()).unwrap();
                stays
            };
            let wires = Wires::with(Vec::new(), Some(32_768)).await;
            let (close, mut stays) = rig.carry(wires, pending(), script).await;
            told.await.unwrap();
            assert_eq!(close, reset_by(side));
            let mut rest = Vec::new();
            let end = stays.read_to_end(&mut rest).await;
            assert_eq!(rest.len(), SENT - 1, "{side:?} {:?} {end:?}", rig.setup);
        }
    })
    .await;
}

#[tokio::test]
async fn a_stalled_reader_hides_no_reset_of_the_other_side() {
    for_each_setup(async |rig| {
        for side in [Side::Client, Side::Target] {
            let direction = match side {
                Side::Client => Direction::Upload,
                Side::Target | Side::Proxy => Direction::Download,
            };
            let (close, end) = rig
                .carry(
                    Wires::with(Vec::new(), Some(32_768)).await,
                    pending(),
                    async |client, target| {
                        let (mut breaks, mut stalls) = match side {
                            Side::Client => (client, target),
                            Side::Target | Side::Proxy => (target, client),
                        };
                        let bytes = vec![1; 64 << 20];
                        tokio::select! {
                            written = breaks.write_all(&bytes) => unreachable!("{written:?}"),
                            () = rig.stalled(direction) => {}
                        }
                        reset(breaks);
                        // It reads on only when the relay has freed what it held.
                        while rig.resources.pipes_in_use() > 0 {
                            tokio::task::yield_now().await;
                        }
                        let mut rest = Vec::new();
                        stalls.read_to_end(&mut rest).await
                    },
                )
                .await;
            assert_eq!(close, reset_by(side));
            assert_eq!(end.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        }
    })
    .await;
}

#[tokio::test]
async fn an_idle_tunnel_holds_no_pipe_however_hot_it_was() {
    for_each_setup(async |rig| {
        let (_, ()) = rig
            .carry(Wires::new().await, pending(), async |mut client, mut target| {
                let mut bulk = vec![1; 4 << 20];
                let sent = bulk.clone();
                let (written, read) = tokio::join!(client.write_all(&sent), target.read_exact(&mut bulk));
                assert!(written.is_ok() && read.is_ok());
                for _ in 0..3 {
                    rig.counted(Direction::Upload, 4 << 20).await;
                    assert_eq!(rig.resources.pipes_in_use(), 0);
                    target.write_all(b"pong").await.unwrap();
                    client.read_exact(&mut [0; 4]).await.unwrap();
                }
            })
            .await;
    })
    .await;
}

#[tokio::test]
async fn early_bytes_come_first_even_from_a_client_that_has_finished() {
    for_each_setup(async |rig| {
        let wires = Wires::with(b"early ".to_vec(), None).await;
        let (close, ()) = rig
            .carry(wires, pending(), async |mut client, mut target| {
                client.write_all(b"late").await.unwrap();
                client.shutdown().await.unwrap();
                let mut received = Vec::new();
                target.read_to_end(&mut received).await.unwrap();
                assert_eq!(received, b"early late");
                target.shutdown().await.unwrap();
            })
            .await;
        assert_eq!(close, eof(Side::Client));
        assert_eq!(rig.meter.bytes(Direction::Upload), 10);
    })
    .await;
}

/// splice(2) stops in front of TCP urgent data for ever: a client could make a tunnel spin, or lose what stands behind.
#[tokio::test]
async fn urgent_data_loses_no_byte_behind_it() {
    for_each_setup(async |rig| {
        let (close, received) = rig
            .carry(Wires::new().await, pending(), async |mut client, mut target| {
                let bulk = vec![1; 1 << 20];
                let mut received = vec![0; 1 << 20];
                let (written, read) = tokio::join!(client.write_all(&bulk), target.read_exact(&mut received));
                assert!(written.is_ok() && read.is_ok());
                send(&client, b"!", SendFlags::OOB).unwrap();
                client.write_all(b"behind").await.unwrap();
                client.shutdown().await.unwrap();
                received.clear();
                let end = timeout(Duration::from_secs(60), target.read_to_end(&mut received)).await;
                end.expect("it does not spin").unwrap();
                target.shutdown().await.unwrap();
                received
            })
            .await;
        assert_eq!(close, eof(Side::Client));
        // As recv(2) has it, the urgent byte is not a part of the stream.
        assert_eq!(received, b"behind");
    })
    .await;
}

#[test]
fn tunnels_of_several_threads_share_a_pool_that_is_too_small_for_them() {
    const BYTES: usize = 2_000_000;
    let rig = Rig::new((Splices::All, 3));
    let tunnel = async |seed| {
        let part = Part {
            bytes: BYTES,
            seed,
            writes: vec![70_000],
            reads: vec![30_000],
            finishes_last: false,
        };
        let script = async |mut client, mut target| {
            let (in_client, in_target) = (Cell::new(0), Cell::new(0));
            tokio::join!(
                play(&mut client, &part, &in_client),
                play(&mut target, &part, &in_target),
            )
        };
        let (close, (at_client, at_target)) = rig.carry(Wires::new().await, pending(), script).await;
        assert_eq!(close.reason, CloseReason::Eof);
        assert!(at_client.received == part.stream() && at_target.received == part.stream());
    };
    std::thread::scope(|threads| {
        for seed in 0..3 {
            let tunnel = &tunnel;
            threads.spawn(move || {
                block_on(async { tokio::join!(tunnel(seed), tunnel(seed + 3), tunnel(seed + 6), tunnel(seed + 9)) });
            });
        }
    });
    assert_eq!(rig.resources.pipes_in_use(), 0);
    for direction in Direction::ALL {
        assert_eq!(rig.meter.bytes(direction), 12 * BYTES as u64);
    }
}
