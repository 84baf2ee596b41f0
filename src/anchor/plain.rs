//! A plain client: its bytes are passed on to the SSH server, and the server's to it, as they are.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use super::record::SessionRecord;
use super::shared::Shared;
use crate::net::sock_diag::{SockDiag, SocketAddrs};
use crate::tunnel::direction::Both;
use crate::tunnel::limits::TunnelLimits;
use crate::tunnel::limits::bucket::RateLimit;
use crate::tunnel::limits::slots::Slot;
use crate::tunnel::outcome::{Close, CloseReason, Side};
use crate::tunnel::relay::meter::{Meter, WINDOW_INTERVAL};
use crate::tunnel::relay::{self, EarlyData, RelayConfig, Transports, relay};

/// A plain client whose target is reached.
#[derive(Debug)]
pub(super) struct PlainConnection {
    /// The client's and the target's connection, and what the client has sent.
    pub(super) transports: Transports<TcpStream>,
    /// The address of the client.
    pub(super) peer: SocketAddr,
    /// The address of the target.
    pub(super) target: SocketAddr,
    /// When it came.
    pub(super) started: Instant,
    /// One of the plain connections that there may be.
    pub(super) slot: Slot,
}

impl PlainConnection {
    /// The connections of a client and its target; `upload` has been read from the client.
    pub(super) fn between(downstream: TcpStream, upstream: TcpStream, upload: Vec<u8>) -> Transports<TcpStream> {
        Transports {
            downstream,
            upstream,
            early: Some(Box::new(EarlyData {
                upload,
                ..EarlyData::default()
            })),
        }
    }

    /// Passes bytes on to the end.
    pub(super) async fn relay(mut self, shared: &Shared) {
        let addresses = [self.peer, self.target];
        let record = SessionRecord::begin("plain", shared.next_number(), addresses, self.started);
        let limits = TunnelLimits::default();
        let unlimited = RateLimit::new(limits.upload, limits.burst);
        let meter = Meter::new(Arc::clone(&shared.plain_bytes));
        // A side that has finished may wait for minutes of silence, and no longer: a peer could keep connections for ever
        // of which sshd knows nothing any more.
        let options = relay::Options::default();
        let terms = RelayConfig {
            limits: Both::from_fn(|_| (&unlimited).into()),
            meter: &meter,
            resources: &shared.resources,
            options: &options,
            last_look: None,
            tunnel: None,
            is_inspected: false,
        };
        let ends = [&self.transports.downstream, &self.transports.upstream].map(ends);
        let stopping = pin!(async {
            tokio::select! {
                () = shared.stopping.cancelled() => {}
                () = watch_windows(&meter, ends) => {}
            }
            Close {
                by: Side::Proxy,
                reason: CloseReason::Drained,
            }
        });
        let close = relay(&mut self.transports, &terms, stopping).await;
        drop(self.transports);
        record.close(
            close.reason.label(),
            Both::from_fn(|direction| meter.bytes(direction)),
            &shared.lines,
        );
        drop(self.slot);
    }
}

/// The addresses of a connection; `None` once it is lost.
fn ends(stream: &TcpStream) -> Option<SocketAddrs> {
    let (local, peer) = (stream.local_addr().ok()?, stream.peer_addr().ok()?);
    Some(SocketAddrs { local, peer })
}

/// Looks at the windows of the client and of the target; never returns.
async fn watch_windows(meter: &Meter, ends: [Option<SocketAddrs>; 2]) {
    loop {
        sleep(WINDOW_INTERVAL).await;
        let [client, target] = SockDiag::default().look_up_all(ends).map(Result::unwrap_or_default);
        meter.note_windows(&client, &target);
        // The relay follows at the next poll of this task.
        yield_now().await;
    }
}
