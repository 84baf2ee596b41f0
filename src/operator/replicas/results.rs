//! The results of a request to all replicas, and lists with one row for an item that several replicas have.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::merge::{FromReplica, MergedList, ReplicaStatus};
use crate::base::text::is_unprintable;
use crate::daemon::admin::api::{Anchor, Client, CloseResponse, Dial, Target};

/// The result of a request to all replicas, and their status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChangeResult<T> {
    /// The answers, with their replicas.
    pub changed: Vec<FromReplica<T>>,
    /// All replicas.
    pub replicas: Vec<ReplicaStatus>,
}

impl<T> Default for ChangeResult<T> {
    fn default() -> Self {
        Self {
            changed: Vec::new(),
            replicas: Vec::new(),
        }
    }
}

impl<T> ChangeResult<T> {
    /// Adds the result of a further change. A replica keeps its first error.
    pub fn add(&mut self, further: Self) {
        self.changed.extend(further.changed);
        for state in further.replicas {
            match self.replicas.iter_mut().find(|known| known.replica == state.replica) {
                Some(known) => known.error = known.error.take().or(state.error),
                None => self.replicas.push(state),
            }
        }
    }
}

/// The tunnels that are being closed.
pub type ClosedTunnels = ChangeResult<Id>;

/// The id of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Id {
    /// As in the access log.
    pub tunnel_id: String,
}

impl From<ChangeResult<CloseResponse>> for ClosedTunnels {
    fn from(closed: ChangeResult<CloseResponse>) -> Self {
        let ids = closed.changed.into_iter().flat_map(|FromReplica { replica, item }| {
            let of = move |tunnel_id| FromReplica {
                replica: replica.clone(),
                item: Id { tunnel_id },
            };
            item.closed.into_iter().map(of)
        });
        Self {
            changed: ids.collect(),
            replicas: closed.replicas,
        }
    }
}

/// A target, merged from all replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TargetRow {
    /// The namespace of its Service, or `static`.
    #[serde(rename = "target.namespace")]
    pub namespace: String,
    /// Its Service, or the authority of a static target.
    #[serde(rename = "target.service")]
    pub service: String,
    /// Its ready endpoints.
    pub endpoints_ready: u32,
    /// All of its endpoints.
    pub endpoints: u32,
    /// The addresses that are dialled.
    pub addresses: Vec<SocketAddr>,
    /// The nodes of its addresses, as the first replica sees them.
    #[serde(skip)]
    pub nodes: Vec<String>,
    /// The anchors that are connected to a replica, each user and host once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub anchors: Vec<AnchorRow>,
    /// True if the target is cordoned on every replica that knows it.
    pub is_cordoned: bool,
    /// The replicas on which it is cordoned.
    pub cordoned_by: Vec<String>,
    /// Its tunnels on all replicas.
    pub tunnels: usize,
    /// Its last dial, of any replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_dial: Option<Dial>,
    /// When a replica whose API server does not answer last confirmed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unconfirmed_since: Option<String>,
    /// The remarks of the first replica that has some.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// The number of replicas that know it.
    #[serde(skip)]
    pub replicas: usize,
}

/// The anchors of one user on one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AnchorRow {
    /// Their address.
    pub address: IpAddr,
    /// Their user.
    #[serde(rename = "user.name")]
    pub user_name: String,
    /// When the first of their current connections registered (RFC 3339).
    pub since: String,
    /// Their connections, one for each replica that they reach.
    pub connections: usize,
    /// The tunnels through them.
    pub tunnels: u32,
    /// True if they are standby at every replica that they reach.
    pub is_standby: bool,
}

impl AnchorRow {
    /// Adds an anchor of a replica to those of a target.
    fn add(rows: &mut Vec<Self>, anchor: &Anchor) {
        let address = anchor.address.ip();
        let known = rows
            .iter_mut()
            .find(|row| row.address == address && row.user_name == anchor.user_name);
        let Some(row) = known else {
            rows.push(Self {
                address,
                user_name: anchor.user_name.clone(),
                since: anchor.since.clone(),
                connections: 1,
                tunnels: anchor.tunnels,
                is_standby: anchor.is_standby,
            });
            return;
        };
        // RFC 3339 sorts as text.
        row.since = anchor.since.clone().min(row.since.clone());
        row.connections += 1;
        row.tunnels = row.tunnels.saturating_add(anchor.tunnels);
        row.is_standby &= anchor.is_standby;
    }
}

/// Merges targets, given with their replicas, into one row each, in the order of their names.
pub fn by_target<'a>(targets: impl IntoIterator<Item = (&'a str, &'a Target)>) -> Vec<TargetRow> {
    let mut rows: BTreeMap<_, TargetRow> = BTreeMap::new();
    for (replica, item) in targets {
        let row = rows.entry((&item.namespace, &item.service));
        let row = row.or_insert_with(|| TargetRow {
            namespace: item.namespace.clone(),
            service: item.service.clone(),
            nodes: item.nodes.clone(),
            is_cordoned: true,
            ..TargetRow::default()
        });
        // Replicas see the same endpoints, some of them later.
        row.endpoints_ready = row.endpoints_ready.max(item.endpoints_ready);
        row.endpoints = row.endpoints.max(item.endpoints);
        if item.addresses.len() > row.addresses.len() {
            row.addresses.clone_from(&item.addresses);
        }
        row.is_cordoned &= item.is_cordoned;
        row.cordoned_by.extend(item.is_cordoned.then(|| replica.to_owned()));
        item.anchors
            .iter()
            .for_each(|anchor| AnchorRow::add(&mut row.anchors, anchor));
        row.tunnels = row.tunnels.saturating_add(item.tunnels);
        // RFC 3339 sorts as text.
        let dials = [row.last_dial.take(), item.last_dial.clone()];
        row.last_dial = dials.into_iter().flatten().max_by(|one, other| one.at.cmp(&other.at));
        let unconfirmed = [row.unconfirmed_since.take(), item.unconfirmed_since.clone()];
        row.unconfirmed_since = unconfirmed.into_iter().flatten().min();
        if row.remarks.is_empty() {
            row.remarks.clone_from(&item.remarks);
        }
        row.replicas += 1;
    }
    rows.into_values().collect()
}

/// Merges clients into one row for each pair of address and user, those with the most tunnels first.
pub fn by_client(list: &MergedList<Client>) -> Vec<Client> {
    let mut rows: BTreeMap<(_, &str), Client> = BTreeMap::new();
    for FromReplica { item, .. } in &list.items {
        let known = rows.entry((item.address, &item.user));
        let add = |row: &mut Client| {
            row.tunnels = row.tunnels.saturating_add(item.tunnels);
            row.bytes_sent = row.bytes_sent.saturating_add(item.bytes_sent);
            row.bytes_received = row.bytes_received.saturating_add(item.bytes_received);
            row.sent_per_second = row.sent_per_second.saturating_add(item.sent_per_second);
            row.received_per_second = row.received_per_second.saturating_add(item.received_per_second);
            row.idle_ms = row.idle_ms.min(item.idle_ms);
        };
        known.and_modify(add).or_insert_with(|| item.clone());
    }
    let mut rows: Vec<_> = rows.into_values().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.tunnels));
    rows
}

/// Returns the JSON of a value of this module or of the API, on several lines. Invisible and control characters are escaped as in
/// JSON: a program reads the same strings.
pub fn json(value: &impl Serialize) -> String {
    // Never an error: all keys are strings.
    let json = serde_json::to_string_pretty(value).unwrap_or_default();
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        // Outside strings only line feeds are unprintable.
        match character {
            '\n' => escaped.push(character),
            _ if is_unprintable(character) => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    escaped += &format!("\\u{unit:04x}");
                }
            }
            _ => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_of_two_replicas_is_one_row() {
        let dial = |second: usize| Dial {
            at: format!("2026-11-28T08:00:0{}Z", second.min(9)),
            error: String::new(),
            sentence: String::new(),
        };
        let target = |tunnels, is_cordoned| Target {
            namespace: "team".into(),
            service: "box".into(),
            endpoints_ready: 1,
            endpoints: 2,
            addresses: Vec::new(),
            is_cordoned,
            tunnels,
            nodes: vec!["node-7".to_owned()],
            anchors: [("192.0.2.1:4000", tunnels == 4), ("192.0.2.1:4001", true)]
                .map(|(address, is_standby)| Anchor {
                    address: address.parse().unwrap(),
                    user_name: "gpu1".to_owned(),
                    since: format!("2026-11-26T08:00:0{}Z", tunnels.min(9)),
                    tunnels: 2,
                    is_standby,
                })
                .into(),
            last_activity: None,
            last_dial: Some(dial(tunnels)),
            unconfirmed_since: (!is_cordoned).then(|| "2026-11-28T08:00:00Z".to_owned()),
            remarks: is_cordoned.then(|| "why".to_owned()).into_iter().collect(),
        };
        let rows = by_target([("a", &target(3, true)), ("b", &target(4, false))]);
        let row = TargetRow {
            namespace: "team".to_owned(),
            service: "box".to_owned(),
            endpoints_ready: 1,
            endpoints: 2,
            addresses: Vec::new(),
            nodes: vec!["node-7".to_owned()],
            anchors: vec![AnchorRow {
                address: "192.0.2.1".parse().unwrap(),
                user_name: "gpu1".to_owned(),
                since: "2026-11-26T08:00:03Z".to_owned(),
                connections: 4,
                tunnels: 8,
                is_standby: false,
            }],
            is_cordoned: false,
            cordoned_by: vec!["a".to_owned()],
            tunnels: 7,
            last_dial: Some(dial(4)),
            unconfirmed_since: Some("2026-11-28T08:00:00Z".to_owned()),
            remarks: vec!["why".to_owned()],
            replicas: 2,
        };
        assert_eq!(rows, [row]);
        let made_up = target(usize::MAX, true);
        let rows = by_target([("a", &made_up), ("b", &made_up)]);
        assert_eq!((rows[0].tunnels, rows[0].is_cordoned), (usize::MAX, true));
    }
}
