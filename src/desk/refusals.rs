//! The refusals of the last hour, by reason and minute, as the replicas tell them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;
use serde_json::{Map, Value};

/// What was refused.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    reasons: BTreeMap<String, Reason>,
    latest: VecDeque<Value>,
    missed: u64,
}

/// Refusals for one reason.
#[derive(Debug)]
struct Reason {
    /// By minute since 1970, modulo an hour.
    minutes: [u32; MINUTES],
    /// The minute of the last one.
    minute: u64,
    /// The time of the last one, in milliseconds since 1970.
    last: u64,
}

/// What pages are told.
#[derive(Debug, Serialize)]
pub(super) struct Told {
    /// The most frequent one first.
    reasons: Vec<ReasonTold>,
    /// The last one first.
    latest: Vec<Value>,
    /// Events that were dropped because they came too fast; some of them were refusals.
    missed: u64,
}

#[derive(Debug, Serialize)]
struct ReasonTold {
    reason: String,
    count: u64,
    last: u64,
    /// The oldest first.
    minutes: Vec<u32>,
}

impl Refusals {
    /// Counts one, by the data of its event.
    pub(super) fn count(&mut self, replica: &str, data: Value, now: u64) {
        let Value::Object(mut data) = data else { return };
        let reason = data
            .get("reason")
            .and_then(Value::as_str)
            .unwrap_or("unknown")
            .to_owned();
        if self.reasons.len() < MOST_REASONS || self.reasons.contains_key(&reason) {
            self.reasons.entry(reason).or_insert_with(Reason::new).count(now);
        }
        shorten(&mut data);
        data.insert("replica".to_owned(), replica.into());
        data.insert("at".to_owned(), now.into());
        self.latest.push_front(data.into());
        self.latest.truncate(MOST_LATEST);
    }

    /// Notes events that a replica has dropped.
    pub(super) fn miss(&mut self, data: &Value) {
        self.missed += data.get("events").and_then(Value::as_u64).unwrap_or(1);
    }

    /// Those of the hour before.
    pub(super) fn told(&self, now: u64) -> Told {
        let told = self.reasons.iter().map(|(reason, counted)| counted.told(reason, now));
        let mut reasons: Vec<_> = told.filter(|told| told.count > 0).collect();
        reasons.sort_by_key(|told| Reverse(told.count));
        let is_recent = |one: &&Value| {
            let at = one.get("at").and_then(Value::as_u64);
            at.is_some_and(|at| at + HOUR_MS > now)
        };
        Told {
            reasons,
            latest: self.latest.iter().filter(is_recent).cloned().collect(),
            missed: self.missed,
        }
    }
}

impl Reason {
    fn new() -> Self {
        Self {
            minutes: [0; MINUTES],
            minute: 0,
            last: 0,
        }
    }

    fn count(&mut self, now: u64) {
        let minute = now / MINUTE_MS;
        // The minutes in between had none, and still hold those of an hour before.
        let skipped = minute.saturating_sub(self.minute).min(MINUTES as u64);
        for ago in 0..skipped {
            if let Some(counted) = self.of(minute - ago) {
                *counted = 0;
            }
        }
        self.minute = self.minute.max(minute);
        if let Some(counted) = self.of(minute) {
            *counted = counted.saturating_add(1);
        }
        self.last = now;
    }

    fn of(&mut self, minute: u64) -> Option<&mut u32> {
        self.minutes.get_mut(place(minute))
    }

    fn told(&self, reason: &str, now: u64) -> ReasonTold {
        let minute = now / MINUTE_MS;
        let of = |ago: u64| {
            let wanted = minute.saturating_sub(ago);
            let is_kept = wanted <= self.minute && wanted + MINUTES as u64 > self.minute;
            self.minutes
                .get(place(wanted))
                .copied()
                .filter(|_| is_kept)
                .unwrap_or_default()
        };
        let minutes: Vec<u32> = (0..MINUTES as u64).rev().map(of).collect();
        ReasonTold {
            reason: reason.to_owned(),
            count: minutes.iter().copied().map(u64::from).sum(),
            last: self.last,
            minutes,
        }
    }
}

/// The place of a minute in the ring of an hour.
fn place(minute: u64) -> usize {
    usize::try_from(minute % MINUTES as u64).unwrap_or_default()
}

/// A replica's texts, of which some are its peers', take no more than this.
fn shorten(data: &mut Map<String, Value>) {
    data.retain(|name, value| {
        if let Value::String(text) = value {
            *text = text.chars().take(LONGEST_TEXT).collect();
        }
        matches!(value, Value::String(_) | Value::Number(_)) && name.len() <= LONGEST_TEXT
    });
}

const MINUTES: usize = 60;
const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
/// More than the proxy has.
const MOST_REASONS: usize = 100;
const MOST_LATEST: usize = 100;
const LONGEST_TEXT: usize = 300;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn counts(refusals: &Refusals, now: u64) -> Vec<(String, u64)> {
        let told = refusals.told(now);
        told.reasons.into_iter().map(|one| (one.reason, one.count)).collect()
    }

    #[test]
    fn refusals_are_counted_by_reason_for_an_hour() {
        let mut refusals = Refusals::default();
        let start = 1_000_000 * HOUR_MS;
        let mut refuse = |reason: &str, at: u64| refusals.count("one", json!({"reason": reason}), start + at);
        refuse("not_allowed", 0);
        refuse("not_allowed", MINUTE_MS);
        refuse("target_full", 2 * MINUTE_MS);
        // An hour and a minute after the first one: in the same place of the ring as the second.
        refuse("not_allowed", HOUR_MS + MINUTE_MS);
        let at = |at: u64| counts(&refusals, start + at);
        assert_eq!(
            at(HOUR_MS + MINUTE_MS),
            [("not_allowed".to_owned(), 1), ("target_full".to_owned(), 1)]
        );
        assert_eq!(at(HOUR_MS + 2 * MINUTE_MS), [("not_allowed".to_owned(), 1)]);
        assert_eq!(at(2 * HOUR_MS + MINUTE_MS), []);
        let told = refusals.told(start + HOUR_MS + MINUTE_MS);
        let [first, last] = [0, 59].map(|index| told.reasons[0].minutes[index]);
        assert_eq!((first, last), (0, 1));
    }

    #[test]
    fn what_a_peer_has_sent_is_kept_short_and_few() {
        let mut refusals = Refusals::default();
        for number in 0..MOST_LATEST + 500 {
            let data = json!({"reason": format!("reason{number}"), "authority": "x".repeat(100_000), "more": {"a": 1}});
            refusals.count("one", data, HOUR_MS);
        }
        refusals.miss(&json!({"events": 7}));
        let told = refusals.told(HOUR_MS);
        assert_eq!(
            (told.reasons.len(), told.latest.len(), told.missed),
            (MOST_REASONS, MOST_LATEST, 7)
        );
        assert_eq!(told.latest[0]["authority"].as_str().unwrap().len(), LONGEST_TEXT);
        assert!(told.latest[0].get("more").is_none());
    }
}
