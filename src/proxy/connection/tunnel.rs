//! A tunnel whose client has its 200: relays until it closes, and records the reason.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::thread;

use super::authorize::Reservation;
use super::in_band;
use super::record::TunnelRecord;
use super::ssh_only::{self, NotSshReporter};
use crate::base::boxed::boxed;
use crate::net::transport::Transport as _;
use crate::policy::access::TunnelGrant;
use crate::proxy::anchors::AnchorStream;
use crate::proxy::record::line::AnswerKind;
use crate::tunnel::direction::{Both, Direction};
use crate::tunnel::outcome::{Close, CloseReason, Side};
use crate::tunnel::relay::{self, DirectionLimits, RelayConfig, Transports};
use crate::tunnel::stream::Stream;

/// A client and a target that are connected. Its task owns it; others see the
/// [`OpenTunnel`](crate::proxy::open_tunnels::open_tunnel::OpenTunnel) of its record.
///
/// The fields are dropped in this order: a reader of the log line may rely on closed sockets and free slots.
#[derive(Debug)]
pub(super) struct Tunnel<'a> {
    pub(super) transports: Transports<Stream, Stream>,
    pub(super) reservation: Box<Reservation>,
    pub(super) record: Box<TunnelRecord<'a>>,
}

// An idle tunnel keeps this in memory for days.
const _: () = assert!(size_of::<Tunnel<'_>>() <= 2 * size_of::<Stream>() + 3 * size_of::<usize>());

/// After a panic it is unknown what was passed on: an end of stream would make it look complete.
impl Drop for Tunnel<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.transports.downstream.reset_on_drop();
            self.transports.upstream.reset_on_drop();
        }
    }
}

impl Tunnel<'_> {
    /// Relays until the tunnel closes, and records the close.
    pub(super) async fn run(&mut self) {
        let (close, answered) = self.relay().await;
        if ssh_only::is_reported(&self.reservation.target) {
            ssh_only::report_silence(&self.record);
        }
        self.record.closed(close, answered);
    }

    /// Relays until the tunnel ends. Returns its close, and whether its client was notified in SSH or answered by HTTP
    /// only. `self` is not destructured: an idle tunnel's future would keep each reference.
    async fn relay(&mut self) -> (Close, AnswerKind) {
        let options = relay::Options {
            idle: self.reservation.target.idle(self.record.shared.timeouts.idle),
            half_closed: self.record.shared.timeouts.half_closed,
        };
        let requires_ssh = ssh_only::is_enforced(&self.reservation.target);
        if ssh_only::is_reported(&self.reservation.target) {
            let reporter = NotSshReporter::new(&self.record);
            self.transports.early.get_or_insert_default().inspector = Some(Arc::new(reporter));
        }
        let config = RelayConfig {
            limits: Both::from_fn(|direction| limits(direction, &self.reservation, &self.record)),
            meter: &self.record.tunnel().meter,
            resources: &self.record.shared.resources,
            options: &options,
            on_close: Some(&*self.record),
            guard: Some(&self.record.tunnel().guard),
            // A client that has to identify itself has done so before the relay.
            is_inspected: !requires_ssh,
        };
        let mut ending = pin!(forced_close(&self.reservation, &self.record));
        if requires_ssh {
            let identified =
                ssh_only::require_ssh(&mut self.transports, &self.reservation, &self.record, ending.as_mut());
            if let Err(ended) = boxed(identified).await {
                return ended;
            }
        }
        let end = relay::run(&mut self.transports, &config, ending).await;
        boxed(close_both(&mut self.transports, &self.reservation, &self.record, end)).await;
        (end.close, AnswerKind::Http)
    }
}

/// Returns the limits of one direction. Not a closure in `relay`, which an idle tunnel would keep.
fn limits<'a>(direction: Direction, reservation: &'a Reservation, record: &'a TunnelRecord<'_>) -> DirectionLimits<'a> {
    let Reservation { target, owner, .. } = reservation;
    DirectionLimits {
        tunnel: target.limit(direction),
        rate_override: Some(&record.tunnel().rate_overrides[direction]),
        shared: [target.shared(), &owner.budgets, &record.shared.total].map(|budgets| Some(&budgets[direction])),
    }
}

/// Closes both sides of a tunnel. If the proxy has ended it, a client that asks for an end notice gets the reason.
async fn close_both(
    transports: &mut Transports<Stream, Stream>,
    reservation: &Reservation,
    record: &TunnelRecord<'_>,
    mut end: relay::RelayEnd,
) {
    if end.takes_more
        && let Some(marker) = reservation.end_marker
    {
        let notice = in_band::close_notice(marker, end.close.reason, record.tunnel());
        // After a notice an end of stream does not look like the target's.
        end.eof_sent.download = in_band::send_notice(&mut transports.downstream, &notice).await;
    }
    // WebSocket's own notice: the status 1012 is a restart, 1008 a rule (RFC 6455 section 7.4.1).
    if end.close.by == Side::Proxy {
        let is_drained = matches!(end.close.reason, CloseReason::Drained | CloseReason::ResumedElsewhere);
        let code = if is_drained { 1012 } else { 1008 };
        let operator = record.tunnel().close_reason().unwrap_or_default();
        let phrase = in_band::close_phrase(end.close.reason, operator);
        transports.downstream.set_close_frame(code, &phrase.to_string());
    }
    relay::finish(transports, end.close, end.eof_sent).await;
}

/// Completes when the proxy has to end the tunnel: at its longest lifetime, when its target has left the allowlist,
/// when its user's grant or its anchor ends, by an operator, or in a drain.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps each argument twice, for as long as the tunnel is idle"
)]
fn forced_close(reservation: &Reservation, record: &TunnelRecord<'_>) -> impl Future<Output = Close> {
    async move {
        let right_ended = async {
            match (&reservation.grant, &reservation.anchor) {
                (Some(grant), None) => boxed(grant.revoked_or_expired()).await,
                (None, None) => pending().await,
                (grant, Some(stream)) => boxed(end_of_either(grant.as_ref(), stream)).await,
            }
        };
        let tunnel = record.tunnel();
        let last_active = || tunnel.meter.activity().last_active;
        let reason = tokio::select! {
            () = reservation.target.lifetime_elapsed() => CloseReason::Lifetime,
            () = reservation.target.removed() => CloseReason::TargetRemoved,
            () = tunnel.closed_by_operator(&record.shared.registry.ended_sessions) => CloseReason::ClosedByOperator,
            reason = right_ended => reason,
            () = record.shared.drain.close_due(tunnel.info.id.number, &tunnel.guard, last_active) => {
                match tunnel.guard.is_resumable() {
                    true => CloseReason::ResumedElsewhere,
                    false => CloseReason::Drained,
                }
            }
        };
        Close {
            by: Side::Proxy,
            reason,
        }
    }
}

/// Completes when the grant of the user or the anchor ends.
async fn end_of_either(grant: Option<&TunnelGrant>, stream: &AnchorStream) -> CloseReason {
    let of_user = async {
        match grant {
            Some(grant) => grant.revoked_or_expired().await,
            None => pending().await,
        }
    };
    tokio::select! {
        reason = of_user => reason,
        reason = stream.anchor.ended() => reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size of the future that serves a tunnel.
    fn future_size<'a, 'b, F>(_run: fn(&'a mut Tunnel<'b>) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn the_future_of_a_tunnel_is_small_as_an_idle_tunnel_is_one_for_days() {
        let size = future_size(Tunnel::run);
        assert!(size <= 1664, "{size}");
    }
}
