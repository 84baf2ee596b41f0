//! Tunnels that the proxy ends: by a timeout, or since it is told to.

use std::future::pending;
use std::io;
use std::time::Duration;

use switchboard::tunnel::direction::Direction;
use switchboard::tunnel::outcome::{Close, CloseReason, Side};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::for_each_setup;
use crate::harness::loopback::Wires;

#[tokio::test]
async fn an_idle_tunnel_ends_at_its_timeout() {
    const IDLE: Duration = Duration::from_secs(1);
    for_each_setup(async |mut rig| {
        rig.options.idle = Some(IDLE);
        let start = Instant::now();
        let (close, ()) = rig
            .carry(Wires::new().await, pending(), async |mut client, mut target| {
                client.write_all(b"x").await.unwrap();
                target.read_exact(&mut [0; 1]).await.unwrap();
                // Both are told by an end of stream.
                expect_reset(&mut client).await;
                expect_reset(&mut target).await;
            })
            .await;
        assert_eq!((close.by, close.reason), (Side::Proxy, CloseReason::Idle));
        assert!(start.elapsed() >= IDLE);
    })
    .await;
}

/// The end of a tunnel that the proxy ends: neither stream is whole.
async fn expect_reset(end: &mut TcpStream) {
    let error = end.read(&mut [0; 1]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
}

#[tokio::test]
async fn a_half_closed_tunnel_has_its_own_timeout() {
    for_each_setup(async |mut rig| {
        rig.options.half_closed = Duration::from_millis(150);
        for first in [Side::Client, Side::Target] {
            let start = Instant::now();
            let (close, ()) = rig
                .carry(Wires::new().await, pending(), async |client, target| {
                    let (mut finishes, mut stays) = match first {
                        Side::Client => (client, target),
                        Side::Target | Side::Proxy => (target, client),
                    };
                    finishes.shutdown().await.unwrap();
                    assert_eq!(stays.read(&mut [0; 1]).await.unwrap(), 0);
                    expect_reset(&mut finishes).await;
                })
                .await;
            assert_eq!((close.by, close.reason), (Side::Proxy, CloseReason::Idle));
            assert!(start.elapsed() >= rig.options.half_closed);
        }
    })
    .await;
}

#[tokio::test]
async fn when_the_proxy_ends_a_tunnel_all_that_was_read_is_written() {
    let drained = Close {
        by: Side::Proxy,
        reason: CloseReason::Drained,
    };
    for_each_setup(async |rig| {
        let (end, told) = oneshot::channel();
        let ending = async { told.await.unwrap() };
        let wires = Wires::with(Vec::new(), Some(65_536)).await;
        let (close, received) = rig
            .carry(wires, ending, async |mut client, mut target| {
                let bytes = vec![1; 64 << 20];
                tokio::select! {
                    written = client.write_all(&bytes) => unreachable!("{written:?}"),
                    () = rig.stalled(Direction::Upload) => {}
                }
                end.send(drained).unwrap();
                let mut received = Vec::new();
                // A reset, as it is not all that was sent, and behind all that was read.
                let error = target.read_to_end(&mut received).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
                received
            })
            .await;
        assert_eq!(close, drained);
        assert_eq!(
            received.len() as u64,
            rig.meter.bytes(Direction::Upload),
            "{:?}",
            rig.setup
        );
        assert_eq!(rig.resources.pipes_in_use(), 0);
    })
    .await;
}
