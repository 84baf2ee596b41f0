//! The tunnels of all replicas, and which of them have changed since a page asked last: of 5,000 silent tunnels an answer has
//! none.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use serde::Serialize;

use crate::daemon::admin::api::Tunnel;
use crate::operator::replicas::Snapshot;

/// What pages are told of.
#[derive(Debug)]
pub(super) struct Known {
    /// From 1 on: 0 is a page that knows nothing.
    generation: u64,
    rows: HashMap<String, Row>,
    /// The tunnels of each replica as they were seen last: the same ones need no comparison.
    seen: HashMap<Arc<str>, Arc<[Tunnel]>>,
    /// Those that have ended, with the generation in which that was seen, the oldest first.
    gone: VecDeque<(u64, String)>,
    /// The first generation after which `gone` is whole.
    whole_since: u64,
}

#[derive(Debug)]
struct Row {
    replica: Arc<str>,
    /// Without what changes all the time.
    facts: Tunnel,
    facts_at: u64,
    live: Live,
    live_at: u64,
}

/// What changes all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Live {
    /// When the last byte moved, in milliseconds since 1970.
    moved: u64,
    counts: [u64; 6],
}

/// The changes since a generation.
#[derive(Debug, Serialize)]
pub(super) struct Changes {
    /// What a page asks with next time.
    generation: u64,
    /// Whether these are all tunnels, and those that the page knows are to be forgotten.
    reset: bool,
    /// New tunnels, and those with other limits or software.
    facts: Vec<Facts>,
    /// Of those that have moved bytes.
    live: Vec<LiveRow>,
    /// Keys of those that have ended.
    gone: Vec<String>,
}

/// What changes all the time of the tunnel with that key: last byte, bytes sent and received, rates, waits.
type LiveRow = (String, u64, u64, u64, u64, u64, u64, u64);

/// A tunnel, without what changes all the time.
#[derive(Debug, Serialize)]
struct Facts {
    key: String,
    replica: String,
    #[serde(flatten)]
    tunnel: Tunnel,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            generation: 1,
            rows: HashMap::new(),
            seen: HashMap::new(),
            gone: VecDeque::new(),
            whole_since: 0,
        }
    }
}

impl Known {
    /// Takes over what the replicas have answered. A replica that does not answer keeps its tunnels: they are shown as they
    /// were seen last.
    pub(super) fn see(&mut self, snapshot: &Snapshot, now: u64) {
        let next = self.generation + 1;
        let mut is_changed = false;
        let mut there = HashSet::new();
        for seen in &snapshot.replicas {
            there.insert(Arc::clone(&seen.replica));
            // It has not answered yet: what was seen before stays.
            if seen.answered.is_none() {
                continue;
            }
            let is_same = |before: &Arc<[Tunnel]>| Arc::ptr_eq(before, &seen.tunnels);
            if self.seen.get(&seen.replica).is_some_and(is_same) {
                continue;
            }
            is_changed = true;
            self.seen.insert(Arc::clone(&seen.replica), Arc::clone(&seen.tunnels));
            self.compare(&seen.replica, &seen.tunnels, next, now);
        }
        if self.seen.len() > there.len() {
            is_changed = true;
            self.seen.retain(|replica, _| there.contains(replica));
            self.forget(next, |row| !there.contains(&row.replica));
        }
        if is_changed {
            self.generation = next;
        }
    }

    fn compare(&mut self, replica: &Arc<str>, tunnels: &[Tunnel], next: u64, now: u64) {
        let mut keys = HashSet::new();
        for tunnel in tunnels {
            let key = format!("{replica}/{}", tunnel.tunnel_id);
            let (facts, live) = split(tunnel, now);
            keys.insert(key.clone());
            let row = self.rows.entry(key).or_insert_with(|| Row {
                replica: Arc::clone(replica),
                facts: facts.clone(),
                facts_at: next,
                live,
                live_at: next,
            });
            if row.facts != facts {
                (row.facts, row.facts_at) = (facts, next);
            }
            // Its last byte is only known to the millisecond of an answer: the bytes say whether there was another one.
            if row.live.counts != live.counts {
                (row.live, row.live_at) = (live, next);
            }
        }
        self.forget(next, |row| {
            row.replica == *replica && !keys.contains(&format!("{replica}/{}", row.facts.tunnel_id))
        });
    }

    fn forget(&mut self, next: u64, is_gone: impl Fn(&Row) -> bool) {
        let gone = self.rows.extract_if(|_, row| is_gone(row));
        self.gone.extend(gone.map(|(key, _)| (next, key)));
        while self.gone.len() > MOST_GONE {
            if let Some((generation, _)) = self.gone.pop_front() {
                self.whole_since = generation;
            }
        }
    }

    /// What has changed since a generation that a page has; 0 is a page without any.
    pub(super) fn since(&self, generation: u64) -> Changes {
        let reset = generation == 0 || generation < self.whole_since || generation > self.generation;
        let since = if reset { 0 } else { generation };
        let rows = || self.rows.iter();
        let facts = rows().filter(|(_, row)| row.facts_at > since);
        let live = rows().filter(|(_, row)| row.live_at > since);
        // One that was seen again since is among the facts.
        let is_gone = |(at, key): &&(u64, String)| !reset && *at > since && !self.rows.contains_key(key);
        let gone = self.gone.iter().filter(is_gone);
        Changes {
            generation: self.generation,
            reset,
            facts: facts.map(|(key, row)| row.facts(key)).collect(),
            live: live.map(|(key, row)| row.live(key)).collect(),
            gone: gone.map(|(_, key)| key.clone()).collect(),
        }
    }
}

impl Row {
    fn facts(&self, key: &str) -> Facts {
        Facts {
            key: key.to_owned(),
            replica: self.replica.to_string(),
            tunnel: self.facts.clone(),
        }
    }

    fn live(&self, key: &str) -> LiveRow {
        let [sent, received, down, up, waited_down, waited_up] = self.live.counts;
        let moved = self.live.moved;
        (key.to_owned(), moved, sent, received, down, up, waited_down, waited_up)
    }
}

/// A tunnel without what changes all the time, and that.
fn split(tunnel: &Tunnel, now: u64) -> (Tunnel, Live) {
    let mut facts = tunnel.clone();
    let live = Live {
        moved: now.saturating_sub(tunnel.idle_ms),
        counts: [
            std::mem::take(&mut facts.bytes_sent),
            std::mem::take(&mut facts.bytes_received),
            std::mem::take(&mut facts.sent_per_second),
            std::mem::take(&mut facts.received_per_second),
            std::mem::take(&mut facts.download.waited_ms),
            std::mem::take(&mut facts.upload.waited_ms),
        ],
    };
    (facts.age_ms, facts.idle_ms) = (0, 0);
    (facts, live)
}

/// A page that has missed more ends gets all tunnels anew.
const MOST_GONE: usize = 20_000;

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::operator::replicas::Seen;

    fn tunnel(id: &str, sent: u64) -> Tunnel {
        let json = serde_json::json!({
            "tunnel_id": id, "since": "2026-01-01T00:00:00.000Z", "age_ms": 5, "idle_ms": 3, "client.address": "192.0.2.1",
            "client.port": 1, "network.peer.address": "192.0.2.1", "client.software": "", "user.name": "",
            "http.version": "1", "tls.version": "", "server.address": "a", "server.port": 22, "target.namespace": "n",
            "target.service": "s", "upstream.address": null, "upstream.software": "", "tunnel.resumable": false,
            "bytes_sent": sent, "bytes_received": 0, "sent_per_second": 0, "received_per_second": 0,
            "download": {"rate": "unlimited", "is_own": false, "waited_ms": 0},
            "upload": {"rate": "unlimited", "is_own": false, "waited_ms": 0},
            "upstream.node": "",
        });
        serde_json::from_value(json).unwrap()
    }

    fn snapshot(replicas: &[(&str, &[Tunnel])]) -> Snapshot {
        let seen = replicas.iter().map(|(name, tunnels)| Seen {
            replica: (*name).into(),
            tunnels: (*tunnels).into(),
            answered: Some(Instant::now()),
            error: None,
        });
        Snapshot {
            replicas: seen.collect(),
            error: None,
        }
    }

    /// Generation, keys of facts, keys of live rows, keys of those gone.
    fn told(known: &Known, since: u64) -> (bool, Vec<String>, Vec<String>, Vec<String>) {
        let Changes {
            reset,
            facts,
            live,
            mut gone,
            ..
        } = known.since(since);
        let mut facts: Vec<_> = facts.into_iter().map(|row| row.key).collect();
        let mut live: Vec<_> = live.into_iter().map(|row| row.0).collect();
        facts.sort();
        live.sort();
        gone.sort();
        (reset, facts, live, gone)
    }

    fn keys(keys: &[&str]) -> Vec<String> {
        keys.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_answer_holds_what_has_changed_since_the_last_one() {
        let mut known = Known::default();
        let none = keys(&[]);
        assert_eq!(told(&known, 0), (true, none.clone(), none.clone(), none.clone()));
        known.see(&snapshot(&[("r", &[tunnel("a", 1), tunnel("b", 1)])]), 10);
        let all = keys(&["r/a", "r/b"]);
        assert_eq!(told(&known, 0), (true, all.clone(), all.clone(), none.clone()));
        // What was told before anything was known.
        assert_eq!(told(&known, 1), (false, all.clone(), all, none.clone()));
        assert_eq!(told(&known, 2), (false, none.clone(), none.clone(), none.clone()));
        let mut limited = tunnel("b", 1);
        limited.download.rate = "1MiB/s".to_owned();
        known.see(
            &snapshot(&[("r", &[tunnel("a", 2), limited.clone()]), ("s", &[tunnel("a", 1)])]),
            20,
        );
        let both = keys(&["r/a", "s/a"]);
        assert_eq!(told(&known, 2), (false, keys(&["r/b", "s/a"]), both, none.clone()));
        known.see(&snapshot(&[("r", &[limited])]), 30);
        assert_eq!(
            told(&known, 3),
            (false, none.clone(), none.clone(), keys(&["r/a", "s/a"]))
        );
        assert_eq!(told(&known, 0), (true, keys(&["r/b"]), keys(&["r/b"]), none.clone()));
        // Of another desk.
        assert_eq!(told(&known, 99), (true, keys(&["r/b"]), keys(&["r/b"]), none));
    }

    #[test]
    fn a_tunnel_that_is_seen_again_is_not_gone() {
        let mut known = Known::default();
        let (with, without): (&[Tunnel], &[Tunnel]) = (&[tunnel("a", 1)], &[]);
        known.see(&snapshot(&[("r", with)]), 10);
        known.see(&snapshot(&[("r", without)]), 20);
        known.see(&snapshot(&[("r", with)]), 30);
        let (keys, none) = (keys(&["r/a"]), keys(&[]));
        assert_eq!(told(&known, 2), (false, keys.clone(), keys, none));
    }

    #[test]
    fn the_tunnels_of_a_replica_that_has_not_answered_yet_stay() {
        let mut known = Known::default();
        known.see(&snapshot(&[("r", &[tunnel("a", 1)])]), 10);
        let mut unanswered = snapshot(&[("r", &[])]);
        unanswered.replicas.iter_mut().for_each(|seen| seen.answered = None);
        known.see(&unanswered, 20);
        assert_eq!(told(&known, 0), (true, keys(&["r/a"]), keys(&["r/a"]), keys(&[])));
    }

    #[test]
    fn a_page_that_has_missed_too_many_ends_begins_anew() {
        let mut known = Known::default();
        let many: Vec<_> = (0..MOST_GONE + 1)
            .map(|number| tunnel(&number.to_string(), 0))
            .collect();
        known.see(&snapshot(&[("r", &many)]), 10);
        known.see(&snapshot(&[("r", &[])]), 20);
        known.see(&snapshot(&[("r", &[tunnel("a", 0)])]), 30);
        assert!(told(&known, 2).0);
        assert_eq!(told(&known, 3), (false, keys(&["r/a"]), keys(&["r/a"]), keys(&[])));
    }
}
