//! One line of the access log.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use tracing::{Level, event};

use super::{Answered, millis};
use crate::access::User;
use crate::allowlist::Target;
use crate::authority::Authority;
use crate::outcome::{Outcome, Refusal};
use crate::ssh::identification::Software;
use crate::text::excerpt;
use crate::tls::{Identity, Peer};
use crate::tunnel::facts::Facts;
use crate::tunnel::ids::Id;
use crate::tunnel::legs::Trip;

/// What a line says of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// The beginning of a tunnel.
    Open,
    /// The end of a tunnel.
    Close,
    /// A refusal.
    Refuse,
}

impl Moment {
    /// The value of the field `event`.
    fn label(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Close => "close",
            Self::Refuse => "refuse",
        }
    }
}

/// The line of a connection or request, or of several that were refused.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) event: Moment,
    /// Those of the client and of the peer; `None` in a line of many clients.
    pub(super) addresses: Option<[IpAddr; 2]>,
    /// 0 in a line of several.
    pub(super) client_port: u16,
    pub(super) tls: Option<&'a Peer>,
    pub(super) user: Option<&'a User>,
    pub(super) authorization: &'a str,
    pub(super) http: &'static str,
    pub(super) authority: Option<&'a Authority>,
    /// The client's and the target's.
    pub(super) software: [Option<&'a Software>; 2],
    pub(super) upstream: Option<SocketAddr>,
    /// The node of that address.
    pub(super) node: &'a str,
    pub(super) target: Option<&'a Target>,
    /// `None` at the beginning of a tunnel.
    pub(super) outcome: Option<Outcome>,
    pub(super) answered: Answered,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) duration_ms: f64,
    pub(super) dial_ms: f64,
    /// The round trips of the client and of the target, as last seen.
    pub(super) trips: [Option<Trip>; 2],
    /// Why an operator has ended the tunnel.
    pub(super) operator: &'a str,
    /// Whether the session in the tunnel outlives it.
    pub(super) is_resumable: bool,
    /// `None` in a line of several.
    pub(super) id: Option<Id>,
    /// The connections or requests that the line stands for.
    pub(super) count: u64,
}

impl<'a> Line<'a> {
    /// The line of a connection, request or tunnel without bytes, up to now, that was answered by HTTP.
    pub(super) fn of(facts: &'a Facts, event: Moment, outcome: Option<Outcome>) -> Self {
        Self {
            event,
            addresses: Some([facts.client.ip(), facts.peer.ip()]),
            client_port: facts.client.port(),
            tls: facts.tls.as_deref(),
            user: facts.user.as_deref(),
            authorization: facts.authorization.as_deref().unwrap_or_default(),
            http: facts.http,
            authority: facts.authority.as_ref(),
            software: facts.software(),
            upstream: facts.upstream,
            node: &facts.node,
            target: facts.target.as_deref(),
            outcome,
            answered: Answered::Http,
            sent: 0,
            received: 0,
            duration_ms: millis(facts.accepted.elapsed()),
            dial_ms: facts.dial_ms,
            trips: [None; 2],
            operator: "",
            is_resumable: false,
            id: Some(facts.id),
            count: 1,
        }
    }

    /// The line of several refusals of one client; without addresses, of many.
    pub(super) fn of_several(addresses: Option<[IpAddr; 2]>, refusal: Refusal, count: u64) -> Self {
        Self {
            event: Moment::Refuse,
            addresses,
            client_port: 0,
            tls: None,
            user: None,
            authorization: "",
            http: "",
            authority: None,
            software: [None, None],
            upstream: None,
            node: "",
            target: None,
            outcome: Some(Outcome::Refused(refusal)),
            answered: Answered::Not,
            sent: 0,
            received: 0,
            duration_ms: 0.0,
            dial_ms: 0.0,
            trips: [None; 2],
            operator: "",
            is_resumable: false,
            id: None,
            count,
        }
    }

    /// Writes every field every time, so that a log pipeline needs no cases. Their names are an interface.
    pub(super) fn write(&self) {
        let [client, peer] = self.addresses.map_or([None; 2], |both| both.map(Some));
        let [client_software, target_software] = self.software;
        let [client_trip, target_trip] = self.trips;
        let identity = self.tls.and_then(|peer| peer.identity.as_ref());
        macro_rules! line {
            ($level:expr) => {
                event!(
                    target: ACCESS,
                    $level,
                    client.address = %OrEmpty(client),
                    client.port = self.client_port,
                    network.peer.address = %OrEmpty(peer),
                    tls.version = self.tls.map_or("", |peer| peer.version),
                    tls.client.subject = identity.map_or("", |identity| &identity.subject),
                    tls.client.names = identity.map(Identity::listed_names).unwrap_or_default(),
                    user.name = self.user.map(|user| excerpt(&user.name, LONGEST_NAME)).unwrap_or_default(),
                    user.groups = self.user.map(groups).unwrap_or_default(),
                    user.id = self.user.and_then(|user| user.uid.as_deref()).map(|id| excerpt(id, LONGEST_NAME)).unwrap_or_default(),
                    auth.method = self.user.map_or("", |user| user.method.label()),
                    authorization.reason = self.authorization,
                    http.version = self.http,
                    server.address = self.authority.map_or("", Authority::host),
                    server.port = self.authority.map_or(0, Authority::port),
                    client.software = %OrEmpty(client_software),
                    upstream.address = %OrEmpty(self.upstream),
                    upstream.node = self.node,
                    upstream.software = %OrEmpty(target_software),
                    target.namespace = self.target.map_or("", |target| &target.id().namespace),
                    target.service = self.target.map_or("", |target| &target.id().service),
                    event = self.event.label(),
                    status = self.outcome.map_or(ESTABLISHED, Outcome::status),
                    reason = self.outcome.map_or("", Outcome::reason),
                    closed_by = self.outcome.map_or("", |outcome| outcome.by().label()),
                    bytes_sent = self.sent,
                    bytes_received = self.received,
                    duration_ms = self.duration_ms,
                    dial_ms = self.dial_ms,
                    client.rtt_ms = client_trip.map_or(0.0, |trip| millis(trip.rtt)),
                    client.retransmits = client_trip.map_or(0, |trip| trip.retransmits),
                    upstream.rtt_ms = target_trip.map_or(0.0, |trip| millis(trip.rtt)),
                    upstream.retransmits = target_trip.map_or(0, |trip| trip.retransmits),
                    tunnel.resumable = self.is_resumable,
                    answered = self.answered.label(),
                    operator.reason = self.operator,
                    tunnel_id = %OrEmpty(self.id),
                    count = self.count,
                )
            };
        }
        // DEBUG: a load balancer's port probes would drown the rest.
        if self.outcome == Some(Outcome::Refused(Refusal::NoRequest)) {
            line!(Level::DEBUG);
        } else {
            line!(Level::INFO);
        }
    }
}

/// The groups between commas, in so far as they fit.
fn groups(user: &User) -> String {
    let mut listed = String::new();
    for group in &user.groups {
        let group = excerpt(group, LONGEST_NAME);
        if listed.len() + group.len() > LONGEST_GROUPS {
            listed.push_str(",…");
            break;
        }
        if !listed.is_empty() {
            listed.push(',');
        }
        listed.push_str(&group.replace(',', "\\,"));
    }
    listed
}

/// The status of a tunnel.
const ESTABLISHED: u16 = 200;
/// Characters of a user's name or id, and of one group.
const LONGEST_NAME: usize = 256;
/// Bytes of all groups together.
const LONGEST_GROUPS: usize = 1024;

/// The tracing target of access lines, which separates them from messages.
pub const ACCESS: &str = "access";

/// Displays nothing for `None`.
struct OrEmpty<T>(Option<T>);

impl<T: fmt::Display> fmt::Display for OrEmpty<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |value| value.fmt(f))
    }
}
