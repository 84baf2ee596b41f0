//! The JSON of `/ended` and `/refusals`: the past hour.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The answer of `GET /ended`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedTunnels {
    /// One page of the tunnels that have ended in the last hour and match the query, the latest first.
    pub ended: Vec<EndedTunnel>,
    /// The number of those that match.
    pub total: usize,
    /// The time from which on none is missing (RFC 3339).
    pub complete_since: String,
    /// The value of `cursor` for the next page; `None` at the end.
    pub next: Option<String>,
}

/// A tunnel that has ended. Its fields are also those of the event `closed`, but for `ended` and `ago_ms`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedTunnel {
    /// Its id, which is the access log's.
    pub tunnel_id: String,
    /// When it ended (RFC 3339).
    pub ended: String,
    /// Milliseconds since then.
    pub ago_ms: u64,
    /// How long it was open, in milliseconds.
    pub age_ms: u64,
    /// The client.
    #[serde(rename = "client.address")]
    pub client_address: IpAddr,
    /// The user; empty without one.
    #[serde(rename = "user.name")]
    pub user_name: String,
    /// The namespace of the target's Service, or `static`.
    #[serde(rename = "target.namespace")]
    pub target_namespace: String,
    /// The target's Service, or the authority of a static target.
    #[serde(rename = "target.service")]
    pub target_service: String,
    /// The node of the target's address; empty if it is not known.
    #[serde(rename = "upstream.node")]
    pub upstream_node: String,
    /// True if the session in it could go on in another tunnel.
    #[serde(rename = "tunnel.resumable")]
    pub is_resumable: bool,
    /// Bytes to the client.
    pub bytes_sent: u64,
    /// Bytes from the client.
    pub bytes_received: u64,
    /// Why it ended, as in the access log.
    pub reason: String,
    /// The side that ended it.
    pub closed_by: String,
    /// Both in words.
    pub sentence: String,
    /// The reason of the operator that has ended it; empty if none has.
    #[serde(rename = "operator.reason")]
    pub operator_reason: String,
}

/// The answer of `GET /refusals`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusals {
    /// Those since the start of the process, the most frequent one first.
    pub reasons: Vec<RefusalsByReason>,
    /// Those of the last hour; `None` unless the query has `detail`.
    #[serde(flatten)]
    pub past: Option<PastRefusals>,
}

/// The refusals of the last hour.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastRefusals {
    /// One page of those that match the query, the latest first.
    pub refusals: Vec<PastRefusal>,
    /// The number of entries that match.
    pub total: usize,
    /// The time from which on none is missing (RFC 3339).
    pub complete_since: String,
    /// The value of `cursor` for the next page; `None` at the end.
    pub next: Option<String>,
}

/// Refusals that are equal in all but their times and ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastRefusal {
    /// The last one.
    #[serde(flatten)]
    pub request: RefusedRequest,
    /// When the first one was (RFC 3339).
    pub first: String,
    /// When the last one was.
    pub last: String,
    /// Milliseconds since the last one.
    pub ago_ms: u64,
    /// How many there were.
    pub count: u64,
    /// Further refusals of the client's network, which has too many entries for one of their own.
    pub others: u64,
}

/// A refused connection or request: also the data of the event `refused`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedRequest {
    /// Its id, which is the access log's.
    pub tunnel_id: String,
    /// The client.
    #[serde(rename = "client.address")]
    pub client_address: IpAddr,
    /// The authenticated user; empty without one.
    #[serde(rename = "user.name")]
    pub user_name: String,
    /// The user whom the request claims to be, if its password was not accepted; else empty.
    #[serde(rename = "auth.claimed_user")]
    pub claimed_user: String,
    /// The requested `host:port`; empty if it was not read.
    pub authority: String,
    /// The namespace of its target, or `static`; empty if the allowlist has none.
    #[serde(rename = "target.namespace")]
    pub target_namespace: String,
    /// The target's Service, or the authority of a static target.
    #[serde(rename = "target.service")]
    pub target_service: String,
    /// The status of the answer, or 499 if there was none.
    pub status: u16,
    /// Why it was refused, as in the access log.
    pub reason: String,
    /// The side that ended it.
    pub closed_by: String,
    /// The reason in words.
    pub sentence: String,
    /// Why the user may not reach the target; empty if that is not the reason.
    #[serde(rename = "authorization.reason")]
    pub authorization_reason: String,
}

/// Refusals for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalsByReason {
    /// As in the access log.
    pub reason: String,
    /// The reason in words.
    #[serde(default)]
    pub sentence: String,
    /// How many.
    pub count: u64,
    /// The time of the last refusal (RFC 3339).
    pub last: String,
}
