//! Resumable tunnels: they end with either of their sides.

use std::future::pending;
use std::io;
use std::time::Duration;

use switchboard::tunnel::direction::Direction;
use switchboard::tunnel::drain::DrainController;
use switchboard::tunnel::outcome::Side;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::{eof, for_each_setup};
use crate::harness::loopback::{Rig, Wires};

/// A rig whose tunnels are resumable, and would have as long as the test for what is left of a half-closed one.
fn resumable(mut rig: Rig) -> Rig {
    let (_conductor, drain) = DrainController::new();
    let open = drain.opened();
    open.set_resumable();
    rig.resumable = Some(open);
    rig.options.half_closed = Duration::from_secs(3600);
    rig
}

#[tokio::test]
async fn a_resumable_tunnel_ends_with_either_of_its_sides() {
    for_each_setup(async |rig| {
        let rig = resumable(rig);
        for first in [Side::Client, Side::Target] {
            let (close, ()) = rig
                .carry(Wires::new().await, pending(), async |client, target| {
                    let (mut finishes, mut stays) = match first {
                        Side::Client => (client, target),
                        Side::Target | Side::Proxy => (target, client),
                    };
                    stays.write_all(b"before").await.unwrap();
                    finishes.write_all(b"the ending").await.unwrap();
                    finishes.shutdown().await.unwrap();
                    let (mut last, mut before) = (Vec::new(), Vec::new());
                    stays.read_to_end(&mut last).await.unwrap();
                    // The other side has not finished, and never will.
                    finishes.read_to_end(&mut before).await.unwrap();
                    assert_eq!((&*last, &*before), (&b"the ending"[..], &b"before"[..]));
                })
                .await;
            assert_eq!(close, eof(first));
        }
    })
    .await;
}

#[tokio::test]
async fn a_resumable_tunnel_whose_side_has_ended_waits_for_no_reader() {
    for_each_setup(async |rig| {
        let rig = resumable(rig);
        for (first, direction) in [(Side::Client, Direction::Upload), (Side::Target, Direction::Download)] {
            let wires = Wires::with(Vec::new(), Some(4_096)).await;
            let before = rig.meter.bytes(direction);
            let (close, ()) = rig
                .carry(wires, pending(), async |client, target| {
                    let (mut finishes, stays) = match first {
                        Side::Client => (client, target),
                        Side::Target | Side::Proxy => (target, client),
                    };
                    // So much that the relay waits for its reader, and so little that the end still reaches the relay.
                    let mut sent = before;
                    while rig.meter.bytes(direction) == sent {
                        finishes.write_all(&[7; 16 * 1024]).await.unwrap();
                        sent += 16 * 1024;
                        timeout(Duration::from_millis(100), rig.counted(direction, sent))
                            .await
                            .ok();
                    }
                    finishes.shutdown().await.unwrap();
                    let end = finishes.read(&mut [0]).await;
                    assert!(
                        end.as_ref().map_or_else(
                            |error| error.kind() == io::ErrorKind::ConnectionReset,
                            |&read| read == 0
                        ),
                        "{end:?}"
                    );
                    drop(stays);
                })
                .await;
            assert_eq!(close, eof(first));
        }
    })
    .await;
}

/// A receiver on a slow link goes on saying what it has received: what is on the way to it, perhaps the end of its session, is
/// left the time that this takes.
#[tokio::test]
async fn a_resumable_tunnel_whose_side_has_ended_goes_on_while_the_other_one_moves() {
    for_each_setup(async |rig| {
        let rig = resumable(rig);
        // Again if this task had no processor for so long that the tunnel could well be over.
        while !has_lived(&rig).await {}
    })
    .await;
}

/// Returns whether bytes moved for longer than a silent tunnel lives, with no gap over 1 s.
async fn has_lived(rig: &Rig) -> bool {
    let script = async |mut client: TcpStream, mut target: TcpStream| {
        target.shutdown().await.unwrap();
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        let (start, mut last) = (Instant::now(), Instant::now());
        while start.elapsed() < Duration::from_secs(4) {
            let is_moved = client.write_all(b"a").await.is_ok() && target.read(&mut [0]).await.ok() == Some(1);
            if last.elapsed() > Duration::from_secs(1) {
                return false;
            }
            assert!(is_moved, "ended after {:?}", start.elapsed());
            last = Instant::now();
            sleep(Duration::from_millis(20)).await;
        }
        true
    };
    rig.carry(Wires::new().await, pending(), script).await.1
}
