//! The state of all replicas, and the changes since a page's last request: an answer has only changed tunnels.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::daemon::admin::DrainStatus;
use crate::daemon::admin::api::{EndedTunnel, Refusals, RefusalsByReason, Restriction, Target, Tunnel};
use crate::operator::replicas::{FromReplica, Replica, ReplicaError, TargetRow, by_target};

/// The state of all replicas.
#[derive(Debug, Default)]
pub(super) struct State {
    started: u64,
    /// By name.
    replicas: BTreeMap<Arc<str>, ReplicaState>,
    /// Why the current replicas cannot be found; `None` if they are.
    fault: Option<String>,
    /// Incremented by each list of replicas or tunnels. 0 is a page without state.
    generation: u64,
    /// The keys of ended tunnels, with the generation in which that was seen, the oldest first.
    gone: VecDeque<(u64, String)>,
    /// The first generation after which `gone` is complete.
    whole_since: u64,
    ended: Recent<MAX_ENDED>,
    /// The number of events that replicas have dropped, because the desk did not read them in time.
    missed: u64,
}

/// The state of one replica.
#[derive(Debug)]
pub(super) struct ReplicaState {
    replica: Replica,
    /// The tunnels of its last answer by their ids, each with the generation of its last change.
    tunnels: HashMap<String, (u64, TunnelRow)>,
    /// The time of that answer; `None` before the first, and after a rest.
    answered: Option<Instant>,
    /// `None` after an answer.
    error: Option<String>,
    /// `None` while its events are read.
    pub(super) event_errors: Option<String>,
    drain: DrainStatus,
    refusals: Vec<RefusalsByReason>,
    /// The refusals of its last hour.
    refused: Recent<MAX_REFUSED>,
    targets: Vec<Target>,
    /// Its limits and blocks.
    pub(super) restrictions: Vec<Restriction>,
}

/// The answer to a page: the state, and the tunnels that have changed since a generation.
#[derive(Debug, Serialize)]
pub(super) struct Changes {
    /// The generation for the page's next request.
    generation: u64,
    /// True if these are all tunnels, and the page must drop those that it has.
    reset: bool,
    /// New tunnels, and those that have changed.
    tunnels: Vec<TunnelRow>,
    /// The keys of ended tunnels.
    gone: Vec<String>,
    /// Milliseconds since 1970.
    now: u64,
    started: u64,
    /// As in [`State`].
    fault: Option<String>,
    pub(super) replicas: Vec<ReplicaRow>,
    targets: Vec<TargetRow>,
    restrictions: Vec<FromReplica<Restriction>>,
    refusals: RefusalRows,
    /// The number of tunnels that have ended so far. When it grows, a page that shows ended tunnels requests them.
    ended: u64,
    /// How many events were missed: ends, refusals and others.
    missed: u64,
}

#[derive(Clone, Debug, Serialize)]
struct TunnelRow {
    key: String,
    replica: String,
    /// When it was last active, in milliseconds since 1970.
    active_at: u64,
    /// Age and idle time are set to 0: they change all the time.
    #[serde(flatten)]
    tunnel: Tunnel,
}

#[derive(Debug, Serialize)]
pub(super) struct ReplicaRow {
    name: String,
    error: Option<String>,
    /// In milliseconds since 1970; `None` as in [`ReplicaState`].
    answered: Option<u64>,
    /// The tunnels of its last answer.
    tunnels: usize,
    /// Empty while unknown.
    phase: String,
    resumable: u32,
    connections: u32,
    #[serde(rename = "deaf")]
    event_errors: Option<String>,
}

/// The replicas' counts of refusals since they started, and the latest refusals.
#[derive(Debug, Serialize)]
struct RefusalRows {
    /// The most frequent one first.
    reasons: Vec<ReasonRow>,
    /// The refusals of the last hour, at most [`MAX_REFUSED`], the latest first.
    latest: Vec<Value>,
}

#[derive(Debug, Serialize)]
struct ReasonRow {
    reason: String,
    sentence: String,
    count: u64,
    /// In milliseconds since 1970.
    last: u64,
}

impl State {
    /// Creates a state without replicas.
    pub(super) fn new() -> Self {
        Self {
            started: now(),
            ..Self::default()
        }
    }

    /// Returns whether each replica has answered or failed, or they cannot be found.
    pub(super) fn is_complete(&self) -> bool {
        let is_known = |state: &ReplicaState| state.answered.is_some() || state.error.is_some();
        self.fault.is_some() || (!self.replicas.is_empty() && self.replicas.values().all(is_known))
    }

    /// Returns the replica with that name.
    pub(super) fn replica(&self, name: &str) -> Option<Replica> {
        Some(self.replicas.get(name)?.replica.clone())
    }

    /// Changes the state of a replica, if it still exists.
    pub(super) fn with(&mut self, name: &str, change: impl FnOnce(&mut ReplicaState)) {
        if let Some(state) = self.replicas.get_mut(name) {
            change(state);
        }
    }

    /// Sets the current replicas. Known ones keep their state.
    pub(super) fn keep(&mut self, found: Vec<Replica>) {
        self.fault = None;
        let mut before = std::mem::take(&mut self.replicas);
        for replica in found {
            let name = Arc::clone(replica.name());
            let state = match before.remove(&name) {
                Some(known) => ReplicaState { replica, ..known },
                None => ReplicaState::new(replica),
            };
            self.replicas.insert(name, state);
        }
        self.generation += 1;
        for state in before.into_values() {
            self.forget(state.tunnels);
        }
    }

    /// Notes why the replicas cannot be found.
    pub(super) fn fail(&mut self, error: String) {
        self.fault = Some(error);
    }

    /// Sets a replica's tunnels. A replica that does not answer keeps its last tunnels, but not its targets.
    pub(super) fn set_counts(&mut self, name: &str, answer: Result<Vec<Tunnel>, ReplicaError>, now: u64) {
        let Some(state) = self.replicas.get_mut(name) else {
            return;
        };
        let tunnels = match answer {
            Ok(tunnels) => tunnels,
            Err(error) => {
                state.error = Some(error.to_string());
                state.targets.clear();
                return;
            }
        };
        self.generation += 1;
        let changed = self.generation;
        let mut before = std::mem::take(&mut state.tunnels);
        let rows = tunnels.into_iter().map(|mut tunnel| {
            let active_at = now.saturating_sub(tunnel.idle_ms);
            (tunnel.age_ms, tunnel.idle_ms) = (0, 0);
            let id = tunnel.tunnel_id.clone();
            let row = match before.remove(&id) {
                // `active_at` varies with the delay of an answer; `last_active`, which is compared, does not.
                Some((since, known)) if known.tunnel == tunnel => (since, known),
                Some(_) | None => {
                    let (key, replica) = (key(name, &id), name.to_owned());
                    (
                        changed,
                        TunnelRow {
                            key,
                            replica,
                            active_at,
                            tunnel,
                        },
                    )
                }
            };
            (id, row)
        });
        state.tunnels = rows.collect();
        (state.answered, state.error) = (Some(Instant::now()), None);
        self.forget(before);
    }

    fn forget(&mut self, tunnels: HashMap<String, (u64, TunnelRow)>) {
        let keys = tunnels.into_values().map(|(_, row)| (self.generation, row.key));
        self.gone.extend(keys);
        while self.gone.len() > MAX_GONE {
            if let Some((generation, _)) = self.gone.pop_front() {
                self.whole_since = generation;
            }
        }
    }

    /// Notes an event of a replica.
    pub(super) fn note(&mut self, replica: &str, event: &str, data: Value, now: u64) {
        match event {
            "closed" => self.ended.push(replica, data, now),
            "missed" => {
                let events = data.get("events").and_then(Value::as_u64).unwrap_or_default();
                self.missed = self.missed.saturating_add(events);
            }
            _ => {}
        }
    }

    /// Notes the tunnels that have ended on a replica in the past hour.
    pub(super) fn note_past(&mut self, replica: &str, past: &[EndedTunnel], now: u64) {
        for tunnel in past {
            let data = serde_json::to_value(tunnel).unwrap_or_default();
            self.ended.push(replica, data, now.saturating_sub(tunnel.ago_ms));
        }
    }

    /// Returns the tunnels that have ended in the last hour, the latest first.
    pub(super) fn ended(&self, now: u64) -> Vec<Value> {
        self.ended.list(now)
    }

    /// Returns the changes since a page's generation; all tunnels if the generation is 0, too old or unknown.
    pub(super) fn changes_since(&self, generation: u64, now: u64) -> Changes {
        let reset = generation == 0 || generation < self.whole_since || generation > self.generation;
        let since = if reset { 0 } else { generation };
        let mut tunnels = Vec::new();
        for state in self.replicas.values() {
            let rows = state.tunnels.values().filter(|(changed, _)| *changed > since);
            tunnels.extend(rows.map(|(_, row)| row.clone()));
        }
        let gone = self.gone.iter().filter(|(at, _)| !reset && *at > since);
        // A tunnel that came back is in both `gone` and `tunnels`: a page applies `gone` first.
        let gone = gone.map(|(_, key)| key.clone()).collect();
        let targets = self.replicas.iter();
        let targets = targets.flat_map(|(name, state)| state.targets.iter().map(move |target| (&**name, target)));
        Changes {
            generation: self.generation,
            reset,
            tunnels,
            gone,
            now,
            started: self.started,
            fault: self.fault.clone(),
            replicas: self.replicas.iter().map(|(name, state)| state.row(name, now)).collect(),
            targets: by_target(targets),
            restrictions: self.restrictions(),
            refusals: RefusalRows {
                reasons: self.reasons(),
                latest: self.refused(now),
            },
            ended: self.ended.noted,
            missed: self.missed,
        }
    }

    /// Returns the limits and blocks of all replicas.
    fn restrictions(&self) -> Vec<FromReplica<Restriction>> {
        let of_replicas = self.replicas.iter().flat_map(|(name, state)| {
            let of = |item: &Restriction| FromReplica {
                replica: name.to_string(),
                item: item.clone(),
            };
            state.restrictions.iter().take(MAX_RESTRICTIONS).map(of)
        });
        of_replicas.collect()
    }

    /// Returns the latest refusals of all replicas.
    fn refused(&self, now: u64) -> Vec<Value> {
        let of_replicas = self.replicas.values();
        let mut latest: Vec<_> = of_replicas.flat_map(|state| state.refused.list(now)).collect();
        latest.sort_by_key(|refused| Reverse(time(refused)));
        latest.truncate(MAX_REFUSED);
        latest
    }

    /// Returns the refusals by reason, summed over all replicas.
    fn reasons(&self) -> Vec<ReasonRow> {
        let mut sums: BTreeMap<&str, (u64, u64, &str)> = BTreeMap::new();
        for known in self.replicas.values().flat_map(|state| &state.refusals) {
            let (count, last, sentence) = sums.entry(&known.reason).or_default();
            *sentence = &known.sentence;
            *count = count.saturating_add(known.count);
            *last = (*last).max(millis(&known.last));
        }
        let rows = sums.into_iter().map(|(reason, (count, last, sentence))| ReasonRow {
            reason: reason.to_owned(),
            sentence: sentence.to_owned(),
            count,
            last,
        });
        let mut rows: Vec<_> = rows.collect();
        rows.sort_by_key(|row| Reverse(row.count));
        rows
    }
}

impl ReplicaState {
    fn new(replica: Replica) -> Self {
        Self {
            replica,
            tunnels: HashMap::new(),
            answered: None,
            error: None,
            event_errors: None,
            drain: DrainStatus::default(),
            refusals: Vec::new(),
            refused: Recent::default(),
            targets: Vec::new(),
            restrictions: Vec::new(),
        }
    }

    /// Makes the next page wait for a new answer.
    pub(super) fn rest(&mut self) {
        (self.answered, self.error) = (None, None);
    }

    /// Sets what is polled less often. `None` changes nothing.
    pub(super) fn update(&mut self, drain: Option<DrainStatus>, refusals: Option<Refusals>, targets: Vec<Target>) {
        self.targets = targets;
        if let Some(drain) = drain {
            self.drain = drain;
        }
        let Some(Refusals { reasons, past }) = refusals else {
            return;
        };
        let shortened = reasons.into_iter().take(MAX_REASONS).map(|known| RefusalsByReason {
            reason: known.reason.chars().take(MAX_TEXT).collect(),
            sentence: known.sentence.chars().take(MAX_TEXT).collect(),
            ..known
        });
        self.refusals = shortened.collect();
        self.refused = Recent::default();
        for entry in past.into_iter().flat_map(|past| past.refusals) {
            let data = serde_json::to_value(&entry).unwrap_or_default();
            self.refused
                .push(self.replica.name(), data, now().saturating_sub(entry.ago_ms));
        }
    }

    fn row(&self, name: &str, now: u64) -> ReplicaRow {
        let ago = |at: Instant| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
        ReplicaRow {
            name: name.to_owned(),
            error: self.error.clone(),
            answered: self.answered.map(|at| now.saturating_sub(ago(at))),
            tunnels: self.tunnels.len(),
            phase: self.drain.phase.clone(),
            resumable: self.drain.resumable.unwrap_or_default(),
            connections: self.drain.connections,
            event_errors: self.event_errors.clone(),
        }
    }
}

/// The latest events of one kind, as the replicas report them: at most `MOST`, each once, the latest first.
#[derive(Debug, Default)]
struct Recent<const MOST: usize> {
    events: VecDeque<Value>,
    /// The number of events so far, with those that were dropped.
    noted: u64,
}

impl<const MOST: usize> Recent<MOST> {
    /// Adds the data of an event, with the replica and the time in milliseconds since 1970.
    fn push(&mut self, replica: &str, data: Value, now: u64) {
        let Value::Object(mut data) = data else { return };
        shorten(&mut data);
        data.insert("replica".to_owned(), replica.into());
        data.insert("at".to_owned(), now.into());
        let data = data.into();
        if id(&data).is_some_and(|own| self.events.iter().any(|known| id(known) == Some(own))) {
            return;
        }
        let place = self.events.partition_point(|known| time(known) > now);
        self.events.insert(place, data);
        self.events.truncate(MOST);
        self.noted += 1;
    }

    /// Returns the events of the last hour.
    fn list(&self, now: u64) -> Vec<Value> {
        let is_recent = |one: &&Value| time(one) + HOUR_MS > now;
        self.events.iter().filter(is_recent).cloned().collect()
    }
}

/// Returns the time of an event.
fn time(event: &Value) -> u64 {
    event.get("at").and_then(Value::as_u64).unwrap_or_default()
}

/// Returns the replica and the id of an event.
fn id(event: &Value) -> Option<(&Value, &Value)> {
    event.get("replica").zip(event.get("tunnel_id"))
}

/// Keeps [`MAX_FIELDS`] strings and numbers, and the beginning of each string: a replica may send anything.
fn shorten(data: &mut Map<String, Value>) {
    let mut kept = 0;
    data.retain(|name, value| {
        if let Value::String(text) = value {
            *text = text.chars().take(MAX_TEXT).collect();
        }
        let is_plain = matches!(value, Value::String(_) | Value::Number(_)) && name.len() <= MAX_TEXT;
        kept += usize::from(is_plain);
        is_plain && kept <= MAX_FIELDS
    });
}

fn key(replica: &str, id: &str) -> String {
    format!("{replica}/{id}")
}

/// Returns the milliseconds since 1970.
pub(super) fn now() -> u64 {
    since_1970(SystemTime::now())
}

/// Returns a time of RFC 3339 in milliseconds since 1970; 0 if it is invalid.
fn millis(moment: &str) -> u64 {
    humantime::parse_rfc3339(moment).map_or(0, since_1970)
}

fn since_1970(moment: SystemTime) -> u64 {
    let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A page that has missed more ended tunnels gets all tunnels again.
const MAX_GONE: usize = 20_000;
/// More than the proxy has.
const MAX_REASONS: usize = 100;
const MAX_RESTRICTIONS: usize = 256;
pub(super) const MAX_REFUSED: usize = 100;
/// A busy hour has more; the replicas' access logs have them all.
const MAX_ENDED: usize = 1000;
/// More than an access line has.
const MAX_FIELDS: usize = 64;
/// One hour.
const HOUR_MS: u64 = 3_600_000;
/// Characters of a string.
const MAX_TEXT: usize = 300;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::daemon::admin::api::{self, PastRefusals};

    const R: &str = "192.0.2.1:1";
    const S: &str = "192.0.2.1:2";

    fn tunnel(id: &str, sent: u64) -> Tunnel {
        Tunnel {
            age_ms: sent * 7,
            idle_ms: 3,
            bytes_sent: sent,
            ..api::tests::tunnel(id)
        }
    }

    fn found(names: &[&str]) -> Vec<Replica> {
        let addresses = names.iter().map(|name| name.parse::<SocketAddr>().unwrap());
        addresses
            .map(|address| Replica::at(address, Duration::from_secs(1)))
            .collect()
    }

    fn state(names: &[&str]) -> State {
        let mut state = State::new();
        state.keep(found(names));
        state
    }

    /// Returns whether the page begins again, the keys of the tunnels that have changed, and the keys of those that are gone.
    fn told(state: &State, since: u64) -> (bool, Vec<String>, Vec<String>) {
        let Changes {
            reset,
            tunnels,
            mut gone,
            ..
        } = state.changes_since(since, 0);
        let mut changed: Vec<_> = tunnels.into_iter().map(|row| row.key).collect();
        changed.sort();
        gone.sort();
        (reset, changed, gone)
    }

    fn keys(keys: &[(&str, &str)]) -> Vec<String> {
        keys.iter().map(|(replica, id)| key(replica, id)).collect()
    }

    #[test]
    fn an_answer_holds_what_has_changed_since_the_last_one() {
        let mut state = state(&[R, S]);
        assert_eq!(told(&state, 0), (true, keys(&[]), keys(&[])));
        state.set_counts(R, Ok(vec![tunnel("a", 1), tunnel("b", 1)]), 10);
        let first = state.generation;
        let all = keys(&[(R, "a"), (R, "b")]);
        assert_eq!(told(&state, 0), (true, all.clone(), keys(&[])));
        // From before anything was known.
        assert_eq!(told(&state, first - 1), (false, all, keys(&[])));
        assert_eq!(told(&state, first), (false, keys(&[]), keys(&[])));
        assert_eq!(state.changes_since(0, 0).tunnels[0].active_at, 7);
        let mut limited = tunnel("b", 1);
        limited.download.rate = "1MiB/s".to_owned();
        // The age of a tunnel is no change.
        let mut older = tunnel("c", 1);
        state.set_counts(R, Ok(vec![tunnel("a", 2), limited.clone(), older.clone()]), 20);
        state.set_counts(S, Ok(vec![tunnel("a", 1)]), 20);
        let second = state.generation;
        let all = keys(&[(R, "a"), (R, "b"), (R, "c"), (S, "a")]);
        assert_eq!(told(&state, first), (false, all, keys(&[])));
        (older.age_ms, older.idle_ms) = (1000, 1000);
        state.set_counts(R, Ok(vec![limited, older]), 30);
        assert_eq!(told(&state, second), (false, keys(&[]), keys(&[(R, "a")])));
        state.keep(found(&[R]));
        assert_eq!(told(&state, second), (false, keys(&[]), keys(&[(R, "a"), (S, "a")])));
        let left = keys(&[(R, "b"), (R, "c")]);
        assert_eq!(told(&state, 0), (true, left.clone(), keys(&[])));
        // Of another desk.
        assert_eq!(told(&state, 99), (true, left, keys(&[])));
    }

    #[test]
    fn a_tunnel_that_is_seen_again_has_changed() {
        let mut state = state(&[R]);
        state.set_counts(R, Ok(vec![tunnel("a", 1)]), 10);
        let since = state.generation;
        state.set_counts(R, Ok(Vec::new()), 20);
        state.set_counts(R, Ok(vec![tunnel("a", 1)]), 30);
        // A page forgets those that are gone before it takes over the others.
        assert_eq!(told(&state, since), (false, keys(&[(R, "a")]), keys(&[(R, "a")])));
    }

    #[test]
    fn the_tunnels_of_a_replica_that_does_not_answer_stay() {
        let mut state = state(&[R]);
        assert!(!state.is_complete());
        state.set_counts(R, Ok(vec![tunnel("a", 1)]), 10);
        assert!(state.is_complete());
        state.with(R, ReplicaState::rest);
        assert!(!state.is_complete());
        state.set_counts(R, Err(ReplicaError::Timeout(Duration::from_secs(1))), 20);
        state.keep(found(&[R, S]));
        assert_eq!(told(&state, 0), (true, keys(&[(R, "a")]), keys(&[])));
        let error = &state.changes_since(0, 0).replicas[0].error;
        assert_eq!(error.as_deref(), Some("no answer within 1s"));
    }

    #[test]
    fn a_page_that_has_missed_too_many_ends_begins_again() {
        let mut state = state(&[R]);
        let many = (0..=MAX_GONE).map(|number| tunnel(&number.to_string(), 0));
        state.set_counts(R, Ok(many.collect()), 10);
        let before = state.generation;
        state.set_counts(R, Ok(Vec::new()), 20);
        let after = state.generation;
        state.set_counts(R, Ok(vec![tunnel("a", 0)]), 30);
        assert!(told(&state, before).0);
        assert_eq!(told(&state, after), (false, keys(&[(R, "a")]), keys(&[])));
    }

    fn refusals(reason: &str, count: u64) -> Option<Refusals> {
        let last = "1970-01-01T00:00:01.500Z".to_owned();
        let reason = reason.to_owned();
        let sentence = String::new();
        let reasons = vec![RefusalsByReason {
            reason,
            sentence,
            count,
            last,
        }];
        Some(Refusals { reasons, past: None })
    }

    #[test]
    fn the_refusals_of_all_replicas_are_counted_as_one() {
        let mut state = state(&[R, S]);
        let mut learn = |name: &str, count| {
            state.with(name, |known| {
                known.update(None, refusals("not_allowed", count), Vec::new())
            });
            let rows = state.reasons();
            assert_eq!((rows.len(), &*rows[0].reason, rows[0].last), (1, "not_allowed", 1500));
            rows[0].count
        };
        assert_eq!(learn(R, 3), 3);
        assert_eq!(learn(S, 4), 7);
        // The next answer is in place of the one before.
        assert_eq!(learn(R, 5), 9);
        assert_eq!(learn(S, u64::MAX), u64::MAX);
        state.keep(found(&[R]));
        assert_eq!(state.reasons()[0].count, 5);
    }

    #[test]
    fn what_a_peer_has_sent_is_kept_short_and_few() {
        let mut state = state(&[R]);
        let entry = |number: usize| {
            let number = number.to_string();
            let refused = json!({
                "tunnel_id": number, "client.address": "192.0.2.1", "user.name": "", "auth.claimed_user": "",
                "authority": "x".repeat(1000), "target.namespace": "", "target.service": "", "status": 403,
                "reason": "not_allowed", "closed_by": "proxy", "sentence": "", "authorization.reason": "", "first": "",
                "last": "", "ago_ms": 5, "count": 1, "others": 0,
            });
            serde_json::from_value(refused).unwrap()
        };
        let past = Some(PastRefusals {
            refusals: (0..MAX_REFUSED + 500).map(entry).collect(),
            ..PastRefusals::default()
        });
        let many = (0..MAX_REASONS + 500).flat_map(|number| {
            let reason = format!("{number}{}", "x".repeat(1000));
            refusals(&reason, 1).unwrap().reasons
        });
        let reasons = many.collect();
        state.with(R, |known| {
            known.update(None, Some(Refusals { reasons, past }), Vec::new())
        });
        let told = state.changes_since(0, now()).refusals;
        assert_eq!((told.reasons.len(), told.latest.len()), (MAX_REASONS, MAX_REFUSED));
        assert_eq!(told.reasons[0].reason.len(), MAX_TEXT);
        assert_eq!(told.latest[0]["authority"].as_str().unwrap().len(), MAX_TEXT);
    }

    #[test]
    fn ends_of_the_past_hour_and_events_are_one_list_with_each_end_once() {
        let mut state = state(&[R, S]);
        let ended = |id: &str, ago_ms| EndedTunnel {
            ago_ms,
            ..api::tests::ended(id)
        };
        state.note(R, "closed", json!({"tunnel_id": "c"}), 3 * HOUR_MS);
        state.note_past(R, &[ended("c", 5), ended("a", 20)], 3 * HOUR_MS + 5);
        state.note_past(S, &[ended("c", 10), ended("old", HOUR_MS)], 3 * HOUR_MS + 5);
        // As after an interruption of the events.
        state.note_past(R, &[ended("c", 6), ended("a", 21)], 3 * HOUR_MS + 6);
        let told = state.ended(3 * HOUR_MS + 5);
        let told: Vec<_> = told.iter().map(|one| (&one["replica"], &one["tunnel_id"])).collect();
        assert_eq!(json!(told), json!([[R, "c"], [S, "c"], [R, "a"]]));
    }

    #[test]
    fn what_a_peer_has_sent_is_kept_short_few_and_for_an_hour() {
        let mut latest = Recent::<3>::default();
        for number in 0..5 {
            let data = json!({"reason": format!("reason{number}"), "authority": "x".repeat(100_000), "more": {"a": 1}});
            latest.push("one", data, HOUR_MS + number);
        }
        latest.push("one", json!("no object"), HOUR_MS);
        let mut broad = Recent::<1>::default();
        let fields = (0..1000).map(|number| (number.to_string(), json!(number)));
        broad.push("one", Value::Object(fields.collect()), HOUR_MS);
        assert_eq!(broad.list(HOUR_MS)[0].as_object().unwrap().len(), MAX_FIELDS + 2);
        assert_eq!(latest.noted, 5);
        let told = latest.list(HOUR_MS + 10);
        let reasons: Vec<_> = told.iter().map(|one| one["reason"].as_str().unwrap()).collect();
        assert_eq!(reasons, ["reason4", "reason3", "reason2"]);
        assert_eq!(told[0]["authority"].as_str().unwrap().len(), MAX_TEXT);
        assert!(told[0].get("more").is_none());
        assert_eq!(told[0]["replica"], "one");
        assert_eq!(latest.list(2 * HOUR_MS + 3).len(), 1);
    }
}
