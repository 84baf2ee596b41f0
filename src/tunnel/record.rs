//! Accounts for one connection: gauges while it is open, and one counter, one histogram and one line at its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub use self::access_log::AccessLog;
pub use self::answered::Answered;
use self::gauged::Connection;
pub use self::ids::{Id, Ids};
pub use self::line::ACCESS;
use self::line::Line;
use self::reports::{Report, Seen};
pub use self::reports::{Rule, Watch};
use crate::access::User;
use crate::allowlist::Target;
use crate::authority::Authority;
use crate::direction::Direction;
use crate::drain::Open;
use crate::metrics::{Metrics, TargetSeries};
use crate::net::dial::Upstream;
use crate::outcome::{Close, Denial, Outcome, Reason, Refusal, Side};
use crate::relay::meter::Meter;
use crate::ssh::identification::Software;
use crate::text::excerpt;
use crate::tls::{self, Identity, Peer, Tls};

mod access_log;
mod answered;
mod gauged;
mod ids;
mod line;
mod reports;

/// The metrics and the access log, which account for connections.
#[derive(Clone, Copy, Debug)]
pub struct Telemetry<'a> {
    /// The process's metrics.
    pub metrics: &'a Metrics,
    /// The process's access log.
    pub access_log: &'a AccessLog,
}

/// The account of what may become a tunnel: a connection from its accept on, or a request on an HTTP/2 connection. Its
/// drop writes the counts and the access line, so that a panic is accounted for too.
#[derive(Debug)]
pub struct Record<'a> {
    telemetry: Telemetry<'a>,
    id: Id,
    peer: SocketAddr,
    client: SocketAddr,
    accepted: Instant,
    authority: Option<Authority>,
    target: Option<Arc<Target>>,
    upstream: Option<SocketAddr>,
    /// 0 when nothing was dialled.
    dial_ms: f64,
    /// What the sides have said of themselves. Not in place: it would make every pending request larger.
    seen: Arc<Seen>,
    tls: Option<Arc<Peer>>,
    user: Option<Arc<User>>,
    /// Why the user may reach the target, or why not.
    authorization: Option<Box<str>>,
    http: &'static str,
    established: Option<Instant>,
    sent: u64,
    received: u64,
    is_resumable: bool,
    outcome: Option<Outcome>,
    answered: Answered,
    accounted: bool,
    /// `None` for a request on an HTTP/2 connection, which has a record of its own.
    connection: Option<Connection<'a>>,
}

impl<'a> Record<'a> {
    /// The record of a connection that was accepted at that moment.
    pub fn open(telemetry: Telemetry<'a>, id: Id, peer: SocketAddr, accepted: Instant) -> Box<Self> {
        let mut record = Self::begin(telemetry, id, peer, accepted);
        record.connection = Some(Connection::open(telemetry.metrics));
        record
    }

    /// The record of a request on this HTTP/2 connection, which begins now.
    pub fn request(&self, id: Id) -> Box<Self> {
        let mut request = Self::begin(self.telemetry, id, self.peer, Instant::now());
        request.client = self.client;
        request.tls.clone_from(&self.tls);
        request
    }

    fn begin(telemetry: Telemetry<'a>, id: Id, peer: SocketAddr, accepted: Instant) -> Box<Self> {
        Box::new(Self {
            telemetry,
            id,
            peer,
            client: peer,
            accepted,
            authority: None,
            target: None,
            upstream: None,
            dial_ms: 0.0,
            seen: Arc::default(),
            tls: None,
            user: None,
            authorization: None,
            http: "",
            established: None,
            sent: 0,
            received: 0,
            is_resumable: false,
            outcome: None,
            answered: Answered::Not,
            accounted: false,
            connection: None,
        })
    }

    /// The connection's HTTP/2 requests have accounted for themselves: the connection adds neither count nor line.
    pub fn leave_to_requests(&mut self) {
        self.accounted = true;
    }

    /// The client's address, from the PROXY protocol header of a trusted peer.
    pub fn set_client(&mut self, client: SocketAddr) {
        self.client = client;
    }

    /// The HTTP version that the client speaks: `1` or `2`.
    pub fn set_http_version(&mut self, http: &'static str) {
        self.http = http;
    }

    /// The TLS session, with the client's identity if it has shown a certificate.
    pub fn set_tls(&mut self, accepted: &tls::Accepted) {
        self.telemetry.metrics.tls_accepted(accepted);
        self.tls = Some(Arc::clone(&accepted.peer));
    }

    /// The peer of the connection.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The TLS session.
    pub fn tls_peer(&self) -> Option<&Arc<Peer>> {
        self.tls.as_ref()
    }

    /// The user of the request.
    pub fn set_user(&mut self, user: Arc<User>) {
        self.user = Some(user);
    }

    /// Why the user may reach the target.
    pub fn set_reason(&mut self, reason: &str) {
        self.authorization = Some(excerpt(reason, LONGEST_REASON).into());
    }

    /// Why the request would be refused, whether it is or not.
    pub fn set_authorization(&mut self, denial: &Denial) {
        self.set_reason(&match denial.details() {
            Some(details) => format!("{}: {details}", denial.phrase()),
            None => denial.phrase().to_owned(),
        });
    }

    /// The identity of the client's certificate.
    pub fn identity(&self) -> Option<&Identity> {
        self.tls.as_ref()?.identity.as_ref()
    }

    /// Whether a new handshake would accept the client's certificate: on a long HTTP/2 connection it may have expired
    /// or been revoked since.
    pub fn is_trusted(&self, tls: &Tls) -> bool {
        self.tls.as_ref().is_none_or(|peer| tls.trusts(peer))
    }

    /// The authority that the request names.
    pub fn set_authority(&mut self, authority: Authority) {
        self.authority = Some(authority);
    }

    /// The allowlist's entry for the authority.
    pub fn set_target(&mut self, target: Arc<Target>) {
        self.target = Some(target);
    }

    /// Reports that a rule would have refused what is served.
    pub fn report(&self, rule: Rule, why: &str) {
        self.reporter().write(rule, why);
    }

    fn reporter(&self) -> Report {
        let Telemetry { metrics, access_log } = self.telemetry;
        Report {
            client: self.client.ip(),
            asked: self.authority.as_ref().map(Authority::to_string).unwrap_or_default(),
            target: self
                .target
                .as_ref()
                .map(|target| target.id().to_string())
                .unwrap_or_default(),
            id: self.id,
            metrics: metrics.clone(),
            reports: Arc::clone(&access_log.reports),
        }
    }

    /// The end of the dial, which took that long.
    pub fn dialled(&mut self, took: Duration, result: Result<&Upstream, &Refusal>) {
        self.telemetry.metrics.dial_duration.observe(took.as_secs_f64());
        self.dial_ms = millis(took);
        self.upstream = result.ok().map(|upstream| upstream.address);
    }

    /// How the client was told.
    pub fn set_answered(&mut self, answered: Answered) {
        self.answered = answered;
    }

    /// The id of the access line.
    pub fn id(&self) -> Id {
        self.id
    }

    /// The refusal, accounted for at once: the client, which has its answer, may take its time to leave.
    pub fn refused(&mut self, refusal: Refusal) {
        self.outcome = Some(Outcome::Refused(refusal));
        self.account();
    }

    /// The record of the tunnel that the answered request has become.
    pub fn established(mut self: Box<Self>, target: &Target, open: Open) -> TunnelRecord<'a> {
        let now = Instant::now();
        self.telemetry.metrics.answered(None);
        self.telemetry
            .metrics
            .handshake_duration
            .observe((now - self.accepted).as_secs_f64());
        self.established = Some(now);
        self.answered = Answered::Http;
        let series = Arc::clone(target.series(self.telemetry.metrics));
        series.tunnels_active.inc();
        TunnelRecord {
            meter: Meter::new(Arc::clone(&series.totals)),
            series,
            connection: self,
            open,
        }
    }

    fn account(&mut self) {
        if std::mem::replace(&mut self.accounted, true) {
            return;
        }
        let now = Instant::now();
        let lost = match self.established {
            Some(_) => Outcome::Closed(Close {
                by: Side::Proxy,
                reason: Reason::Panic,
            }),
            None => Outcome::Refused(Refusal::Internal),
        };
        let outcome = self.outcome.unwrap_or(lost);
        if self.answered == Answered::Ssh {
            self.telemetry.metrics.answers_in_band.inc();
        }
        match self.established {
            Some(established) => {
                self.telemetry.metrics.closed(outcome);
                self.telemetry
                    .metrics
                    .tunnel_duration
                    .observe((now - established).as_secs_f64());
            }
            None => {
                self.telemetry.metrics.answered(Some(outcome));
                self.telemetry
                    .metrics
                    .handshake_duration
                    .observe((now - self.accepted).as_secs_f64());
            }
        }
        self.write_line(outcome);
    }

    fn write_line(&self, outcome: Outcome) {
        let [client_software, target_software] = &self.seen.software;
        self.telemetry.access_log.write(&Line {
            addresses: Some([self.client.ip(), self.peer.ip()]),
            client_port: self.client.port(),
            tls: self.tls.as_deref(),
            user: self.user.as_deref(),
            authorization: self.authorization.as_deref().unwrap_or_default(),
            http: self.http,
            authority: self.authority.as_ref(),
            software: [client_software.get(), target_software.get()],
            upstream: self.upstream,
            target: self.target.as_deref(),
            outcome,
            answered: self.answered,
            sent: self.sent,
            received: self.received,
            duration_ms: millis(self.accepted.elapsed()),
            dial_ms: self.dial_ms,
            is_resumable: self.is_resumable,
            id: Some(self.id),
            count: 1,
        });
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        self.account();
    }
}

/// The account of an established tunnel; its drop ends it.
#[derive(Debug)]
pub struct TunnelRecord<'a> {
    /// The tunnel's byte counts.
    pub meter: Meter,
    series: Arc<TargetSeries>,
    /// Boxed: unused until the tunnel ends.
    connection: Box<Record<'a>>,
    /// The tunnel in a drain.
    pub open: Open,
}

impl TunnelRecord<'_> {
    /// The end of the tunnel, which the client may have been told in band.
    pub fn closed(&mut self, close: Close, is_told: bool) {
        self.connection.outcome = Some(Outcome::Closed(close));
        if is_told {
            self.connection.answered = Answered::Ssh;
        }
    }

    /// The authority that the request names.
    pub fn authority(&self) -> Option<&Authority> {
        self.connection.authority.as_ref()
    }

    /// The SSH software of one side, from its identification.
    pub fn identified(&self, side: Side, software: Software) {
        self.connection
            .seen
            .identified(side, software, self.connection.telemetry.metrics);
    }

    /// What sees in passing whether `ssh_only` would refuse the tunnel, and reports it.
    pub fn watch(&self) -> Watch {
        Watch::new(self.connection.reporter(), Arc::clone(&self.connection.seen))
    }

    /// The time since the 200.
    pub fn lasted(&self) -> Duration {
        self.connection
            .established
            .map(|since| since.elapsed())
            .unwrap_or_default()
    }

    /// The tunnel's id.
    pub fn id(&self) -> Id {
        self.connection.id
    }
}

impl Drop for TunnelRecord<'_> {
    fn drop(&mut self) {
        self.connection.sent = self.meter.bytes(Direction::Download);
        self.connection.received = self.meter.bytes(Direction::Upload);
        self.connection.is_resumable = self.open.is_resumable();
        self.series.tunnels_active.dec();
    }
}

/// Characters of the log field `authorization.reason`: the API server's names the binding and the role.
const LONGEST_REASON: usize = 512;

/// Milliseconds, to the microsecond.
#[expect(
    clippy::cast_precision_loss,
    reason = "an f64 counts microseconds exactly for 285 years"
)]
fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}
