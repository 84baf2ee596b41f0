//! However its relays end, a process is left with the descriptors it had. Alone in its process, as it counts them all.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed assumption fails the test"
)]
#![expect(clippy::indexing_slicing, reason = "shared with tests that cut streams")]
#![expect(dead_code, reason = "shared with tests that need more of it")]
#![expect(clippy::large_futures, reason = "scripts live as long as their test")]

#[path = "it/harness/loopback.rs"]
mod loopback;

use std::fs::read_dir;
use std::future::{pending, ready};

use loopback::{Rig, SETUPS, Wires, reset};
use switchboard::tunnel::direction::Direction;
use switchboard::tunnel::outcome::{Close, CloseReason, Side};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[test]
fn no_descriptor_is_left_behind_however_relays_end() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    // Descriptors that a runtime and its first sockets open once are no leak.
    runtime.block_on(end_in_every_way());
    let before = descriptors();
    for _ in 0..2 {
        runtime.block_on(end_in_every_way());
    }
    assert_eq!(descriptors(), before);
}

fn descriptors() -> usize {
    read_dir("/proc/self/fd").unwrap().count()
}

async fn end_in_every_way() {
    for setup in SETUPS {
        let rig = Rig::new(setup);
        finished(&rig).await;
        broken_with_bytes_in_flight(&rig).await;
        dropped_with_bytes_in_flight(&rig).await;
        ended_at_once(&rig).await;
        assert_eq!(rig.resources.pipes_in_use(), 0);
    }
}

async fn finished(rig: &Rig) {
    let script = async |mut client: TcpStream, mut target: TcpStream| {
        let mut bytes = vec![1; 1 << 20];
        let sent = bytes.clone();
        let (written, read) = tokio::join!(client.write_all(&sent), target.read_exact(&mut bytes));
        assert!(written.is_ok() && read.is_ok());
    };
    let (close, ()) = rig.carry(Wires::new().await, pending(), script).await;
    assert_eq!(close.reason, CloseReason::Eof);
}

async fn broken_with_bytes_in_flight(rig: &Rig) {
    let script = async |mut client: TcpStream, target| {
        let bytes = vec![1; 64 << 20];
        tokio::select! {
            written = client.write_all(&bytes) => unreachable!("{written:?}"),
            () = rig.stalled(Direction::Upload) => {}
        }
        reset(client);
        target
    };
    let wires = Wires::with(Vec::new(), Some(65_536)).await;
    let (close, _target) = rig.carry(wires, pending(), script).await;
    assert_eq!((close.by, close.reason), (Side::Client, CloseReason::Reset));
}

async fn dropped_with_bytes_in_flight(rig: &Rig) {
    let stalls = async {
        let script = async |mut client: TcpStream, target: TcpStream| {
            client.write_all(&vec![1; 64 << 20]).await.unwrap();
            drop(target);
        };
        let wires = Wires::with(Vec::new(), Some(65_536)).await;
        rig.carry(wires, pending(), script).await
    };
    tokio::select! {
        over = stalls => unreachable!("{over:?}"),
        () = rig.stalled(Direction::Upload) => {}
    }
}

async fn ended_at_once(rig: &Rig) {
    let revoked = Close {
        by: Side::Proxy,
        reason: CloseReason::TargetRemoved,
    };
    let script = async |client, target| drop((client, target));
    let (close, ()) = rig.carry(Wires::new().await, ready(revoked), script).await;
    assert!(
        [CloseReason::TargetRemoved, CloseReason::Eof].contains(&close.reason),
        "{close:?}"
    );
}
