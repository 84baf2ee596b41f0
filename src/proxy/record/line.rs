//! One line of the access log.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::net::{IpAddr, SocketAddr};

use serde::Serialize;
use tracing::{Level, event};

use super::millis;
use crate::base::authority::Authority;
use crate::base::text::excerpt;
use crate::daemon::logging::access_line::ACCESS;
use crate::net::tls::{Identity, Peer};
use crate::policy::access::User;
use crate::policy::allowlist::Target;
use crate::proxy::open_tunnels::facts::{Facts, Id};
use crate::proxy::open_tunnels::open_tunnel::Trip;
use crate::tunnel::outcome::{Malformed, Outcome, Refusal};
use crate::tunnel::ssh::identification::Software;

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
    /// The user whose password the request claims to have.
    pub(super) claimed: &'a str,
    pub(super) authorization: Cow<'a, str>,
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
            claimed: facts.claimed.as_deref().unwrap_or_default(),
            authorization: facts.authorization(),
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
    pub(super) fn of_several(addresses: Option<[IpAddr; 2]>, refusal: Refusal, count: u64, claimed: &'a str) -> Self {
        Self {
            event: Moment::Refuse,
            addresses,
            client_port: 0,
            tls: None,
            user: None,
            claimed,
            authorization: Cow::Borrowed(""),
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
    ///
    /// They are one field of the event: by tracing's visitor each would pass three more writers, at three times the cost.
    pub(super) fn write(&self) {
        let members = self.members();
        // The field's name is access_line::MEMBERS, which a macro cannot take.
        let members = members.as_str();
        // DEBUG: a load balancer's port probes would drown the rest.
        if self.outcome == Some(Outcome::Refused(Refusal::NoRequest)) {
            event!(target: ACCESS, Level::DEBUG, members = members);
        } else {
            event!(target: ACCESS, Level::INFO, members = members);
        }
    }

    fn members(&self) -> Members {
        let [client, peer] = self.addresses.map_or([None; 2], |both| both.map(Some));
        let [client_software, target_software] = self.software;
        let [client_trip, target_trip] = self.trips;
        let identity = self.tls.and_then(|peer| peer.identity.as_ref());
        let shortened = |name| excerpt(name, LONGEST_NAME);
        let mut members = Members::new();
        members! { members;
            display_unescaped "client.address" = client,
            plain "client.port" = self.client_port,
            display_unescaped "network.peer.address" = peer,
            text "tls.version" = self.tls.map_or("", |peer| peer.version),
            text "tls.client.subject" = identity.map_or("", |identity| &identity.subject),
            text "tls.client.names" = &identity.map(Identity::listed_names).unwrap_or_default(),
            text "user.name" = &self.user.map(|user| shortened(&user.name)).unwrap_or_default(),
            text "user.groups" = &self.user.map(groups).unwrap_or_default(),
            text "user.id" = &self.user.and_then(|user| user.uid.as_deref()).map(shortened).unwrap_or_default(),
            text "auth.method" = self.user.map_or("", |user| user.method.label()),
            text "auth.claimed_user" = self.claimed,
            text "authorization.reason" = &self.authorization,
            text "http.version" = self.http,
            text "server.address" = self.authority.map_or("", Authority::host),
            plain "server.port" = self.authority.map_or(0, Authority::port),
            display "client.software" = client_software,
            display_unescaped "upstream.address" = self.upstream,
            text "upstream.node" = self.node,
            display "upstream.software" = target_software,
            text "target.namespace" = self.target.map_or("", |target| &target.id().namespace),
            text "target.service" = self.target.map_or("", |target| &target.id().service),
            text "event" = self.event.label(),
            plain "status" = self.outcome.map_or(ESTABLISHED, Outcome::status),
            text "reason" = self.outcome.map_or("", Outcome::reason),
            text "closed_by" = self.outcome.map_or("", |outcome| outcome.by().label()),
            plain "bytes_sent" = self.sent,
            plain "bytes_received" = self.received,
            plain "duration_ms" = self.duration_ms,
            plain "dial_ms" = self.dial_ms,
            plain "client.rtt_ms" = client_trip.map_or(0.0, |trip| millis(trip.rtt)),
            plain "client.retransmits" = client_trip.map_or(0, |trip| trip.retransmits),
            plain "upstream.rtt_ms" = target_trip.map_or(0.0, |trip| millis(trip.rtt)),
            plain "upstream.retransmits" = target_trip.map_or(0, |trip| trip.retransmits),
            plain "tunnel.resumable" = self.is_resumable,
            text "answered" = self.answered.label(),
            text "operator.reason" = self.operator,
            display_unescaped "tunnel_id" = self.id,
            plain "count" = self.count,
        }
        members
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

/// The way in which a client was told what becomes of its request: the log field `answered`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// Not at all.
    Not,
    /// By a status of HTTP.
    Http,
    /// In band, by an SSH disconnect.
    Ssh,
}

impl Answered {
    /// Returns how a refusal without an in-band message is answered: a client that speaks SSH to the port is answered in SSH.
    pub fn of(refusal: Refusal) -> Self {
        if refusal == Refusal::Malformed(Malformed::Ssh) {
            Self::Ssh
        } else if refusal.is_answered() {
            Self::Http
        } else {
            Self::Not
        }
    }

    /// The value of the log field.
    pub fn label(self) -> &'static str {
        match self {
            Self::Not => "",
            Self::Http => "http",
            Self::Ssh => "ssh",
        }
    }
}

/// Members of a JSON object (RFC 8259 section 4), each with a comma in front of it.
///
/// A key is given with its punctuation, as by [`members!`]: it is one piece of memory to copy.
#[derive(Debug)]
struct Members(Vec<u8>);

/// Writes each member by the method of [`Members`] that its kind names.
macro_rules! members {
    ($to:expr; $($kind:ident $key:literal = $value:expr,)*) => {
        $($to.$kind(concat!(",\"", $key, "\":"), $value);)*
    };
}
// By path, so that the line may stand above its macro.
use members;

impl Members {
    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(USUAL_BYTES))
    }

    /// A string that may have any characters.
    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.json(key, value);
    }

    /// A number, or true or false.
    pub(super) fn plain(&mut self, key: &str, value: impl Serialize) {
        self.json(key, &value);
    }

    /// The string as which the value shows itself; an empty one for `None`. It may have any characters.
    pub(super) fn display(&mut self, key: &str, value: Option<impl fmt::Display>) {
        match value {
            Some(value) => self.json(key, &value.to_string()),
            None => self.json(key, ""),
        }
    }

    /// The same without escaping, for addresses and ids: only for what cannot have a quotation mark, a backslash or a control.
    pub(super) fn display_unescaped(&mut self, key: &str, value: Option<impl fmt::Display>) {
        self.0.extend_from_slice(key.as_bytes());
        self.0.push(b'"');
        if let Some(value) = value {
            // Writing to memory does not fail.
            write!(Text(&mut self.0), "{value}").ok();
        }
        self.0.push(b'"');
    }

    /// All of them.
    pub(super) fn as_str(&self) -> &str {
        // They are UTF-8, since each piece is.
        str::from_utf8(&self.0).unwrap_or_default()
    }

    fn json(&mut self, key: &str, value: &(impl Serialize + ?Sized)) {
        self.0.extend_from_slice(key.as_bytes());
        // Writing to memory does not fail, and neither does a string or a number.
        serde_json::to_writer(&mut self.0, value).ok();
    }
}

/// Text is appended to the bytes.
struct Text<'a>(&'a mut Vec<u8>);

impl fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Most lines are shorter. A larger piece of memory would not come from a thread's own stock of glibc.
const USUAL_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn members_are_those_of_a_json_object() {
        let mut members = Members::new();
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        members! { members;
            text "said" = "a\"b\\c\n\u{1}\u{7f}é\u{2028}",
            text "empty" = "",
            plain "most" = u64::MAX,
            plain "port" = 22_u16,
            plain "milliseconds" = 0.25_f64,
            plain "whole" = 0.0_f64,
            plain "resumable" = true,
            display "software" = Some("say \"x\""),
            display "nothing" = None::<&str>,
            display_unescaped "address" = Some(address),
            display_unescaped "absent" = None::<IpAddr>,
            text "long" = &"x".repeat(2 * USUAL_BYTES),
        }
        let object = format!("{{{}}}", members.as_str().strip_prefix(',').unwrap());
        let read: serde_json::Value = serde_json::from_str(&object).unwrap();
        let expected = serde_json::json!({
            "said": "a\"b\\c\n\u{1}\u{7f}é\u{2028}",
            "empty": "",
            "most": u64::MAX,
            "port": 22,
            "milliseconds": 0.25,
            "whole": 0.0,
            "resumable": true,
            "software": "say \"x\"",
            "nothing": "",
            "address": "192.0.2.1",
            "absent": "",
            "long": "x".repeat(2 * USUAL_BYTES),
        });
        assert_eq!(read, expected);
    }
}
