//! The targets of all replicas as one list.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::Serialize;

use crate::daemon::admin::api::Target;
use crate::operator::replicas::Listed;

/// A target of the allowlists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Merged {
    #[serde(rename = "target.namespace")]
    namespace: String,
    #[serde(rename = "target.service")]
    service: String,
    endpoints_ready: u32,
    endpoints: u32,
    addresses: Vec<SocketAddr>,
    /// Whether every replica that has the target lets no new tunnel begin.
    is_cordoned: bool,
    /// The replicas that let none begin.
    cordoned_by: Vec<String>,
    /// Open tunnels of all replicas.
    tunnels: usize,
}

/// The targets of the replicas that have answered, in the order of their names.
pub(super) fn merge(listed: Listed<Target>) -> Vec<Merged> {
    let mut merged: BTreeMap<(String, String), Merged> = BTreeMap::new();
    for of in listed.items {
        let (replica, target) = (of.replica, of.item);
        let name = (target.namespace.clone(), target.service.clone());
        let own = merged.entry(name).or_insert_with(|| Merged {
            namespace: target.namespace,
            service: target.service,
            endpoints_ready: 0,
            endpoints: 0,
            addresses: Vec::new(),
            is_cordoned: true,
            cordoned_by: Vec::new(),
            tunnels: 0,
        });
        // Replicas see the same endpoints, some of them a moment later.
        own.endpoints_ready = own.endpoints_ready.max(target.endpoints_ready);
        own.endpoints = own.endpoints.max(target.endpoints);
        if target.addresses.len() > own.addresses.len() {
            own.addresses = target.addresses;
        }
        own.is_cordoned &= target.is_cordoned;
        if target.is_cordoned {
            own.cordoned_by.push(replica);
        }
        own.tunnels = own.tunnels.saturating_add(target.tunnels);
    }
    merged.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::replicas::Of;

    #[test]
    fn tunnels_of_made_up_numbers_stay_at_the_largest() {
        let target: Target = serde_json::from_value(serde_json::json!({
            "target.namespace": "n", "target.service": "s", "endpoints_ready": 1, "endpoints": 1, "addresses": [],
            "nodes": [], "is_cordoned": false, "tunnels": usize::MAX, "last_activity": null,
        }))
        .unwrap();
        let of = |replica: &str| Of {
            replica: replica.to_owned(),
            item: target.clone(),
        };
        let merged = merge(Listed {
            items: vec![of("a"), of("b")],
            total: 2,
            replicas: Vec::new(),
        });
        assert_eq!(merged.iter().map(|one| one.tunnels).collect::<Vec<_>>(), [usize::MAX]);
    }
}
