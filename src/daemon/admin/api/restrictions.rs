//! The JSON of `/restrictions`: limits and blocks of users, clients and targets.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The effect of a restriction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RestrictionKind {
    /// It sets the rates of tunnels.
    #[default]
    Limit,
    /// It refuses new tunnels.
    Block,
}

/// The body of `PUT /restrictions` and, with `kind` and whom it is for, of `DELETE /restrictions`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RestrictionRequest {
    /// Its effect.
    pub kind: RestrictionKind,
    /// For tunnels to this target, `namespace/service`; not of a block.
    pub target: Option<String>,
    /// For this client.
    pub client: Option<IpAddr>,
    /// For this user.
    pub user: Option<String>,
    /// How long, such as `10m`.
    #[serde(rename = "for")]
    pub time: Option<String>,
    /// The rate of each tunnel to its client.
    pub download: Option<String>,
    /// The rate of each tunnel from its client.
    pub upload: Option<String>,
    /// Of a block: the reason, which the user reads.
    pub reason: String,
    /// Of a block: true if the open tunnels go on.
    #[serde(rename = "keep")]
    pub keeps_tunnels: bool,
}

/// The answer of `GET /restrictions`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restrictions {
    /// The oldest first.
    pub restrictions: Vec<Restriction>,
    /// How many there are.
    pub total: usize,
    /// Always `None`: the list is one page.
    pub next: Option<String>,
}

/// A limit or a block of a user, client or target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restriction {
    /// Its effect.
    pub kind: RestrictionKind,
    /// The target that it is for; empty if it is for any.
    pub target: String,
    /// The client that it is for; `None` if it is for any.
    #[serde(rename = "client.address")]
    pub client_address: Option<IpAddr>,
    /// The user that it is for; empty if it is for any.
    #[serde(rename = "user.name")]
    pub user_name: String,
    /// The rate of each tunnel to its client; empty if it is not limited.
    pub download: String,
    /// The rate of each tunnel from its client; empty if it is not limited.
    pub upload: String,
    /// The reason of a block.
    pub reason: String,
    /// When it ends (RFC 3339).
    pub until: String,
    /// Milliseconds until then.
    pub left_ms: u64,
    /// The open tunnels that it is for; in the answer about a new block, those that it ends.
    pub tunnels: usize,
}
