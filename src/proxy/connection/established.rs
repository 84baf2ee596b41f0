//! A tunnel whose client has its 200: relays until it closes, and records the reason.

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::in_band::{self, EarlyEnd, close_phrase, phrase};
use super::pending::PendingRequest;
use super::record::TunnelRecord;
use super::shared::Shared;
use crate::base::boxed::boxed;
use crate::net::transport::{Transport, send_all};
use crate::policy::access::TunnelGrant;
use crate::policy::allowlist::Target;
use crate::protocol::end_notice::{self, MAX_SENTENCE_BYTES, Marker};
use crate::protocol::phrase::Phrase;
use crate::protocol::resume::handshake::lines::{FirstBytes, classify};
use crate::proxy::anchors::AnchorTunnel;
use crate::proxy::http::RefusalMode;
use crate::proxy::open_tunnels::open_tunnel::OpenTunnel;
use crate::tunnel::direction::{Both, Direction};
use crate::tunnel::drain::{self, TunnelGuard};
use crate::tunnel::limits::owners::LimitOwner;
use crate::tunnel::limits::slots::Slot;
use crate::tunnel::outcome::{Close, CloseReason, Side};
use crate::tunnel::relay::{self, DirectionLimits, EarlyData, EofSent, RelayConfig, Transports, run};
use crate::tunnel::ssh::identification::{self, Line, Software};

/// A connected target, and the slots that the tunnel to it takes.
pub(super) struct ConnectedTarget<U> {
    pub(super) target: Arc<Target>,
    pub(super) context: Box<TunnelContext>,
    pub(super) upstream: U,
    /// The tunnel counts as open before its client has the 200: from then on a drain closes it.
    pub(super) open: TunnelGuard,
}

/// The slots and grants of a running tunnel. Boxed, as they are not used while it idles.
#[derive(Debug)]
pub(super) struct TunnelContext {
    /// The slots of the process, of the owner and of the target.
    pub(super) _slots: [Slot; 3],
    /// The client, or the user where users are known: an office with one address is not one user.
    pub(super) owner: Arc<LimitOwner>,
    /// The grant for the target; `None` unless access is enforced.
    pub(super) grant: Option<TunnelGrant>,
    /// How its client is told that the target is not an SSH server.
    pub(super) refusals: RefusalMode,
    /// The marker of its end notice; `None` if its client asks for none.
    pub(super) end_marker: Option<Marker>,
    /// The anchor that carries it; `None` if its target is dialled.
    pub(super) anchor: Option<AnchorTunnel>,
}

/// A client and a target that are connected.
///
/// The fields are dropped in this order: a reader of the log line may rely on closed sockets.
#[derive(Debug)]
pub(super) struct Tunnel<'a, D: Transport, U: Transport = TcpStream> {
    transports: Transports<D, U>,
    target: Arc<Target>,
    context: Box<TunnelContext>,
    record: TunnelRecord<'a>,
}

/// The end of a tunnel, and whether its client was told it in band.
#[derive(Clone, Copy, Debug)]
struct TunnelEnd {
    close: Close,
    is_reported: bool,
}

/// After a panic it is unknown what was passed on: an end of stream would make it look complete.
impl<D: Transport, U: Transport> Drop for Tunnel<'_, D, U> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.transports.downstream.reset_on_drop();
            self.transports.upstream.reset_on_drop();
        }
    }
}

impl<'a, D: Transport, U: Transport> Tunnel<'a, D, U> {
    /// Creates a tunnel from this client to the target that was reached; `early` are the bytes read after the request.
    pub(super) fn new(pending: PendingRequest<'a>, reached: ConnectedTarget<U>, downstream: D, early: Vec<u8>) -> Self {
        let ConnectedTarget {
            target,
            context,
            upstream,
            open,
        } = reached;
        Self {
            record: pending.record.established(&target, open),
            target,
            context,
            transports: Transports {
                downstream,
                upstream,
                early: Some(Box::new(EarlyData {
                    upload: early,
                    ..EarlyData::default()
                })),
            },
        }
    }

    /// Relays until the tunnel closes, and records the close.
    pub(super) async fn run(&mut self, shared: &Shared) {
        let TunnelEnd {
            close,
            is_reported: is_told,
        } = self.relay(shared).await;
        if is_reported(&self.target) {
            self.record.finish_watch(shared.timeouts.ssh_identification);
        }
        self.record.closed(close, is_told);
    }

    /// Relays until the tunnel ends. `self` is not destructured: an idle tunnel's future would keep each reference.
    async fn relay(&mut self, shared: &Shared) -> TunnelEnd {
        let options = relay::Options {
            idle: self.target.idle(shared.timeouts.idle),
            half_closed: shared.timeouts.half_closed,
        };
        let holds_back = self.target.ssh_only() && !self.target.reports();
        if is_reported(&self.target) {
            self.transports.early.get_or_insert_default().inspector = Some(Arc::new(self.record.watch()));
        }
        let terms = RelayConfig {
            limits: Both::from_fn(|direction| {
                bounds(direction, &self.target, &self.context, self.record.tunnel(), shared)
            }),
            meter: &self.record.tunnel().meter,
            resources: &shared.resources,
            options: &options,
            last_look: Some(&self.record),
            tunnel: Some(&self.record.tunnel().open),
            // A client that has to identify itself has done so before the relay.
            is_inspected: !holds_back,
        };
        let mut ending = pin!(forced_close(&self.target, &self.context, &self.record, shared));
        if holds_back {
            let held_back = require_ssh(
                &mut self.transports,
                &self.context,
                &self.record,
                shared,
                ending.as_mut(),
            );
            if let Some(ended) = boxed(held_back).await {
                return ended;
            }
        }
        let ended = run(&mut self.transports, &terms, ending).await;
        boxed(close_both(&mut self.transports, &self.context, &self.record, ended)).await;
        TunnelEnd {
            close: ended.close,
            is_reported: false,
        }
    }
}

/// Closes both sides of a tunnel. If the proxy has ended it, a client that asks for an end notice gets the reason.
async fn close_both<D: Transport, U: Transport>(
    transports: &mut Transports<D, U>,
    holdings: &TunnelContext,
    record: &TunnelRecord<'_>,
    ended: relay::RelayEnd,
) {
    let relay::RelayEnd {
        close,
        mut ends,
        takes_more,
    } = ended;
    if takes_more && let Some(marker) = holdings.end_marker {
        let notice = of_proxy(marker, close.reason, record);
        // After a notice an end of stream does not look like the target's.
        ends.download = send(&mut transports.downstream, &notice).await;
    }
    relay::finish(transports, close, ends).await;
}

/// Waits for the SSH identifications of both sides; `None` when they have come. A tunnel without them is ended here.
/// Its client gets the reason in an end notice, or else in band if its port refuses in band.
async fn require_ssh<D: Transport, U: Transport>(
    ends: &mut Transports<D, U>,
    holdings: &TunnelContext,
    record: &TunnelRecord<'_>,
    shared: &Shared,
    ending: Pin<&mut impl Future<Output = Close>>,
) -> Option<TunnelEnd> {
    let unidentified = identify(ends, record, shared, ending).await.err()?;
    let close = unidentified.close;
    let notice = match holdings.end_marker {
        Some(marker) if close.by != Side::Client => {
            let end = unidentified_end(close, ends, record, shared);
            Some(notice(marker, (phrase(&end), record.tunnel().is_end_final()), record))
        }
        Some(marker) if close.reason == CloseReason::NotSsh => Some(of_proxy(marker, close.reason, record)),
        Some(_) | None => None,
    };
    let is_noticed = match &notice {
        Some(notice) => send(&mut ends.downstream, notice).await,
        None => false,
    };
    // A part of a notice may have been sent: nothing can follow it.
    let is_told = notice.is_none()
        && holdings.refusals != RefusalMode::Http
        && send_disconnect(ends, &unidentified, record, shared).await;
    // A reset would discard the message.
    let reason = if is_told || is_noticed {
        CloseReason::NotSsh
    } else {
        close.reason
    };
    relay::finish(ends, Close { reason, ..close }, EofSent::default()).await;
    Some(TunnelEnd {
        close,
        is_reported: is_told,
    })
}

/// The close of a tunnel of which a side has not identified itself.
#[derive(Debug)]
struct NotIdentified {
    close: Close,
    /// True if the client has identified itself.
    is_client_ssh: bool,
}

/// Returns the close of a tunnel whose target has not identified itself.
fn unidentified_end<'a, D, U>(
    close: Close,
    ends: &'a Transports<D, U>,
    record: &'a TunnelRecord<'_>,
    shared: &Shared,
) -> EarlyEnd<'a> {
    EarlyEnd {
        reason: close.reason,
        said: ends.early.as_ref().map_or(&[], |early| &early.download),
        deadline: shared.timeouts.ssh_identification,
        operator: record.tunnel().close_reason().unwrap_or_default(),
    }
}

/// Returns the limits of one direction. Not a closure in `relay`, which an idle tunnel would keep.
fn bounds<'a>(
    direction: Direction,
    target: &'a Target,
    holdings: &'a TunnelContext,
    tunnel: &'a OpenTunnel,
    shared: &'a Shared,
) -> DirectionLimits<'a> {
    DirectionLimits {
        tunnel: target.limit(direction),
        rate_override: Some(&tunnel.rate_overrides[direction]),
        shared: [target.shared(), &holdings.owner.budgets, &shared.total].map(|budgets| Some(&budgets[direction])),
    }
}

/// Returns whether `ssh_only` only reports at that target, and refuses nothing.
fn is_reported(target: &Target) -> bool {
    target.ssh_only() && target.reports()
}

/// Waits for the SSH identifications of both sides.
async fn identify<D: Transport, U: Transport>(
    ends: &mut Transports<D, U>,
    record: &TunnelRecord<'_>,
    shared: &Shared,
    ending: Pin<&mut impl Future<Output = Close>>,
) -> Result<(), NotIdentified> {
    let is_client_ssh = AtomicBool::new(false);
    let identified = |side, line: Line<'_>| {
        record.identified(side, Software::parse(line.software));
        if side == Side::Client {
            is_client_ssh.store(true, Ordering::Relaxed);
            if let FirstBytes::Hello(hello, _) = classify(line.text) {
                record.tunnel().open.set_hello(hello);
            }
        }
    };
    let exchanged = tokio::select! {
        biased;
        exchanged = identification::exchange(ends, &record.tunnel().meter, shared.timeouts.ssh_identification, identified) => exchanged,
        close = ending => Err(close),
    };
    exchanged.map_err(|close| NotIdentified {
        close,
        is_client_ssh: is_client_ssh.into_inner(),
    })
}

/// Sends an SSH client the reason why the tunnel ends before its target's identification. Sends nothing once a byte of
/// the target was passed on: the client no longer waits for an identification. Returns whether the message was sent.
async fn send_disconnect<D: Transport, U: Transport>(
    ends: &mut Transports<D, U>,
    unidentified: &NotIdentified,
    record: &TunnelRecord<'_>,
    shared: &Shared,
) -> bool {
    let NotIdentified { close, is_client_ssh } = unidentified;
    // PuTTY waits for the server's identification, and sends nothing before.
    let may_be_ssh = *is_client_ssh || ends.early.as_ref().is_none_or(|early| early.upload.is_empty());
    if !may_be_ssh || close.by == Side::Client || record.tunnel().meter.bytes(Direction::Download) > 0 {
        return false;
    }
    let target = record.tunnel().facts.authority.as_ref();
    let target = target.map(ToString::to_string).unwrap_or_default();
    let message = in_band::end_message(&unidentified_end(*close, ends, record, shared), &target, record.id());
    let is_told = in_band::send(&mut ends.downstream, &message).await;
    if is_told {
        in_band::drain_client(&mut ends.downstream).await;
    }
    is_told
}

/// Completes when the proxy has to end the tunnel: at its longest lifetime, when its target has left the allowlist,
/// when its user's grant or its anchor ends, by an operator, or in a drain.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps each argument twice, for as long as the tunnel is idle"
)]
fn forced_close(
    target: &Target,
    holdings: &TunnelContext,
    record: &TunnelRecord<'_>,
    shared: &Shared,
) -> impl Future<Output = Close> {
    async move {
        let state = || drain::TunnelState {
            id: record.id().seq,
            last_active: record.tunnel().meter.activity().last_active,
            guard: &record.tunnel().open,
        };
        let taken_back = async {
            match (&holdings.grant, &holdings.anchor) {
                (Some(grant), None) => boxed(grant.revoked_or_expired()).await,
                (None, None) => pending().await,
                (grant, Some(tunnel)) => boxed(end_of_either(grant.as_ref(), tunnel)).await,
            }
        };
        let reason = tokio::select! {
            () = target.lifetime_elapsed() => CloseReason::Lifetime,
            () = target.removed() => CloseReason::TargetRemoved,
            () = record.tunnel().closed_by_operator(&shared.registry.ended_sessions) => CloseReason::ClosedByOperator,
            reason = taken_back => reason,
            () = shared.drain.close_due(state) => match record.tunnel().open.is_resumable() {
                true => CloseReason::ResumedElsewhere,
                false => CloseReason::Drained,
            },
        };
        Close {
            by: Side::Proxy,
            reason,
        }
    }
}

/// Completes when the grant of the user or the anchor ends.
async fn end_of_either(grant: Option<&TunnelGrant>, tunnel: &AnchorTunnel) -> CloseReason {
    let of_user = async {
        match grant {
            Some(grant) => grant.revoked_or_expired().await,
            None => pending().await,
        }
    };
    tokio::select! {
        reason = of_user => reason,
        reason = tunnel.anchor.ended() => reason,
    }
}

/// Returns the notice of a tunnel that the proxy has closed.
fn of_proxy(marker: Marker, reason: CloseReason, record: &TunnelRecord<'_>) -> Vec<u8> {
    let operator = record.tunnel().close_reason().unwrap_or_default();
    // After any other end the session may go on in another tunnel.
    let is_final = reason == CloseReason::Idle || record.tunnel().is_end_final();
    notice(marker, (close_phrase(reason, operator), is_final), record)
}

fn notice(marker: Marker, (phrase, is_final): (Phrase, bool), record: &TunnelRecord<'_>) -> Vec<u8> {
    // The client itself puts the requested name before a sentence that lacks it.
    let authority = record.tunnel().facts.authority.as_ref();
    let name = authority.filter(|_| phrase.is_of_target()).map(ToString::to_string);
    let phrase = phrase.preceded_by("the proxy ended the session: ");
    let sentence = phrase.sentence(&name.unwrap_or_default(), Some(&record.id()), MAX_SENTENCE_BYTES);
    end_notice::notice(marker, &sentence, is_final)
}

/// Sends a notice within 0.5 s. Returns `false` if the client may have received only a part of it.
async fn send(client: &mut impl Transport, notice: &[u8]) -> bool {
    matches!(timeout(SEND_TIMEOUT, send_all(client, notice)).await, Ok(Ok(())))
}

/// The end of a drain waits for this time, so a client that takes no more is cut off without a notice.
const SEND_TIMEOUT: Duration = Duration::from_millis(500);
