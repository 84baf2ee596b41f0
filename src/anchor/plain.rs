//! Relays bytes between a plain client and the SSH server, unchanged.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use super::link::Link;
use super::record::SessionRecord;
use super::shared::Shared;
use crate::base::boxed::boxed;
use crate::net::sock_diag::{SockDiag, SocketAddrs};
use crate::net::transport::Transport;
use crate::tunnel::direction::Both;
use crate::tunnel::limits::TunnelLimits;
use crate::tunnel::limits::bucket::RateLimit;
use crate::tunnel::limits::slots::Slot;
use crate::tunnel::outcome::{Close, CloseReason, Side};
use crate::tunnel::relay::meter::{Meter, WINDOW_INTERVAL};
use crate::tunnel::relay::{self, RelayConfig, Transports, relay};

/// A plain client whose target is connected.
#[derive(Debug)]
pub(super) struct PlainConnection {
    /// The client's connection.
    pub(super) client: Link,
    /// The target's connection.
    pub(super) target: TcpStream,
    /// The bytes that were read from the client before the relay.
    pub(super) early: Vec<u8>,
    /// The address of the client.
    pub(super) peer: SocketAddr,
    /// The address of the target.
    pub(super) address: SocketAddr,
    /// When the client's connection was accepted.
    pub(super) started: Instant,
    /// Its slot among the plain connections.
    pub(super) slot: Slot,
}

impl PlainConnection {
    /// Relays bytes until the connection closes, then writes its access line.
    pub(super) async fn relay(self, shared: &Shared) {
        let addresses = [self.peer, self.address];
        let record = SessionRecord::begin("plain", shared.next_number(), addresses, self.started);
        let target_addrs = socket_addrs(&self.target);
        match self.client {
            Link::Socket(socket) => {
                let socket_addrs = [socket_addrs(&socket), target_addrs];
                boxed(pass_on(
                    Transports::new(socket, self.target, self.early),
                    socket_addrs,
                    record,
                    shared,
                ))
                .await;
            }
            Link::Stream(stream) => {
                let transports = Transports::new(*stream, self.target, self.early);
                boxed(pass_on(transports, [None, target_addrs], record, shared)).await;
            }
        }
        drop(self.slot);
    }
}

/// Relays bytes until the end, and samples the windows of the sockets `socket_addrs`.
async fn pass_on<D: Transport>(
    mut transports: Transports<D>,
    socket_addrs: [Option<SocketAddrs>; 2],
    record: SessionRecord,
    shared: &Shared,
) {
    let limits = TunnelLimits::default();
    let unlimited = RateLimit::new(limits.upload, limits.burst);
    let meter = Meter::new(Arc::clone(&shared.plain_bytes));
    // A half-closed connection ends after 5 min of silence: a peer must not keep it forever once sshd has forgotten it.
    let options = relay::Options::default();
    let config = RelayConfig {
        limits: Both::from_fn(|_| (&unlimited).into()),
        meter: &meter,
        resources: &shared.resources,
        options: &options,
        on_close: None,
        guard: None,
        is_inspected: false,
    };
    let stopping = pin!(async {
        tokio::select! {
            () = shared.stopping.cancelled() => {}
            () = watch_windows(&meter, socket_addrs) => {}
        }
        Close {
            by: Side::Proxy,
            reason: CloseReason::Drained,
        }
    });
    let close = relay(&mut transports, &config, stopping).await;
    drop(transports);
    record.close(
        close.reason.label(),
        Both::from_fn(|direction| meter.bytes(direction)),
        Instant::now(),
        &shared.lines,
    );
}

/// Returns the addresses of a connection; `None` if it is disconnected.
fn socket_addrs(stream: &TcpStream) -> Option<SocketAddrs> {
    let (local, peer) = (stream.local_addr().ok()?, stream.peer_addr().ok()?);
    Some(SocketAddrs { local, peer })
}

/// Samples the windows of the client and of the target; never returns.
async fn watch_windows(meter: &Meter, socket_addrs: [Option<SocketAddrs>; 2]) {
    loop {
        sleep(WINDOW_INTERVAL).await;
        let [client, target] = SockDiag::default()
            .look_up_all(socket_addrs)
            .map(Result::unwrap_or_default);
        meter.note_windows(&client, &target);
        // The relay reads the sample when this task is polled again.
        yield_now().await;
    }
}
