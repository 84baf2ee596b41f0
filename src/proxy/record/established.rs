//! The account of an established tunnel: a line at its beginning, and counts and another line at its end.

use std::sync::Arc;
use std::time::Duration;

use super::line::{Line, Moment};
use super::reports::Watch;
use super::{Answered, Connection, Telemetry, millis};
use crate::proxy::open_tunnels::facts::Id;
use crate::proxy::open_tunnels::open_tunnel::OpenTunnel;
use crate::proxy::open_tunnels::registry::Registration;
use crate::tunnel::direction::Direction;
use crate::tunnel::metrics::TargetSeries;
use crate::tunnel::outcome::{Close, Outcome, Reason, Side};
use crate::tunnel::relay::LastLook;
use crate::tunnel::ssh::identification::Software;

/// The account of an established tunnel; its drop ends it.
#[derive(Debug)]
pub struct TunnelRecord<'a> {
    /// Boxed: an idle tunnel would keep it in its future.
    held: Box<Established<'a>>,
    close: Option<Close>,
    /// Whether the client was told the end in band.
    is_told: bool,
}

/// What an established tunnel is accounted for with.
#[derive(Debug)]
pub(super) struct Established<'a> {
    pub(super) telemetry: Telemetry<'a>,
    pub(super) registration: Registration<'a>,
    pub(super) series: Arc<TargetSeries>,
    /// `None` for a request on an HTTP/2 connection, which has a record of its own.
    pub(super) _connection: Option<Connection<'a>>,
}

impl<'a> TunnelRecord<'a> {
    pub(super) fn begin(held: Box<Established<'a>>) -> Self {
        held.series.tunnels_active.inc();
        let record = Self {
            held,
            close: None,
            is_told: false,
        };
        let line = Line::of(&record.tunnel().facts, Moment::Open, None);
        record.held.telemetry.access_log.write(&line);
        record
    }

    /// The tunnel as operators see it.
    pub fn tunnel(&self) -> &OpenTunnel {
        self.held.registration.tunnel()
    }

    /// The end of the tunnel, which the client may have been told in band.
    pub fn closed(&mut self, close: Close, is_told: bool) {
        self.close = Some(close);
        self.is_told = is_told;
    }

    /// The SSH software of one side, from its identification.
    pub fn identified(&self, side: Side, software: Software) {
        self.tunnel().facts.seen.identified(side, software);
    }

    /// Returns an observer that records whether `ssh_only` would have refused the tunnel.
    pub fn watch(&self) -> Watch {
        Watch {
            seen: Arc::clone(&self.tunnel().facts.seen),
            metrics: self.held.telemetry.metrics.clone(),
        }
    }

    /// Notes, at the end of a tunnel that was watched, a side that has sent something and has not identified itself, or
    /// was silent for `longest`: `ssh_only` would not have waited longer.
    pub fn finish_watch(&self, longest: Duration) {
        let is_late = self.tunnel().start.established.elapsed() >= longest;
        for direction in Direction::ALL {
            let side = direction.sender();
            let has_identified = self.tunnel().facts.seen.software(side).is_some();
            if !has_identified && (is_late || self.tunnel().meter.bytes(direction) > 0) {
                self.watch().refuses(side);
            }
        }
    }

    /// The tunnel's id.
    pub fn id(&self) -> Id {
        self.tunnel().facts.id
    }
}

impl LastLook for TunnelRecord<'_> {
    fn look(&self) {
        self.tunnel().look_at_end(&self.held.telemetry.registry.sock_diag);
    }
}

impl Drop for TunnelRecord<'_> {
    fn drop(&mut self) {
        let (
            tunnel,
            Telemetry {
                metrics, access_log, ..
            },
        ) = (self.tunnel(), self.held.telemetry);
        let close = self.close.unwrap_or(Close {
            by: Side::Proxy,
            reason: Reason::Panic,
        });
        self.held.registration.closed(close);
        let outcome = Outcome::Closed(close);
        metrics.closed(outcome);
        metrics
            .tunnel_duration
            .observe(tunnel.start.established.elapsed().as_secs_f64());
        self.held.series.tunnels_active.dec();
        if self.is_told {
            metrics.answers_in_band.inc();
        }
        access_log.write(&Line {
            answered: if self.is_told { Answered::Ssh } else { Answered::Http },
            sent: tunnel.meter.bytes(Direction::Download),
            received: tunnel.meter.bytes(Direction::Upload),
            duration_ms: millis(tunnel.facts.accepted.elapsed()),
            trips: tunnel.trips(),
            operator: tunnel.closing().unwrap_or_default(),
            is_resumable: tunnel.open.is_resumable(),
            ..Line::of(&tunnel.facts, Moment::Close, Some(outcome))
        });
    }
}
