//! What came of a change on all replicas, and lists in which one thing of many replicas is one row.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::answer::{Answer, TargetName};
use super::listing::{Listed, Of, State};
use crate::base::text::is_unprintable;
use crate::daemon::admin::api::{Client, Closed, Target};

/// What has changed, and which replicas have answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Changed<T> {
    /// The things as they are now, with their replicas.
    pub changed: Vec<Of<T>>,
    /// All replicas.
    pub replicas: Vec<State>,
}

impl<T> Default for Changed<T> {
    fn default() -> Self {
        Self {
            changed: Vec::new(),
            replicas: Vec::new(),
        }
    }
}

impl<T> Changed<T> {
    /// Adds what came of a further change. A replica that has failed once has failed.
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

/// The tunnels that are told to end.
pub type Ended = Changed<Id>;

/// The id of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Id {
    /// As in the access log.
    pub tunnel_id: String,
}

/// What has ended.
pub fn closed(answers: Vec<Answer<Option<Closed>>>) -> Ended {
    changed(answers, |closed| {
        let ids = closed.closed.into_iter();
        ids.map(|tunnel_id| Id { tunnel_id }).collect()
    })
}

/// What has been changed, or is to be shown, where it was found.
pub fn changed_or_shown<T>(answers: Vec<Answer<Option<T>>>) -> Changed<T> {
    changed(answers, |item| vec![item])
}

fn changed<A, T>(answers: Vec<Answer<Option<A>>>, items: impl Fn(A) -> Vec<T>) -> Changed<T> {
    let mut report = Changed::default();
    for Answer { replica, result } in answers {
        let replica = replica.to_string();
        let error = result.as_ref().err().map(ToString::to_string);
        let found = result.ok().flatten().map(&items).unwrap_or_default();
        let of = |item| Of {
            replica: replica.clone(),
            item,
        };
        report.changed.extend(found.into_iter().map(of));
        report.replicas.push(State { replica, error });
    }
    report
}

/// A target of all replicas: how many of them let no new tunnel begin, and on how many it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetRow {
    /// Ready endpoints, and all of them, as the first replica sees them.
    pub endpoints: (u32, u32),
    /// Its tunnels on all replicas.
    pub tunnels: usize,
    /// The replicas that let no new one begin.
    pub cordoned: usize,
    /// The replicas that have it.
    pub replicas: usize,
    /// The nodes of its addresses, as the first replica sees them.
    pub nodes: Vec<String>,
}

/// The targets of all replicas, each once.
pub fn by_target(listed: &Listed<Target>) -> BTreeMap<TargetName, TargetRow> {
    let mut rows: BTreeMap<TargetName, TargetRow> = BTreeMap::new();
    for Of { item, .. } in &listed.items {
        let name = TargetName {
            namespace: item.namespace.clone(),
            service: item.service.clone(),
        };
        let row = rows.entry(name).or_default();
        if row.replicas == 0 {
            row.endpoints = (item.endpoints_ready, item.endpoints);
            row.nodes.clone_from(&item.nodes);
        }
        row.tunnels = row.tunnels.saturating_add(item.tunnels);
        row.cordoned += usize::from(item.is_cordoned);
        row.replicas += 1;
    }
    rows
}

/// The clients of all replicas, each address and user once, those with the most tunnels first.
pub fn by_client(listed: &Listed<Client>) -> Vec<Client> {
    let mut rows: BTreeMap<(_, &str), Client> = BTreeMap::new();
    for Of { item, .. } in &listed.items {
        let known = rows.entry((item.address, &item.user));
        let add = |row: &mut Client| {
            row.tunnels = row.tunnels.saturating_add(item.tunnels);
            row.bytes_sent = row.bytes_sent.saturating_add(item.bytes_sent);
            row.bytes_received = row.bytes_received.saturating_add(item.bytes_received);
            row.idle_ms = row.idle_ms.min(item.idle_ms);
        };
        known.and_modify(add).or_insert_with(|| item.clone());
    }
    let mut rows: Vec<_> = rows.into_values().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.tunnels));
    rows
}

/// The JSON of a value of this module or of the API, on several lines. Characters that cannot be seen, or that a terminal
/// would obey, are escaped: a program reads the same texts.
pub fn json(value: &impl Serialize) -> String {
    // Its keys are texts, so it has one.
    let json = serde_json::to_string_pretty(value).unwrap_or_default();
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        // Only texts have them: the lines between are of spaces and line feeds.
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
        let target = |replica: &str, tunnels, is_cordoned| Of {
            replica: replica.to_owned(),
            item: Target {
                namespace: "team".into(),
                service: "box".into(),
                endpoints_ready: 1,
                endpoints: 2,
                addresses: Vec::new(),
                is_cordoned,
                tunnels,
                nodes: vec!["node-7".to_owned()],
                last_activity: None,
            },
        };
        let listed = Listed {
            items: vec![target("a", 3, true), target("b", 4, false)],
            total: 2,
            replicas: Vec::new(),
        };
        let rows: Vec<_> = by_target(&listed).into_iter().collect();
        let row = TargetRow {
            endpoints: (1, 2),
            tunnels: 7,
            cordoned: 1,
            replicas: 2,
            nodes: vec!["node-7".to_owned()],
        };
        assert_eq!(rows, [("team/box".parse().unwrap(), row)]);
    }
}
