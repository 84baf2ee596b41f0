//! One line of the access log.

use std::borrow::Cow;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::base::authority::Authority;
use crate::base::text::excerpt;
use crate::net::tls::CertificateNames;
use crate::policy::access::User;
use crate::policy::allowlist::Target;
use crate::proxy::record::{Door, Id, RequestInfo};
use crate::tunnel::dial::Errno;
use crate::tunnel::outcome::{Malformed, Outcome, RefusalReason};
use crate::tunnel::ssh::identification::Software;

/// The line of a connection or request, or of several that were refused. Every line has every field, so that a log
/// pipeline needs no cases. The fields' names are an interface.
#[derive(Debug, Default, Serialize)]
pub(in crate::proxy) struct AccessLine<'a> {
    #[serde(rename = "client.address", serialize_with = "or_empty")]
    pub(in crate::proxy) client: Option<IpAddr>,
    #[serde(rename = "client.port")]
    pub(in crate::proxy) client_port: u16,
    #[serde(rename = "network.peer.address", serialize_with = "or_empty")]
    pub(in crate::proxy) peer: Option<IpAddr>,
    #[serde(rename = "tls.version")]
    pub(in crate::proxy) tls_version: &'a str,
    #[serde(rename = "tls.client.subject")]
    pub(in crate::proxy) tls_subject: &'a str,
    #[serde(rename = "tls.client.names")]
    pub(in crate::proxy) tls_names: String,
    #[serde(rename = "user.name")]
    pub(in crate::proxy) user: String,
    #[serde(rename = "user.groups")]
    pub(in crate::proxy) groups: String,
    #[serde(rename = "user.id")]
    pub(in crate::proxy) uid: String,
    #[serde(rename = "auth.method")]
    pub(in crate::proxy) method: &'static str,
    /// The user whom the request claims to be, if its password was not accepted.
    #[serde(rename = "auth.claimed_user")]
    pub(in crate::proxy) claimed: &'a str,
    #[serde(rename = "authorization.reason")]
    pub(in crate::proxy) authorization: Cow<'a, str>,
    #[serde(rename = "http.version")]
    pub(in crate::proxy) http: &'static str,
    pub(in crate::proxy) door: Door,
    #[serde(rename = "server.address")]
    pub(in crate::proxy) host: &'a str,
    #[serde(rename = "server.port")]
    pub(in crate::proxy) port: u16,
    #[serde(rename = "client.software", serialize_with = "or_empty")]
    pub(in crate::proxy) client_software: Option<&'a Software>,
    #[serde(rename = "upstream.address", serialize_with = "or_empty")]
    pub(in crate::proxy) upstream: Option<SocketAddr>,
    #[serde(rename = "upstream.node")]
    pub(in crate::proxy) node: &'a str,
    #[serde(rename = "upstream.anchor")]
    pub(in crate::proxy) anchor: &'a str,
    #[serde(rename = "upstream.software", serialize_with = "or_empty")]
    pub(in crate::proxy) target_software: Option<&'a Software>,
    #[serde(rename = "target.namespace")]
    pub(in crate::proxy) namespace: &'a str,
    #[serde(rename = "target.service")]
    pub(in crate::proxy) service: &'a str,
    pub(in crate::proxy) event: &'static str,
    pub(in crate::proxy) status: u16,
    pub(in crate::proxy) reason: &'static str,
    pub(in crate::proxy) closed_by: &'static str,
    pub(in crate::proxy) bytes_sent: u64,
    pub(in crate::proxy) bytes_received: u64,
    pub(in crate::proxy) duration_ms: f64,
    pub(in crate::proxy) dial_ms: f64,
    #[serde(serialize_with = "or_empty")]
    pub(in crate::proxy) dial_error: Option<Errno>,
    #[serde(rename = "client.rtt_ms")]
    pub(in crate::proxy) client_rtt_ms: f64,
    #[serde(rename = "client.retransmits")]
    pub(in crate::proxy) client_retransmits: u32,
    #[serde(rename = "upstream.rtt_ms")]
    pub(in crate::proxy) target_rtt_ms: f64,
    #[serde(rename = "upstream.retransmits")]
    pub(in crate::proxy) target_retransmits: u32,
    /// True if the session in the tunnel outlives it.
    #[serde(rename = "tunnel.resumable")]
    pub(in crate::proxy) is_resumable: bool,
    pub(in crate::proxy) answered: AnswerKind,
    /// Why an operator has ended the tunnel.
    #[serde(rename = "operator.reason")]
    pub(in crate::proxy) operator: &'a str,
    #[serde(serialize_with = "or_empty")]
    pub(in crate::proxy) tunnel_id: Option<Id>,
    /// The connections or requests that the line is about.
    pub(in crate::proxy) count: u64,
}

impl<'a> AccessLine<'a> {
    /// Creates the line of a connection, request or tunnel: answered by HTTP, without bytes, with the duration up to
    /// now. The open line of a tunnel has no outcome.
    pub(in crate::proxy) fn new(info: &'a RequestInfo, event: &'static str, outcome: Option<Outcome>) -> Self {
        let identity = info.tls.as_ref().and_then(|peer| peer.identity.as_ref());
        let (user, target) = (info.user.as_deref(), info.target.as_deref().map(Target::id));
        let shortened = |name| excerpt(name, MAX_NAME);
        let [client_software, target_software] = info.software();
        Self {
            client: Some(info.client.ip()),
            client_port: info.client.port(),
            peer: Some(info.peer.ip()),
            tls_version: info.tls.as_ref().map_or("", |peer| peer.version),
            tls_subject: identity.map_or("", |identity| &identity.subject),
            tls_names: identity.map(CertificateNames::listed_names).unwrap_or_default(),
            user: user.map(|user| shortened(&user.name)).unwrap_or_default(),
            groups: user.map(groups).unwrap_or_default(),
            uid: user
                .and_then(|user| user.uid.as_deref())
                .map(shortened)
                .unwrap_or_default(),
            method: user.map_or("", |user| user.method.label()),
            claimed: info.claimed.as_deref().unwrap_or_default(),
            authorization: info.authorization(),
            http: info.http,
            door: info.door,
            host: info.authority.as_ref().map_or("", Authority::host),
            port: info.authority.as_ref().map_or(0, Authority::port),
            client_software,
            upstream: info.upstream,
            node: &info.node,
            anchor: &info.anchor,
            target_software,
            namespace: target.map_or("", |id| &id.namespace),
            service: target.map_or("", |id| &id.service),
            duration_ms: millis(info.accepted.elapsed()),
            dial_ms: info.dial_ms,
            dial_error: info.dial_error,
            answered: AnswerKind::Http,
            tunnel_id: Some(info.id),
            ..Self::without_info(event, outcome, 1)
        }
    }

    /// Creates the line of several refusals: of one client or, without addresses, of many clients.
    pub(in crate::proxy) fn summary(
        addresses: Option<[IpAddr; 2]>,
        refusal: RefusalReason,
        count: u64,
        claimed: &'a str,
    ) -> Self {
        let [client, peer] = addresses.map_or([None; 2], |both| both.map(Some));
        Self {
            client,
            peer,
            claimed,
            ..Self::without_info("refuse", Some(Outcome::Refused(refusal)), count)
        }
    }

    fn without_info(event: &'static str, outcome: Option<Outcome>, count: u64) -> Self {
        Self {
            event,
            status: outcome.map_or(ESTABLISHED, Outcome::status),
            reason: outcome.map_or("", Outcome::reason),
            closed_by: outcome.map_or("", |outcome| outcome.by().label()),
            count,
            ..Self::default()
        }
    }
}

/// Serializes the value as it displays itself; an empty string for `None`.
fn or_empty<S: Serializer>(value: &Option<impl Display>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_str(""),
    }
}

/// Returns milliseconds, to the microsecond.
#[expect(
    clippy::cast_precision_loss,
    reason = "an f64 counts microseconds exactly for 285 years"
)]
pub(in crate::proxy) fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}

/// Returns the groups, separated by commas, as many as fit.
fn groups(user: &User) -> String {
    let mut listed = String::new();
    for group in &user.groups {
        let group = excerpt(group, MAX_NAME);
        if listed.len() + group.len() > MAX_GROUPS {
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
const MAX_NAME: usize = 256;
/// Bytes of all groups together.
const MAX_GROUPS: usize = 1024;

/// The way in which a client was answered: the log field `answered`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::proxy) enum AnswerKind {
    /// Not at all.
    #[default]
    #[serde(rename = "")]
    None,
    /// By a status of HTTP.
    Http,
    /// By an SSH disconnect.
    Ssh,
}

impl AnswerKind {
    /// Returns how a refusal is answered that is not sent in band: a client that speaks SSH to the port is answered in
    /// SSH.
    pub(in crate::proxy) fn from_refusal(refusal: RefusalReason) -> Self {
        if refusal == RefusalReason::Malformed(Malformed::Ssh) {
            Self::Ssh
        } else if refusal.is_answered() {
            Self::Http
        } else {
            Self::None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::iter::repeat_n;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_line_has_each_member_whatever_is_known() {
        let software = Software::parse(b"say \"x\"\n");
        let known = AccessLine {
            client: Some("192.0.2.1".parse().unwrap()),
            tls_subject: "a\"b\\c\n\u{1}\u{7f}é\u{2028}",
            groups: repeat_n('x', 4096).collect(),
            client_software: Some(&software),
            upstream: Some("[2001:db8::1]:22".parse().unwrap()),
            bytes_sent: u64::MAX,
            duration_ms: 0.25,
            answered: AnswerKind::Ssh,
            ..AccessLine::without_info("close", None, 1)
        };
        let unknown = AccessLine::summary(None, RefusalReason::NotAllowed, 7, "");
        let [known, unknown]: [Value; 2] = [known, unknown].map(|line| serde_json::to_value(line).unwrap());
        for (member, expected) in [
            ("client.address", json!("192.0.2.1")),
            ("tls.client.subject", json!("a\"b\\c\n\u{1}\u{7f}é\u{2028}")),
            ("client.software", json!("say \"x\"?")),
            ("upstream.address", json!("[2001:db8::1]:22")),
            ("bytes_sent", json!(u64::MAX)),
            ("duration_ms", json!(0.25)),
            ("status", json!(200)),
            ("answered", json!("ssh")),
        ] {
            assert_eq!(known[member], expected, "{member}");
        }
        for (member, expected) in [
            ("client.address", json!("")),
            ("client.software", json!("")),
            ("tunnel_id", json!("")),
            ("answered", json!("")),
            ("reason", json!("not_allowed")),
            ("count", json!(7)),
        ] {
            assert_eq!(unknown[member], expected, "{member}");
        }
        let [known, unknown] =
            [known, unknown].map(|line| line.as_object().unwrap().keys().cloned().collect::<Vec<_>>());
        assert_eq!(known, unknown);
    }
}
