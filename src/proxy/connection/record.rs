//! Records a connection or request, and its tunnel: gauges while it is open, and a counter, a histogram and an access
//! line at its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::in_band::close_phrase;
use super::shared::Shared;
use crate::base::text::excerpt;
use crate::net::tls::{self, Tls};
use crate::policy::allowlist::{Endpoints, Target};
use crate::protocol::ssh_disconnect::MAX_BYTES;
use crate::proxy::metrics::Metrics;
use crate::proxy::open_tunnels::events::{Event, RefusedRequest};
use crate::proxy::open_tunnels::open_tunnel::OpenTunnel;
use crate::proxy::open_tunnels::registry::Registration;
use crate::proxy::record::line::{AccessLine, AnswerKind, millis};
use crate::proxy::record::{Id, RequestInfo, WOULD_BE_REFUSED};
use crate::tunnel::dial::{DialError, Upstream};
use crate::tunnel::direction::Direction;
use crate::tunnel::drain::TunnelGuard;
use crate::tunnel::outcome::{Close, CloseReason, Outcome, Refusal, RefusalReason, Side};
use crate::tunnel::relay::OnClose;

/// The record of a pending request: a connection from its accept on, or a request on an HTTP/2 connection. Its
/// drop updates the metrics and writes the access line, also after a panic.
#[derive(Debug)]
pub(super) struct RequestRecord<'a> {
    shared: &'a Shared,
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
    pub(super) fn open(shared: &'a Shared, id: Id, peer: SocketAddr, accepted: Instant) -> Box<Self> {
        let mut record = Self::begin(shared, RequestInfo::new(id, [peer; 2], accepted));
        record.connection = Some(Connection::open(&shared.metrics));
        record
    }

    /// Creates the record of a request on this HTTP/2 connection.
    pub(super) fn request(&self, id: Id) -> Box<Self> {
        let mut info = RequestInfo::new(id, [self.info.peer, self.info.client], Instant::now());
        info.tls.clone_from(&self.info.tls);
        info.door = self.info.door;
        info.locals = self.info.locals;
        Self::begin(self.shared, info)
    }

    fn begin(shared: &'a Shared, info: RequestInfo) -> Box<Self> {
        Box::new(Self {
            shared,
            info,
            refusal: None,
            answered: AnswerKind::None,
            accounted: false,
            connection: None,
        })
    }

    /// Makes the drop write no counts and no line: the connection's HTTP/2 requests have records of their own.
    pub(super) fn discard(&mut self) {
        self.accounted = true;
    }

    /// Sets the TLS session, with the client's identity if it has presented a certificate.
    pub(super) fn set_tls(&mut self, accepted: &tls::CompletedHandshake) {
        self.shared.metrics.tls_accepted(accepted);
        self.info.tls = Some(Arc::clone(&accepted.client));
    }

    /// Sets why the user may reach the target.
    pub(super) fn set_reason(&mut self, reason: &str) {
        self.info.authorization = Some(excerpt(reason, MAX_REASON).into());
    }

    /// Records why the request is refused, or why it would be, unless the denial `counts`.
    pub(super) fn set_authorization(&mut self, refusal: &Refusal, counts: bool) {
        let would_be = if counts { "" } else { WOULD_BE_REFUSED };
        self.set_reason(&match refusal.details() {
            Some(details) => format!("{would_be}{}: {details}", refusal.phrase()),
            None => format!("{would_be}{}", refusal.phrase()),
        });
    }

    /// Returns whether a new handshake would accept the client's certificate, which may have expired or been revoked
    /// during a long HTTP/2 connection.
    pub(super) fn is_trusted(&self, tls: &Tls) -> bool {
        self.info.tls.as_ref().is_none_or(|peer| tls.trusts(peer))
    }

    /// Records the result of a dial of one of `endpoints`, and how long it took.
    pub(super) fn note_dial<S>(
        &mut self,
        took: Duration,
        endpoints: &Endpoints,
        result: Result<&Upstream<S>, &DialError>,
    ) {
        self.shared.metrics.dial_duration.observe(took.as_secs_f64());
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

    /// Records that the client has its list of names, and writes the line.
    pub(super) fn listed(&mut self) {
        self.accounted = true;
        self.shared.metrics.listed();
        let line = AccessLine::new(&self.info, "list", None);
        self.shared.access_log.write(&line);
    }

    /// Turns the record into that of the tunnel to `target`, and writes the open line.
    pub(super) fn established(mut self: Box<Self>, target: &Target, open: TunnelGuard) -> Box<TunnelRecord<'a>> {
        self.accounted = true;
        self.observe_answer(None);
        let shared = self.shared;
        let tunnel = OpenTunnel::new(self.info.take(), target.series(&shared.metrics.targets), open);
        tunnel.series.tunnels_active.inc();
        let record = Box::new(TunnelRecord {
            shared,
            registration: shared.registry.enter(Arc::new(tunnel)),
            // Replaced at every end but one.
            close: Close {
                by: Side::Proxy,
                reason: CloseReason::Panic,
            },
            answered: AnswerKind::Http,
            _connection: self.connection.take(),
        });
        let line = AccessLine::new(&record.tunnel().info, "open", None);
        shared.access_log.write(&line);
        record
    }

    fn observe_answer(&self, refused: Option<Outcome>) {
        let Metrics { handshake_duration, .. } = &self.shared.metrics;
        self.shared.metrics.answered(refused);
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
            self.shared.metrics.in_band_disconnects.inc();
        }
        self.shared.registry.refusals.note(&self.info, outcome);
        let refused = || Event::Refused(Arc::new(RefusedRequest::new(&self.info, outcome)));
        self.shared.registry.events.publish(refused);
        let Shared { access_log, .. } = self.shared;
        access_log.refused(&self.info, refusal, self.answered);
    }
}

impl Drop for RequestRecord<'_> {
    fn drop(&mut self) {
        self.account();
    }
}

/// The record of an established tunnel; its drop writes the close line. Boxed, to keep the future of an idle tunnel
/// small.
#[derive(Debug)]
pub(super) struct TunnelRecord<'a> {
    pub(super) shared: &'a Shared,
    registration: Registration<'a>,
    close: Close,
    /// The way in which the client was notified of the close, if at all.
    answered: AnswerKind,
    /// `None` for a request on an HTTP/2 connection: the connection has a record of its own.
    _connection: Option<Connection<'a>>,
}

impl TunnelRecord<'_> {
    /// Returns the tunnel as operators see it.
    pub(super) fn tunnel(&self) -> &OpenTunnel {
        self.registration.tunnel()
    }

    /// Returns the sentence for the client of a tunnel that the proxy has ended; `None` if a peer has.
    pub(super) fn closing_sentence(&self) -> Option<String> {
        let tunnel = self.tunnel();
        let target = tunnel.info.authority.as_ref().map(ToString::to_string);
        let phrase = close_phrase(self.close.reason, tunnel.close_reason().unwrap_or_default());
        let sentence = || phrase.sentence(&target.unwrap_or_default(), Some(&tunnel.info.id), MAX_BYTES);
        (self.close.by == Side::Proxy).then(sentence)
    }

    /// Sets the close of the tunnel: an answer in SSH was sent to the client in band.
    pub(super) fn closed(&mut self, close: Close, answered: AnswerKind) {
        (self.close, self.answered) = (close, answered);
    }
}

impl OnClose for TunnelRecord<'_> {
    fn before_close(&self) {
        self.tunnel().look_at_end(&self.shared.registry.sock_diag);
    }
}

impl Drop for TunnelRecord<'_> {
    fn drop(&mut self) {
        let (tunnel, metrics) = (self.tunnel(), &self.shared.metrics);
        self.registration.closed(self.close);
        let outcome = Outcome::TunnelClosed(self.close);
        metrics.closed(outcome);
        metrics
            .tunnel_duration
            .observe(tunnel.start.established.elapsed().as_secs_f64());
        tunnel.series.tunnels_active.dec();
        if self.answered == AnswerKind::Ssh {
            metrics.in_band_disconnects.inc();
        }
        let [client, target] = tunnel.last_rtt().map(Option::unwrap_or_default);
        self.shared.access_log.write(&AccessLine {
            answered: self.answered,
            bytes_sent: tunnel.meter.bytes(Direction::Download),
            bytes_received: tunnel.meter.bytes(Direction::Upload),
            client_rtt_ms: millis(client.rtt),
            client_retransmits: client.retransmits,
            target_rtt_ms: millis(target.rtt),
            target_retransmits: target.retransmits,
            operator: tunnel.close_reason().unwrap_or_default(),
            is_resumable: tunnel.guard.is_resumable(),
            ..AccessLine::new(&tunnel.info, "close", Some(outcome))
        });
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
