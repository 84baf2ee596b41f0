//! The parts that both versions of HTTP share: a request, and the fields of its answers.

use std::time::Duration;

use super::websocket::Forwarding;
use crate::base::authority::Authority;
use crate::policy::access::credentials::credential::{Credential, CredentialError};
use crate::protocol::end_notice::Marker;
use crate::protocol::host_key::{HostKeys, PublishedKeys};
use crate::protocol::listing::NameFilter;
use crate::protocol::resume::keys::SessionId;
use crate::protocol::websocket::handshake::{UPGRADE, VERSION};
use crate::tunnel::outcome::{Refusal, RefusalReason};

/// A complete request.
#[derive(Debug)]
pub enum RequestHead {
    /// For a tunnel, or of an anchor.
    Connect(ConnectRequest),
    /// For the list of names.
    Listing(ListingRequest),
}

/// A request for the list of names that its user may reach ([`listing`](crate::protocol::listing)).
#[derive(Debug)]
pub struct ListingRequest {
    /// The names that are meant.
    pub(crate) filter: NameFilter,
    /// The credential; `None` without one, or if it [is ignored](CredentialPolicy::Ignored).
    pub(crate) credential: Option<Result<Credential, CredentialError>>,
}

/// A request for a tunnel, or of an anchor.
#[derive(Debug)]
pub struct ConnectRequest {
    /// The target.
    pub authority: Authority,
    /// The purpose: a tunnel to it, or to serve it.
    pub purpose: Purpose,
    /// The credential; `None` without one, or if it [is ignored](CredentialPolicy::Ignored).
    pub credential: Option<Result<Credential, CredentialError>>,
    /// The marker of the notice that the client asks for.
    pub(crate) end_marker: Option<Marker>,
    /// The session that the client wants to go on with.
    pub(crate) session: Option<NamedSession>,
    /// True if the request must start no workload.
    pub(crate) no_wake: bool,
    /// The host keys that it asks for, or publishes.
    pub(crate) host_keys: HostKeysField,
    /// The fields that load balancers have added, if it is for a WebSocket.
    pub(crate) forwarding: Option<Forwarding>,
}

/// The field [`host_key::FIELD`](crate::protocol::host_key::FIELD) of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HostKeysField {
    /// It is not there, or not understood.
    Absent,
    /// A client asks for the keys of its target.
    Wanted,
    /// An anchor publishes the keys of its SSH server.
    Published(HostKeys),
}

impl HostKeysField {
    /// Parses the values of a request's fields.
    pub(super) fn parse<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> Self {
        let text = values.next().and_then(|value| str::from_utf8(value).ok());
        match text {
            Some("?1") => Self::Wanted,
            Some(text) => text
                .parse()
                .map_or(Self::Absent, |published: PublishedKeys| Self::Published(published.keys)),
            None => Self::Absent,
        }
    }

    /// Returns the keys that an anchor publishes.
    pub(crate) fn published(&self) -> Option<&HostKeys> {
        match self {
            Self::Published(keys) => Some(keys),
            Self::Absent | Self::Wanted => None,
        }
    }
}

/// A session that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedSession {
    /// Its id.
    pub(crate) id: SessionId,
    /// How long its user has moved no byte, as the client says; zero if it says nothing. A client can only appear less
    /// active by it.
    pub(crate) idle: Duration,
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// A CONNECT: a client wants a tunnel to the target.
    #[default]
    Tunnel,
    /// An upgrade: an anchor serves the target ([`registration`](crate::protocol::registration)).
    Registration,
}

/// The treatment of the field `Proxy-Authorization` and, of a WebSocket request, `Authorization`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialPolicy {
    /// It is ignored, except in a registration.
    Ignored,
    /// It is parsed.
    Read,
}

/// Returns the credential in the values of a request's fields for it. Two fields are an error: another
/// proxy on the way may have checked either.
pub(super) fn credential<'a>(
    mut values: impl Iterator<Item = &'a [u8]>,
) -> Option<Result<Credential, CredentialError>> {
    let first = values.next()?;
    Some(match values.next() {
        None => Credential::parse(first),
        Some(_) => Err(CredentialError::Repeated),
    })
}

/// Returns the session in a request's fields, of which `field` returns the first value.
pub(super) fn session<'a>(field: impl Fn(&'static str) -> Option<&'a [u8]>) -> Option<NamedSession> {
    let text = |name| str::from_utf8(field(name)?).ok();
    let seconds: Option<u32> = text(IDLE_FIELD).and_then(|seconds| seconds.parse().ok());
    Some(NamedSession {
        id: SessionId::parse(text(SESSION_FIELD)?)?,
        idle: Duration::from_secs(seconds.unwrap_or_default().into()).min(MAX_IDLE),
    })
}

/// The field with which `switchboard connect` names the session that is to go on. Its hello after the 200 repeats the
/// name.
const SESSION_FIELD: &str = "switchboard-session";
/// The field with which it says for how many seconds no byte of the user has moved in the session.
const IDLE_FIELD: &str = "switchboard-idle";
/// The longest idle time that counts: a time before 1970 could not be shown.
const MAX_IDLE: Duration = Duration::from_secs(365 * 86_400);

/// Returns whether the values of a request's fields [`WAKE_FIELD`] ask to start no workload.
pub(super) fn no_wake<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> bool {
    values.any(|value| value == b"?0")
}

/// The field with which `switchboard connect --no-wake` asks to start no workload: `?0`, a boolean of RFC 9651.
pub(super) const WAKE_FIELD: &str = "switchboard-wake";

/// Returns the fields of a listing of that length over every version of HTTP.
pub(super) fn listing_fields(length: usize) -> [(&'static str, String); 3] {
    [
        ("Content-Type", "application/json".to_owned()),
        ("Content-Length", length.to_string()),
        ("Cache-Control", "no-store".to_owned()),
    ]
}

/// Returns the fields of a refusal over every version of HTTP. `status`: as sent.
pub(super) fn fields(refusal: &Refusal, status: u16) -> Vec<(&'static str, String)> {
    let reason = refusal.reason;
    let mut fields = vec![
        ("Content-Type", "text/plain".to_owned()),
        ("Content-Length", body(refusal).len().to_string()),
        ("Proxy-Status", proxy_status(refusal)),
    ];
    let challenges = challenges(reason).into_iter().flatten();
    let challenge = if status == UNAUTHORIZED {
        "WWW-Authenticate"
    } else {
        "Proxy-Authenticate"
    };
    fields.extend(challenges.map(|text| (challenge, text.to_owned())));
    if reason == RefusalReason::UpgradeRequired {
        // "A sender of Upgrade MUST also send an 'Upgrade' connection option": RFC 9110 section 7.8.
        fields.push(("Connection", "Upgrade".to_owned()));
        fields.push(("Upgrade", UPGRADE.to_owned()));
        fields.push(("Sec-WebSocket-Version", VERSION.to_owned()));
    }
    if reason == RefusalReason::MethodNotAllowed {
        fields.push(("Allow", "CONNECT".to_owned()));
    }
    let retry_after = reason.retry_after();
    fields.extend(retry_after.map(|seconds| ("Retry-After", seconds.to_string())));
    let to_start = refusal.seconds_to_start();
    fields.extend(to_start.map(|seconds| (STARTING_FIELD, seconds.to_string())));
    fields
}

/// Returns the status of a refusal as it is sent. A load balancer takes a WebSocket for one of its own servers, not for a
/// proxy: it removes the fields of a 407.
pub(super) fn status(refusal: &Refusal, is_websocket: bool) -> u16 {
    match refusal.reason.status() {
        407 if is_websocket => UNAUTHORIZED,
        status => status,
    }
}

const UNAUTHORIZED: u16 = 401;

/// Returns the body of a refusal, its phrase: some clients print that, and HTTP/2 has no reason phrase.
pub(super) fn body(refusal: &Refusal) -> String {
    format!("{}\n", refusal.phrase())
}

/// The most fields that a request may have.
pub(super) const MAX_FIELDS: usize = 64;
/// The timeout of an answer, which mostly fits the send buffer: a client that does not take it has vanished.
pub(super) const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// The field of a refusal whose target is starting: the whole seconds that the target has left to start. `switchboard
/// connect` waits that long; others read Retry-After.
const STARTING_FIELD: &str = "switchboard-starting";

/// Returns the `Proxy-Status` of a refusal (RFC 9209): its type, its phrase and the details beyond it. A proxy on the way
/// may replace the reason phrase, and HTTP/2 has none.
fn proxy_status(refusal: &Refusal) -> String {
    let colon = refusal.details().map_or("", |_| ": ");
    let details = [refusal.phrase(), colon, refusal.details().unwrap_or_default()].concat();
    // A string of RFC 9651: a quote or a backslash in it would need an escape, which few parsers know.
    let details = details.replace('\\', "").replace('"', "'");
    let error = refusal.reason.proxy_status();
    format!("switchboard; error={error}; details=\"{details}\"")
}

/// Returns the challenges of a 407, each for a field `Proxy-Authenticate` of its own (RFC 9110 section 11.7.1). Basic
/// is first, since clients that know nothing else take the first one. `invalid_token` marks a refused credential (RFC
/// 6750 section 3).
fn challenges(refusal: RefusalReason) -> Option<[&'static str; 2]> {
    let basic = "Basic realm=\"switchboard\", charset=\"UTF-8\"";
    if refusal == RefusalReason::CredentialsRequired {
        return Some([basic, "Bearer realm=\"switchboard\""]);
    }
    (refusal == RefusalReason::CredentialsRefused)
        .then_some([basic, "Bearer realm=\"switchboard\", error=\"invalid_token\""])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_idle_for_a_year_at_most() {
        let idle = |seconds: &'static str| {
            let named = session(|name| match name {
                IDLE_FIELD => Some(seconds.as_bytes()),
                _ => Some(b"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f"),
            });
            named.unwrap().idle
        };
        assert_eq!(idle("900"), Duration::from_secs(900));
        assert_eq!(idle("4294967295"), MAX_IDLE);
        assert_eq!(idle("-1"), Duration::ZERO);
    }
}
