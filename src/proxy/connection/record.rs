//! Records one connection: gauges while it is open, and one counter, one histogram and one access line at its end.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::text::excerpt;
use crate::net::tls::{self, CertificateNames, Tls};
use crate::policy::allowlist::{Endpoints, Target};
use crate::proxy::open_tunnels::events::{Event, RefusedRequest};
use crate::proxy::open_tunnels::open_tunnel::OpenTunnel;
use crate::proxy::open_tunnels::registry::{Registration, Registry};
use crate::proxy::record::access_log::AccessLog;
use crate::proxy::record::line::{AccessLine, AnswerKind, millis};
use crate::proxy::record::{Id, RequestInfo, SshPeers, WOULD_BE_REFUSED};
use crate::tunnel::dial::{DialError, Upstream};
use crate::tunnel::direction::Direction;
use crate::tunnel::drain::TunnelGuard;
use crate::tunnel::metrics::{Metrics, TargetSeries};
use crate::tunnel::outcome::{Close, CloseReason, Outcome, Refusal, RefusalReason, Side};
use crate::tunnel::relay::{InspectPrefix, OnClose};
use crate::tunnel::ssh::identification::{self, NotSsh, Software};

/// The metrics, the access log and the open tunnels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Telemetry<'a> {
    /// The process's metrics.
    pub(super) metrics: &'a Metrics,
    /// The process's access log.
    pub(super) access_log: &'a AccessLog,
    /// The open tunnels.
    pub(super) registry: &'a Registry,
}

/// The record of a pending request: a connection from its accept on, or a request on an HTTP/2 connection. Its
/// drop updates the metrics and writes the access line, also after a panic.
#[derive(Debug)]
pub(super) struct RequestRecord<'a> {
    telemetry: Telemetry<'a>,
    /// Facts about the request, added by each stage.
    pub(super) info: RequestInfo,
    refusal: Option<RefusalReason>,
    /// The way in which the client was answered.
    pub(super) answered: AnswerKind,
    accounted: bool,
    /// `None` for a request on an HTTP/2 connection: the connection has a record of its own.
    connection: Option<Connection<'a>>,
}

impl<'a> RequestRecord<'a> {
    /// Creates the record of a connection that was accepted at `accepted`.
    pub(super) fn open(telemetry: Telemetry<'a>, id: Id, peer: SocketAddr, accepted: Instant) -> Box<Self> {
        let mut record = Self::begin(telemetry, RequestInfo::new(id, [peer; 2], accepted));
        record.connection = Some(Connection::open(telemetry.metrics));
        record
    }

    /// Creates the record of a request on this HTTP/2 connection.
    pub(super) fn request(&self, id: Id) -> Box<Self> {
        let mut facts = RequestInfo::new(id, [self.info.peer, self.info.client], Instant::now());
        facts.tls.clone_from(&self.info.tls);
        facts.locals = self.info.locals;
        Self::begin(self.telemetry, facts)
    }

    fn begin(telemetry: Telemetry<'a>, facts: RequestInfo) -> Box<Self> {
        Box::new(Self {
            telemetry,
            info: facts,
            refusal: None,
            answered: AnswerKind::None,
            accounted: false,
            connection: None,
        })
    }

    /// Makes the drop write no counts and no line: the connection's HTTP/2 requests have records of their own.
    pub(super) fn disarm(&mut self) {
        self.accounted = true;
    }

    /// Sets the TLS session, with the client's identity if it has presented a certificate.
    pub(super) fn set_tls(&mut self, accepted: &tls::CompletedHandshake) {
        self.telemetry.metrics.tls_accepted(accepted);
        self.info.tls = Some(Arc::clone(&accepted.peer));
    }

    /// Sets why the user may reach the target.
    pub(super) fn set_reason(&mut self, reason: &str) {
        self.info.authorization = Some(excerpt(reason, MAX_REASON).into());
    }

    /// Records why the request is refused, or why it would be, unless the denial `counts`.
    pub(super) fn set_authorization(&mut self, denial: &Refusal, counts: bool) {
        let would_be = if counts { "" } else { WOULD_BE_REFUSED };
        self.set_reason(&match denial.details() {
            Some(details) => format!("{would_be}{}: {details}", denial.phrase()),
            None => format!("{would_be}{}", denial.phrase()),
        });
    }

    /// Returns the identity of the client's certificate.
    pub(super) fn identity(&self) -> Option<&CertificateNames> {
        self.info.tls.as_ref()?.identity.as_ref()
    }

    /// Returns whether a new handshake would accept the client's certificate, which may have expired or been revoked
    /// during a long HTTP/2 connection.
    pub(super) fn is_trusted(&self, tls: &Tls) -> bool {
        self.info.tls.as_ref().is_none_or(|peer| tls.trusts(peer))
    }

    /// Records the result of a dial of one of `endpoints`, and how long it took.
    pub(super) fn dialled<S>(
        &mut self,
        took: Duration,
        endpoints: &Endpoints,
        result: Result<&Upstream<S>, &DialError>,
    ) {
        self.telemetry.metrics.dial_duration.observe(took.as_secs_f64());
        self.info.dial_ms = millis(took);
        self.info.dial_error = result.err().and_then(|error| error.errno);
        self.info.upstream = result.ok().map(|upstream| upstream.address);
        let [_, local] = &mut self.info.locals;
        *local = result.ok().map(|upstream| upstream.local);
        self.info.node = self.info.upstream.map_or("", |address| endpoints.node(address)).into();
    }

    /// Records a refusal at once: the client may keep the connection after its answer.
    pub(super) fn refused(&mut self, refusal: RefusalReason) {
        self.refusal = Some(refusal);
        self.account();
    }

    /// Turns the record into that of the tunnel to `target`.
    pub(super) fn established(mut self: Box<Self>, target: &Target, open: TunnelGuard) -> TunnelRecord<'a> {
        self.accounted = true;
        self.observe_answer(None);
        let series = Arc::clone(target.series(self.telemetry.metrics));
        let tunnel = Arc::new(OpenTunnel::new(self.info.take(), &series, open));
        series.tunnels_active.inc();
        let held = Box::new(TunnelAccounts {
            telemetry: self.telemetry,
            registration: self.telemetry.registry.enter(tunnel),
            series,
            _connection: self.connection.take(),
        });
        let record = TunnelRecord {
            held,
            close: None,
            is_logged: false,
        };
        let line = AccessLine::new(&record.tunnel().facts, "open", None);
        self.telemetry.access_log.write(&line);
        record
    }

    fn observe_answer(&self, refused: Option<Outcome>) {
        let Metrics { handshake_duration, .. } = self.telemetry.metrics;
        self.telemetry.metrics.answered(refused);
        handshake_duration.observe(self.info.accepted.elapsed().as_secs_f64());
    }

    fn account(&mut self) {
        if std::mem::replace(&mut self.accounted, true) {
            return;
        }
        let refusal = self.refusal.unwrap_or(RefusalReason::Internal);
        let outcome = Outcome::Refused(refusal);
        self.observe_answer(Some(outcome));
        if self.answered == AnswerKind::Ssh {
            self.telemetry.metrics.in_band_disconnects.inc();
        }
        self.telemetry.registry.refusals.count(outcome.reason());
        let refused = || Event::Refused(Arc::new(RefusedRequest::new(&self.info, outcome)));
        self.telemetry.registry.events.publish(refused);
        let Telemetry { access_log, .. } = self.telemetry;
        access_log.refused(&self.info, refusal, self.answered);
    }
}

impl Drop for RequestRecord<'_> {
    fn drop(&mut self) {
        self.account();
    }
}

/// The record of an established tunnel; its drop writes the close line.
#[derive(Debug)]
pub(super) struct TunnelRecord<'a> {
    /// Boxed, to keep the future of an idle tunnel small.
    held: Box<TunnelAccounts<'a>>,
    close: Option<Close>,
    /// True if the end was sent to the client in band.
    is_logged: bool,
}

/// The parts of a tunnel's record.
#[derive(Debug)]
struct TunnelAccounts<'a> {
    telemetry: Telemetry<'a>,
    registration: Registration<'a>,
    series: Arc<TargetSeries>,
    /// `None` for a request on an HTTP/2 connection: the connection has a record of its own.
    _connection: Option<Connection<'a>>,
}

impl TunnelRecord<'_> {
    /// Returns the tunnel as operators see it.
    pub(super) fn tunnel(&self) -> &OpenTunnel {
        self.held.registration.tunnel()
    }

    /// Sets the end of the tunnel, and whether it was sent to the client in band.
    pub(super) fn closed(&mut self, close: Close, is_told: bool) {
        self.close = Some(close);
        self.is_logged = is_told;
    }

    /// Sets the SSH software of one side, from its identification.
    pub(super) fn identified(&self, side: Side, software: Software) {
        self.tunnel().facts.seen.identified(side, software);
    }

    /// Returns an observer that records whether `ssh_only` would have refused the tunnel.
    pub(super) fn watch(&self) -> NotSshReporter {
        NotSshReporter {
            seen: Arc::clone(&self.tunnel().facts.seen),
            metrics: self.held.telemetry.metrics.clone(),
        }
    }

    /// Notes, at the end of a watched tunnel, a side that has not identified itself: if the side has sent bytes, or if
    /// the tunnel has lasted for `timeout`, after which `ssh_only` would have ended the tunnel.
    pub(super) fn finish_watch(&self, timeout: Duration) {
        let is_late = self.tunnel().start.established.elapsed() >= timeout;
        for direction in Direction::ALL {
            let side = direction.sender();
            let has_identified = self.tunnel().facts.seen.software(side).is_some();
            if !has_identified && (is_late || self.tunnel().meter.bytes(direction) > 0) {
                self.watch().refuses(side);
            }
        }
    }

    /// Returns the tunnel's id.
    pub(super) fn id(&self) -> Id {
        self.tunnel().facts.id
    }
}

impl OnClose for TunnelRecord<'_> {
    fn before_close(&self) {
        self.tunnel().look_at_end(&self.held.telemetry.registry.sock_diag);
    }
}

impl Drop for TunnelRecord<'_> {
    fn drop(&mut self) {
        let (tunnel, telemetry) = (self.tunnel(), self.held.telemetry);
        let metrics = telemetry.metrics;
        let close = self.close.unwrap_or(Close {
            by: Side::Proxy,
            reason: CloseReason::Panic,
        });
        self.held.registration.closed(close);
        let outcome = Outcome::TunnelClosed(close);
        metrics.closed(outcome);
        metrics
            .tunnel_duration
            .observe(tunnel.start.established.elapsed().as_secs_f64());
        self.held.series.tunnels_active.dec();
        if self.is_logged {
            metrics.in_band_disconnects.inc();
        }
        let [client, target] = tunnel.last_rtt().map(Option::unwrap_or_default);
        telemetry.access_log.write(&AccessLine {
            answered: if self.is_logged {
                AnswerKind::Ssh
            } else {
                AnswerKind::Http
            },
            bytes_sent: tunnel.meter.bytes(Direction::Download),
            bytes_received: tunnel.meter.bytes(Direction::Upload),
            client_rtt_ms: millis(client.rtt),
            client_retransmits: client.retransmits,
            target_rtt_ms: millis(target.rtt),
            target_retransmits: target.retransmits,
            operator: tunnel.close_reason().unwrap_or_default(),
            is_resumable: tunnel.open.is_resumable(),
            ..AccessLine::new(&tunnel.facts, "close", Some(outcome))
        });
    }
}

/// The inspector of a tunnel's first bytes with `allowlist.report_only`: counts and notes the first side that does not
/// begin as SSH does.
#[derive(Debug)]
pub(super) struct NotSshReporter {
    seen: Arc<SshPeers>,
    metrics: Metrics,
}

impl NotSshReporter {
    /// Counts and notes that side, unless a side was noted already.
    fn refuses(&self, side: Side) {
        if self.seen.not_ssh.set(side).is_ok() {
            self.metrics.report_only_refusals.count(["ssh_only"]);
        }
    }
}

impl InspectPrefix for NotSshReporter {
    fn inspect(&self, direction: Direction, beginning: &[u8]) -> ControlFlow<()> {
        let side = direction.sender();
        match identification::read(beginning, side) {
            Ok(None) => return ControlFlow::Continue(()),
            Ok(Some(line)) => self.seen.identified(side, Software::parse(line.software)),
            Err(NotSsh) => self.refuses(side),
        }
        ControlFlow::Break(())
    }
}

/// An open connection in the gauges.
#[derive(Debug)]
struct Connection<'a> {
    metrics: &'a Metrics,
}

impl<'a> Connection<'a> {
    /// Counts a connection that was accepted.
    fn open(metrics: &'a Metrics) -> Self {
        metrics.connections_accepted.inc();
        metrics.connections_active.inc();
        Self { metrics }
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.metrics.connections_active.dec();
    }
}

/// Characters of the log field `authorization.reason`: a reason of the API server names the binding and the role.
const MAX_REASON: usize = 512;
