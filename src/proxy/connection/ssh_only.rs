//! The rule `ssh_only`: a tunnel of which a side does not identify itself as SSH is ended or, where the allowlist is
//! report-only, reported.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;

use super::authorize::Reservation;
use super::in_band::{self, EarlyEnd, phrase};
use super::record::TunnelRecord;
use crate::policy::allowlist::Target;
use crate::protocol::resume::handshake::lines::{FirstBytes, classify};
use crate::proxy::http::RefusalMode;
use crate::proxy::metrics::Metrics;
use crate::proxy::record::SshPeers;
use crate::proxy::record::line::AnswerKind;
use crate::tunnel::direction::Direction;
use crate::tunnel::outcome::{Close, CloseReason, Side};
use crate::tunnel::relay::{self, EofSent, InspectPrefix, Transports};
use crate::tunnel::ssh::identification::{self, Line, NotSsh, Software};
use crate::tunnel::stream::Stream;

/// Returns whether both sides of a tunnel to that target have to identify themselves.
pub(super) fn is_enforced(target: &Target) -> bool {
    target.ssh_only() && !target.reports()
}

/// Returns whether `ssh_only` only reports at that target, and refuses nothing.
pub(super) fn is_reported(target: &Target) -> bool {
    target.ssh_only() && target.reports()
}

/// Waits for the SSH identifications of both sides. A tunnel without them is ended here. Its client gets the reason in
/// an end notice, or else in band if its port refuses in band.
///
/// # Errors
/// The close, and whether the client was notified in SSH.
pub(super) async fn require_ssh(
    transports: &mut Transports<Stream, Stream>,
    reservation: &Reservation,
    record: &TunnelRecord<'_>,
    ending: Pin<&mut impl Future<Output = Close>>,
) -> Result<(), (Close, AnswerKind)> {
    let Err(close) = identify(transports, record, ending).await else {
        return Ok(());
    };
    let tunnel = record.tunnel();
    let end = EarlyEnd {
        reason: close.reason,
        said: transports.early.as_ref().map_or(&[], |early| &early.download),
        deadline: record.shared.timeouts.ssh_identification,
        operator: tunnel.close_reason().unwrap_or_default(),
    };
    let notice = match reservation.end_marker {
        Some(marker) if close.by != Side::Client => {
            Some(in_band::notice(marker, (phrase(&end), tunnel.is_end_final()), tunnel))
        }
        Some(marker) if close.reason == CloseReason::NotSsh => {
            Some(in_band::close_notice(marker, close.reason, tunnel))
        }
        Some(_) | None => None,
    };
    let is_noticed = match &notice {
        Some(notice) => in_band::send_notice(&mut transports.downstream, notice).await,
        None => false,
    };
    // PuTTY waits for the server's identification, and sends nothing before.
    let may_be_ssh = tunnel.info.ssh_peers.software(Side::Client).is_some()
        || transports.early.as_ref().is_none_or(|early| early.upload.is_empty());
    // Once a byte of the target was passed on, the client no longer waits for an identification.
    let is_waiting = may_be_ssh && close.by != Side::Client && tunnel.meter.bytes(Direction::Download) == 0;
    // A part of a notice may have been sent: nothing can follow it.
    let is_sent = notice.is_none()
        && reservation.refusals != RefusalMode::Http
        && is_waiting
        && send_disconnect(&mut transports.downstream, &end, record).await;
    if is_sent || is_noticed {
        relay::finish_notified(transports, close.by).await;
    } else {
        relay::finish(transports, close, EofSent::default()).await;
    }
    Err((close, if is_sent { AnswerKind::Ssh } else { AnswerKind::Http }))
}

/// Waits for the SSH identifications of both sides.
async fn identify(
    transports: &mut Transports<Stream, Stream>,
    record: &TunnelRecord<'_>,
    ending: Pin<&mut impl Future<Output = Close>>,
) -> Result<(), Close> {
    let tunnel = record.tunnel();
    let identified = |side, line: Line<'_>| {
        tunnel.info.ssh_peers.identified(side, Software::parse(line.software));
        if side == Side::Client {
            if let FirstBytes::Hello(hello, _) = classify(line.text) {
                tunnel.guard.set_hello(hello);
            }
            // The lines of a handshake are no use of the tunnel.
            let is_own = tunnel.guard.is_resumable();
            for direction in Direction::ALL {
                tunnel.meter.set_own(direction, is_own);
            }
        }
    };
    let timeout = record.shared.timeouts.ssh_identification;
    tokio::select! {
        biased;
        exchanged = identification::exchange(transports, &tunnel.meter, timeout, identified) => exchanged,
        close = ending => Err(close),
    }
}

/// Sends an SSH client the reason why the tunnel ends before its target's identification. Returns whether it was sent.
async fn send_disconnect(client: &mut Stream, end: &EarlyEnd<'_>, record: &TunnelRecord<'_>) -> bool {
    let info = &record.tunnel().info;
    let target = info.authority.as_ref().map(ToString::to_string).unwrap_or_default();
    let software = info.ssh_peers.software(Side::Client);
    let identification = software
        .map(|software| format!("SSH-2.0-{software}"))
        .unwrap_or_default();
    let message = in_band::end_message(end, &target, info.id).to_bytes(identification.as_bytes());
    let is_sent = in_band::send(client, &message).await;
    if is_sent {
        in_band::drain_client(client).await;
    }
    is_sent
}

/// The inspector of a tunnel's first bytes with `allowlist.report_only`: counts and notes the first side that does not
/// begin as SSH does.
#[derive(Debug)]
pub(super) struct NotSshReporter {
    ssh_peers: Arc<SshPeers>,
    metrics: Metrics,
}

impl NotSshReporter {
    /// Creates the inspector of that tunnel.
    pub(super) fn new(record: &TunnelRecord<'_>) -> Self {
        Self {
            ssh_peers: Arc::clone(&record.tunnel().info.ssh_peers),
            metrics: record.shared.metrics.clone(),
        }
    }

    /// Counts and notes that side, unless a side was noted already.
    fn report(&self, side: Side) {
        if self.ssh_peers.not_ssh.set(side).is_ok() {
            self.metrics.report_only_refusals.count(["ssh_only"]);
        }
    }
}

impl InspectPrefix for NotSshReporter {
    fn inspect(&self, direction: Direction, beginning: &[u8]) -> ControlFlow<()> {
        let side = direction.sender();
        match identification::read(beginning, side) {
            Ok(None) => return ControlFlow::Continue(()),
            Ok(Some(line)) => self.ssh_peers.identified(side, Software::parse(line.software)),
            Err(NotSsh) => self.report(side),
        }
        ControlFlow::Break(())
    }
}

/// Reports, at the end of a tunnel, a side that has not identified itself: if the side has sent bytes, or if the tunnel
/// has lasted longer than `ssh_only` would have waited.
pub(super) fn report_silence(record: &TunnelRecord<'_>) {
    let (tunnel, reporter) = (record.tunnel(), NotSshReporter::new(record));
    let is_late = tunnel.start.established.elapsed() >= record.shared.timeouts.ssh_identification;
    for direction in Direction::ALL {
        let side = direction.sender();
        let has_identified = tunnel.info.ssh_peers.software(side).is_some();
        if !has_identified && (is_late || tunnel.meter.bytes(direction) > 0) {
            reporter.report(side);
        }
    }
}
