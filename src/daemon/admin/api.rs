//! The JSON of the admin API: what `serve` answers and the programs of operators read. Names of fields are those of the access
//! log.

use std::net::{IpAddr, SocketAddr};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

pub use self::past::{
    EndedTunnel, EndedTunnels, PastRefusal, PastRefusals, Refusals, RefusalsByReason, RefusedRequest,
};
pub use self::restrictions::{Restriction, RestrictionKind, RestrictionRequest, Restrictions};

mod past;
mod restrictions;

/// The query of `GET /tunnels`, and of `DELETE /tunnels`, which takes neither `sort` nor `cursor`. A misspelt name is refused:
/// if it were ignored, more tunnels would end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Query {
    /// Tunnels to this target, `namespace/service`.
    pub target: Option<String>,
    /// Tunnels of this client.
    pub client: Option<IpAddr>,
    /// Tunnels of this user.
    pub user: Option<String>,
    /// Tunnels to targets on this node.
    pub node: Option<String>,
    /// The order of a list; by default the oldest first.
    pub sort: Option<Sort>,
    /// The maximum number of items in a list, or of tunnels to close.
    pub limit: Option<usize>,
    /// The value of `next` of the page before.
    pub cursor: Option<String>,
}

impl Query {
    /// Returns whether it is for all tunnels.
    pub fn is_for_all(&self) -> bool {
        self.target.is_none() && self.client.is_none() && self.user.is_none() && self.node.is_none()
    }

    /// Returns whether it is for a tunnel or request with these parties.
    pub fn selects(&self, of: &Subject<'_>) -> bool {
        let [namespace, target] = of.target;
        // A pod is `pod.service`; a static target has a colon.
        let service = target.rsplit('.').next().filter(|_| !target.contains(':'));
        let is_target = |name: &String| {
            let named = name.split_once('/').filter(|(of, _)| *of == namespace);
            named.is_some_and(|(_, name)| name == target || Some(name) == service)
        };
        self.target.as_ref().is_none_or(is_target)
            && self
                .client
                .is_none_or(|client| client.to_canonical() == of.client.to_canonical())
            && self.user.as_ref().is_none_or(|user| user == of.user)
            && self.node.as_ref().is_none_or(|node| node == of.node)
    }
}

/// The parties of a tunnel or request, as a query names them.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The client.
    pub client: IpAddr,
    /// The user; empty if there is none.
    pub user: &'a str,
    /// The target's namespace and Service; both empty if there is none.
    pub target: [&'a str; 2],
    /// The node of the target's address; empty if it is not known.
    pub node: &'a str,
}

/// The order of tunnels, the largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Sort {
    /// Bytes of both directions.
    Bytes,
    /// Bytes a second of both directions.
    Rate,
    /// The time since the beginning.
    #[default]
    Age,
    /// The time since the last active minute.
    Idle,
}

/// The answer of `GET /tunnels`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tunnels {
    /// One page of the tunnels that match the query.
    pub tunnels: Vec<Tunnel>,
    /// The number of those that match.
    pub total: usize,
    /// The value of `cursor` for the next page; `None` at the end.
    pub next: Option<String>,
}

/// An open tunnel. A field that a later version adds must have a default: in an update replicas of two versions answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tunnel {
    /// Its id, which is the access log's.
    pub tunnel_id: String,
    /// When it was established (RFC 3339).
    pub since: String,
    /// Milliseconds since then.
    pub age_ms: u64,
    /// Milliseconds since `last_active`.
    pub idle_ms: u64,
    /// True if it is used, and not only kept alive: see docs/operations.md.
    pub is_active: bool,
    /// When it was last used (RFC 3339).
    pub last_active: String,
    /// The client.
    #[serde(rename = "client.address")]
    pub client_address: IpAddr,
    /// The client's port.
    #[serde(rename = "client.port")]
    pub client_port: u16,
    /// The peer of the connection: the client, or a load balancer.
    #[serde(rename = "network.peer.address")]
    pub peer_address: Option<IpAddr>,
    /// The client's SSH software.
    #[serde(rename = "client.software")]
    pub client_software: String,
    /// The authenticated user; empty without one.
    #[serde(rename = "user.name")]
    pub user_name: String,
    /// `1` or `2`.
    #[serde(rename = "http.version")]
    pub http_version: String,
    /// `1.2`, `1.3`, or empty without TLS.
    #[serde(rename = "tls.version")]
    pub tls_version: String,
    /// The host that was asked for.
    #[serde(rename = "server.address")]
    pub server_address: String,
    /// The port that was asked for.
    #[serde(rename = "server.port")]
    pub server_port: u16,
    /// The namespace of the target's Service, or `static`.
    #[serde(rename = "target.namespace")]
    pub target_namespace: String,
    /// The target's Service, or the authority of a static target.
    #[serde(rename = "target.service")]
    pub target_service: String,
    /// The address that was dialled.
    #[serde(rename = "upstream.address")]
    pub upstream_address: Option<SocketAddr>,
    /// The node of that address; empty if its EndpointSlice names none.
    #[serde(rename = "upstream.node")]
    pub upstream_node: String,
    /// The user of the anchor that carries it; empty for an address that was dialled.
    #[serde(rename = "upstream.anchor")]
    pub upstream_anchor: String,
    /// The target's SSH software.
    #[serde(rename = "upstream.software")]
    pub upstream_software: String,
    /// True if the session outlives the tunnel: a drain, or an operator, moves the session to another tunnel.
    #[serde(rename = "tunnel.resumable")]
    pub is_resumable: bool,
    /// Bytes to the client.
    pub bytes_sent: u64,
    /// Bytes from the client.
    pub bytes_received: u64,
    /// Bytes a second to the client, between the last two samples that were at least a second apart.
    pub sent_per_second: u64,
    /// Bytes a second from the client, as above.
    pub received_per_second: u64,
    /// The download's limits.
    pub download: Limit,
    /// The upload's limits.
    pub upload: Limit,
}

/// The answer of `GET /tunnels/{id}`: a tunnel, and its two connections as the kernel sees them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Detail {
    /// The tunnel.
    #[serde(flatten)]
    pub tunnel: Tunnel,
    /// Its connections.
    pub legs: TcpLegs,
}

/// The two TCP connections of a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TcpLegs {
    /// The client's; `None` if unknown. Over HTTP/2 several tunnels share a connection.
    pub client: Option<Leg>,
    /// The target's; `None` if unknown.
    pub upstream: Option<Leg>,
    /// The reason why a connection is unknown; empty if both are known.
    pub unknown: String,
}

/// One TCP connection, from the proxy's end of it (`struct tcp_info` of linux/tcp.h).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Leg {
    /// The smoothed round-trip time, in milliseconds.
    pub rtt_ms: f64,
    /// Its mean deviation.
    pub rtt_variation_ms: f64,
    /// The lowest round-trip time of the last minutes.
    pub lowest_rtt_ms: f64,
    /// Segments that were sent again.
    pub retransmits: u32,
    /// Segments that came out of order: the peer's were lost or overtaken.
    pub out_of_order: u32,
    /// Bytes a second that the peer has recently acknowledged.
    pub delivery_rate: u64,
    /// Bytes that were sent and are not acknowledged.
    pub in_flight: u32,
    /// Bytes that were written and are not sent.
    pub not_sent: u32,
    /// The sum of `in_flight` and `not_sent`.
    pub send_queue: u32,
    /// Bytes that came and are not read by the proxy.
    pub receive_queue: u32,
    /// The receive window that the peer has announced, in bytes.
    pub peer_window: u32,
    /// Milliseconds in which something was in the send queue.
    pub busy_ms: u64,
    /// The part of `busy_ms` in which the peer's receive window stopped the sending.
    pub peer_window_limited_ms: u64,
}

/// The answer of `GET /tunnels/{id}/diagnosis`: what makes a tunnel slow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// The tunnel.
    pub tunnel_id: String,
    /// The cause of its slowness.
    pub verdict: Verdict,
    /// The observations that show it, a sentence each.
    pub evidence: Vec<String>,
    /// How long it was observed, in milliseconds.
    pub observed_ms: u64,
    /// Bytes to the client in that time.
    pub bytes_sent: u64,
    /// Bytes from the client in that time.
    pub bytes_received: u64,
    /// Its connections at the end.
    pub legs: TcpLegs,
}

/// The cause of a slow tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The client's network, or a client that does not read, or sends no faster.
    Client,
    /// The target's network, or a target that does not read, answer, or send faster.
    Target,
    /// A limit: of the proxy's configuration, of the target, or of an operator.
    Limit,
    /// The proxy: its threads lack CPU time.
    Proxy,
    /// No cause that the proxy can see.
    Nothing,
}

impl Verdict {
    /// Returns its name in JSON.
    pub fn label(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Target => "target",
            Self::Limit => "limit",
            Self::Proxy => "proxy",
            Self::Nothing => "nothing",
        }
    }
}

/// The limit of one direction of a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The rate in effect, such as `5MiB/s`, or `unlimited`.
    pub rate: String,
    /// True if an operator has set it for this tunnel.
    pub is_own: bool,
    /// Milliseconds that the direction has waited for this limit and for shared ones.
    pub waited_ms: u64,
}

/// The body of `PATCH /tunnels/{id}`: a rate such as `5MiB/s` or `unlimited`. `default` restores the target's rate. An
/// absent direction keeps its rate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// To the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download: Option<String>,
    /// From the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload: Option<String>,
}

/// The body of `DELETE /tunnels` and `DELETE /tunnels/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloseRequest {
    /// The operator's reason, for the access log and for the user of a session that ends.
    #[serde(default)]
    pub reason: String,
    /// True if sessions are moved to other tunnels: then only resumable tunnels close.
    #[serde(default, rename = "move", skip_serializing_if = "std::ops::Not::not")]
    pub is_move: bool,
    /// How long this process refuses a session that has ended, such as `10m`, the default.
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub refused_for: Option<String>,
}

/// The answer of `DELETE /tunnels` and `DELETE /tunnels/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloseResponse {
    /// The ids of the matching tunnels that this request closes.
    pub closed: Vec<String>,
    /// The number of matching tunnels beyond `limit`, which stay open.
    pub left: usize,
}

/// The answer of `GET /targets`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Targets {
    /// In the order of their names.
    pub targets: Vec<Target>,
    /// The number of targets.
    pub total: usize,
    /// The value of `cursor` for the next page; `None` at the end.
    pub next: Option<String>,
}

/// A target of the allowlist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The namespace of its Service, or `static`.
    #[serde(rename = "target.namespace")]
    pub namespace: String,
    /// Its Service, or the authority of a static target.
    #[serde(rename = "target.service")]
    pub service: String,
    /// Its ready endpoints, or the anchors that are connected to this replica.
    pub endpoints_ready: u32,
    /// All of its endpoints, or the connected anchors.
    pub endpoints: u32,
    /// The addresses that are dialled.
    pub addresses: Vec<SocketAddr>,
    /// The nodes of those addresses, each once; empty where none is known.
    pub nodes: Vec<String>,
    /// The anchors that are connected to this replica, the active one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub anchors: Vec<Anchor>,
    /// True if an operator lets no new tunnel begin, in this process.
    pub is_cordoned: bool,
    /// Its open tunnels.
    pub tunnels: usize,
    /// When a tunnel of it was last used (RFC 3339); absent before the first tunnel in this process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_activity: Option<String>,
    /// The last dial; absent before the first one in this process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_dial: Option<Dial>,
    /// Of a Service: when the allowlist was last confirmed (RFC 3339), if the API server does not answer now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unconfirmed_since: Option<String>,
    /// A sentence for each setting that does not apply as written, such as an invalid annotation, and for why it has no endpoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// The answer of `GET /targets/{namespace}/{service}/diagnosis`: why a name is on the allowlist or not, and what keeps
/// tunnels from its target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetDiagnosis {
    /// The target, or the Service that has no target, as `namespace/service`; else the name as it was requested.
    pub target: String,
    /// True if the name is on the allowlist.
    pub is_listed: bool,
    /// The observations, a sentence each.
    pub evidence: Vec<String>,
}

/// A dial of a target that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dial {
    /// When it ended (RFC 3339).
    pub at: String,
    /// Why it has failed, as the reason of a refusal; empty if it has not.
    pub error: String,
    /// The error in words; empty without one.
    #[serde(default)]
    pub sentence: String,
}

/// An anchor that has dialled in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// Its address.
    pub address: SocketAddr,
    /// Its user.
    #[serde(rename = "user.name")]
    pub user_name: String,
    /// When it registered (RFC 3339).
    pub since: String,
    /// The tunnels that it carries.
    pub tunnels: u32,
    /// True if another anchor of the target is the active one.
    pub is_standby: bool,
}

/// The answer of `GET /activity`: the first two fields are those of an activity probe of Kubeflow Notebooks 2.0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// True if a tunnel of the target is used, and not only kept alive.
    pub has_activity: bool,
    /// When a tunnel was last used (RFC 3339); absent before the first tunnel in this process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_activity: Option<String>,
    /// The open tunnels of the target, the most recently used first. Absent in an answer to another host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Vec<TunnelUsage>>,
}

/// The part of a tunnel in the activity of its target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelUsage {
    /// Its id.
    pub tunnel_id: String,
    /// The client.
    #[serde(rename = "client.address")]
    pub client_address: IpAddr,
    /// The client's SSH software.
    #[serde(rename = "client.software")]
    pub client_software: String,
    /// The user; empty without one.
    #[serde(rename = "user.name")]
    pub user_name: String,
    /// When it was established (RFC 3339).
    pub since: String,
    /// True if it is used.
    pub is_active: bool,
    /// When it was last used (RFC 3339).
    pub last_active: String,
    /// Bytes to the client.
    pub bytes_sent: u64,
    /// Bytes from the client.
    pub bytes_received: u64,
}

/// The answer of `GET /clients`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clients {
    /// Those with the most tunnels first.
    pub clients: Vec<Client>,
    /// How many there are.
    pub total: usize,
    /// The value of `cursor` for the next page; `None` at the end.
    pub next: Option<String>,
}

/// The tunnels of one client address and user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// The client.
    #[serde(rename = "client.address")]
    pub address: IpAddr,
    /// The user; empty without one.
    #[serde(rename = "user.name")]
    pub user: String,
    /// Its open tunnels.
    pub tunnels: usize,
    /// Bytes to the client through its open tunnels.
    pub bytes_sent: u64,
    /// Bytes from the client through its open tunnels.
    pub bytes_received: u64,
    /// Bytes a second to the client.
    #[serde(default)]
    pub sent_per_second: u64,
    /// Bytes a second from the client.
    #[serde(default)]
    pub received_per_second: u64,
    /// Milliseconds since one of these tunnels was last active.
    pub idle_ms: u64,
}

/// The answer to a request that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The error, with the name of the invalid part.
    pub error: String,
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a tunnel with realistic texts.
    pub(crate) fn tunnel(id: &str) -> Tunnel {
        let limit = json!({"rate": "unlimited", "is_own": false, "waited_ms": 0});
        let tunnel = json!({
            "tunnel_id": id, "since": "2026-01-01T00:00:00.000Z", "age_ms": 0, "idle_ms": 0, "is_active": true,
            "last_active": "2026-01-01T00:00:00.000Z", "client.address": "192.0.2.7", "client.port": 40_000,
            "network.peer.address": null, "client.software": "OpenSSH_9.6p1 Ubuntu-3ubuntu13",
            "user.name": "alice@example.com", "http.version": "1", "tls.version": "1.3",
            "server.address": "devbox.team-a", "server.port": 22, "target.namespace": "team-a",
            "target.service": "devbox", "upstream.address": "10.42.1.7:22", "upstream.node": "node-7.example.com",
            "upstream.anchor": "", "upstream.software": "OpenSSH_9.2p1 Debian-2+deb12u3", "tunnel.resumable": false,
            "bytes_sent": 0, "bytes_received": 0, "sent_per_second": 0, "received_per_second": 0, "download": limit,
            "upload": limit,
        });
        serde_json::from_value(tunnel).unwrap()
    }

    /// Returns a tunnel that has ended.
    pub(crate) fn ended(id: &str) -> EndedTunnel {
        let mut ended = serde_json::to_value(tunnel(id)).unwrap();
        for (name, value) in [("ended", json!("2026-01-01T00:00:00.000Z")), ("ago_ms", json!(0))] {
            ended[name] = value;
        }
        for name in ["reason", "closed_by", "sentence", "operator.reason"] {
            ended[name] = json!(name);
        }
        serde_json::from_value(ended).unwrap()
    }

    #[test]
    fn the_lists_of_a_newer_replica_are_read() {
        let mut newer = serde_json::to_value(tunnel("89ab4567-1c")).unwrap();
        newer["colour"] = json!({"r": 1});
        assert_eq!(serde_json::from_value::<Tunnel>(newer).unwrap(), tunnel("89ab4567-1c"));
    }
}
