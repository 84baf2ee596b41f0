//! A tunnel whose client has its 200: it relays until something ends it, and says what did.

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::thread;

use super::pending::Pending;
use super::record::TunnelRecord;
use super::{Holdings, Reached, Shared};
use crate::allowlist::Target;
use crate::cold::cold;
use crate::direction::Direction;
use crate::drain;
use crate::net::transport::Transport;
use crate::outcome::{Close, Reason, Side};
use crate::relay::{self, Bounds, Early, Ends, Engine, Terms, Transports, relay};
use crate::resume::lines::{First, first};
use crate::ssh::identification::{self, Line, Software};

/// A client and a target that are connected.
///
/// The fields are dropped in this order: a reader of the log line may rely on closed sockets.
#[derive(Debug)]
pub(super) struct Tunnel<'a, D: Transport> {
    ends: Transports<D>,
    target: Arc<Target>,
    holdings: Box<Holdings>,
    record: TunnelRecord<'a>,
}

/// After a panic it is unknown what was passed on: an end of stream would make it look complete.
impl<D: Transport> Drop for Tunnel<'_, D> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.ends.downstream.reset_on_drop();
            self.ends.upstream.reset_on_drop();
        }
    }
}

impl<'a, D: Transport> Tunnel<'a, D> {
    /// A tunnel from this client to the target that was reached; `early` are the bytes read behind the request.
    pub(super) fn new(pending: Pending<'a>, reached: Reached, downstream: D, early: Vec<u8>) -> Self {
        let Reached {
            target,
            holdings,
            upstream,
        } = reached;
        Self {
            record: pending.record.established(&target, pending.shared.drain.opened()),
            target,
            holdings,
            ends: Transports {
                downstream,
                upstream: upstream.stream,
                early: Box::new(Early {
                    upload: early,
                    ..Early::default()
                }),
            },
        }
    }

    /// Relays to the end, and records it.
    pub(super) async fn run(&mut self, shared: &Shared) {
        let close = self.carry(shared).await;
        if is_reported(&self.target) {
            self.record.finish_watch(shared.identification.identification);
        }
        self.record.closed(close);
    }

    async fn carry(&mut self, shared: &Shared) -> Close {
        let Self {
            ends,
            target,
            holdings,
            record,
        } = self;
        let options = relay::Options {
            idle: target.idle(shared.relay.idle),
            ..shared.relay
        };
        let holds_back = target.ssh_only() && !target.reports();
        if is_reported(target) {
            ends.early.inspector = Some(Arc::new(record.watch()));
        }
        let terms = Terms {
            upload: bounds(Direction::Upload, target, holdings, shared),
            download: bounds(Direction::Download, target, holdings, shared),
            meter: &record.meter,
            resources: &shared.resources,
            engine: Engine::Adaptive,
            options: &options,
            // A client that has to identify itself has done so before the relay.
            inspected: if holds_back { None } else { Some(&record.open) },
        };
        let mut ending = pin!(ending(target, holdings, record, shared));
        if holds_back {
            let identified = cold(identify(ends, record, shared, ending.as_mut())).await;
            if let Err(close) = identified {
                return close;
            }
        }
        relay(ends, &terms, ending).await
    }
}

/// The limits of one direction. No closure of `carry`: an idle tunnel would keep it.
fn bounds<'a>(direction: Direction, target: &'a Target, holdings: &'a Holdings, shared: &'a Shared) -> Bounds<'a> {
    Bounds {
        tunnel: target.limit(direction),
        shared: [target.shared(), holdings.account.budgets(), &shared.total].map(|budgets| Some(budgets.of(direction))),
    }
}

/// Whether `ssh_only` refuses nothing at that target, and is reported about.
fn is_reported(target: &Target) -> bool {
    target.ssh_only() && target.reports()
}

/// Waits for the SSH identifications of both sides.
async fn identify<D: Transport>(
    ends: &mut Transports<D>,
    record: &TunnelRecord<'_>,
    shared: &Shared,
    ending: Pin<&mut impl Future<Output = Close>>,
) -> Result<(), Close> {
    let identified = |side, line: Line<'_>| {
        record.identified(side, Software::of(line.software));
        if side == Side::Client && matches!(first(line.text), First::Hello(..)) {
            record.open.set_resumable();
        }
    };
    let exchanged = tokio::select! {
        biased;
        exchanged = identification::exchange(ends, &record.meter, &shared.identification, identified) => exchanged,
        close = ending => Err(close),
    };
    if let Err(close) = exchanged {
        relay::let_go(ends, close, Ends::default()).await;
    }
    exchanged
}

/// Completes when the proxy has to end the tunnel: at its longest lifetime, when its target has left the allowlist, when the
/// right of its user ends, or in a drain.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps each argument twice, for as long as the tunnel is idle"
)]
fn ending(
    target: &Target,
    holdings: &Holdings,
    record: &TunnelRecord<'_>,
    shared: &Shared,
) -> impl Future<Output = Close> {
    async move {
        let state = || drain::State {
            number: record.id().number,
            last_moved: record.meter.last_moved(),
            is_resumable: record.open.is_resumable(),
        };
        let taken_back = async {
            match &holdings.grant {
                Some(grant) => cold(grant.ended()).await,
                None => pending().await,
            }
        };
        let reason = tokio::select! {
            () = target.outlived() => Reason::Lifetime,
            () = target.revoked() => Reason::Revoked,
            reason = taken_back => reason,
            () = shared.drain.closes(state) => match record.open.is_resumable() {
                true => Reason::Moved,
                false => Reason::Drained,
            },
        };
        Close {
            by: Side::Proxy,
            reason,
        }
    }
}
