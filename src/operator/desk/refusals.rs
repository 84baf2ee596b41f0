//! The refusals of the last hour: by reason and minute as the replicas have counted them, and the latest as they tell them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use serde::Serialize;
use serde_json::Value;

use super::latest::{LONGEST_TEXT, Latest};
use crate::daemon::admin::api;

/// What was refused.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    counted: HashMap<Arc<str>, Counted>,
    latest: Latest<MOST_LATEST>,
}

/// What a replica has counted.
#[derive(Debug)]
struct Counted {
    /// The minute of its answer, since 1970.
    minute: u64,
    reasons: Vec<api::RefusalReason>,
}

/// What pages are told.
#[derive(Debug, Serialize)]
pub(super) struct Told {
    /// The most frequent one first.
    reasons: Vec<ReasonTold>,
    /// The last one first, from the start of the desk on.
    latest: Vec<Value>,
}

#[derive(Debug, Default, Serialize)]
struct ReasonTold {
    reason: String,
    count: u64,
    /// In milliseconds since 1970.
    last: u64,
    /// The oldest first.
    minutes: Vec<u32>,
}

impl Refusals {
    /// Notes what a replica has counted.
    pub(super) fn learn(&mut self, replica: &Arc<str>, refusals: api::Refusals, now: u64) {
        let mut reasons = refusals.reasons;
        reasons.truncate(MOST_REASONS);
        for known in &mut reasons {
            known.reason = known.reason.chars().take(LONGEST_TEXT).collect();
            let older = known.minutes.len().saturating_sub(MINUTES);
            known.minutes.drain(..older);
        }
        let minute = now / MINUTE_MS;
        self.counted.insert(Arc::clone(replica), Counted { minute, reasons });
    }

    /// Forgets the counts of replicas that there are no more.
    pub(super) fn keep(&mut self, is_there: impl Fn(&Arc<str>) -> bool) {
        self.counted.retain(|replica, _| is_there(replica));
    }

    /// Notes one, by the data of its event.
    pub(super) fn note(&mut self, replica: &str, data: Value, now: u64) {
        self.latest.note(replica, data, now);
    }

    /// Those of the hour before.
    pub(super) fn told(&self, now: u64) -> Told {
        let mut reasons: BTreeMap<&str, ReasonTold> = BTreeMap::new();
        for counted in self.counted.values() {
            // What a replica counted before it fell silent grows older.
            let passed = usize::try_from((now / MINUTE_MS).saturating_sub(counted.minute)).unwrap_or(MINUTES);
            for known in &counted.reasons {
                let told = reasons.entry(&known.reason).or_insert_with(|| ReasonTold {
                    reason: known.reason.clone(),
                    minutes: vec![0; MINUTES],
                    ..ReasonTold::default()
                });
                let from_the_end = told.minutes.iter_mut().rev().skip(passed);
                for (sum, count) in from_the_end.zip(known.minutes.iter().rev()) {
                    *sum = sum.saturating_add(*count);
                }
                told.last = told.last.max(millis(&known.last));
            }
        }
        let counts = reasons.into_values().map(|told| ReasonTold {
            count: told.minutes.iter().copied().map(u64::from).sum(),
            ..told
        });
        let mut reasons: Vec<_> = counts.filter(|told| told.count > 0).collect();
        reasons.sort_by_key(|told| Reverse(told.count));
        Told {
            reasons,
            latest: self.latest.told(now),
        }
    }
}

/// A moment of RFC 3339, in milliseconds since 1970; 0 if it is none.
fn millis(moment: &str) -> u64 {
    let moment = humantime::parse_rfc3339(moment).ok();
    let since = moment.and_then(|moment| moment.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or_default())
}

const MINUTES: usize = 60;
const MINUTE_MS: u64 = 60_000;
/// More than the proxy has.
const MOST_REASONS: usize = 100;
const MOST_LATEST: usize = 100;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::operator::desk::latest::HOUR_MS;

    const START: u64 = 1_000_000 * HOUR_MS;

    /// An answer in which each of the last minutes has that many.
    fn answer(reason: &str, last_minutes: &[u32]) -> api::Refusals {
        let mut minutes = vec![0; MINUTES - last_minutes.len()];
        minutes.extend(last_minutes);
        api::Refusals {
            reasons: vec![api::RefusalReason {
                reason: reason.to_owned(),
                count: 0,
                last: "1970-01-01T00:00:01.500Z".to_owned(),
                minutes,
            }],
        }
    }

    #[test]
    fn the_counts_of_all_replicas_are_one_and_grow_older_as_one_is_silent() {
        let mut refusals = Refusals::default();
        let counts = |refusals: &Refusals, now: u64| -> Vec<_> {
            let told = refusals.told(now).reasons.into_iter();
            told.map(|one| (one.reason, one.count, one.minutes[59])).collect()
        };
        let [one, other] = ["one", "other"].map(Arc::from);
        refusals.learn(&one, answer("not_allowed", &[1, 2]), START);
        refusals.learn(&other, answer("not_allowed", &[4]), START);
        let of = |count, last| vec![("not_allowed".to_owned(), count, last)];
        assert_eq!(counts(&refusals, START), of(7, 6));
        assert_eq!(refusals.told(START).reasons[0].last, 1500);
        // The next answer is in place of the one before.
        refusals.learn(&one, answer("not_allowed", &[1, 2, 0]), START + MINUTE_MS);
        assert_eq!(counts(&refusals, START + MINUTE_MS), of(7, 0));
        assert_eq!(counts(&refusals, START + 59 * MINUTE_MS), of(6, 0));
        assert_eq!(counts(&refusals, START + 60 * MINUTE_MS), []);
        refusals.keep(|replica| *replica == one);
        assert_eq!(counts(&refusals, START + MINUTE_MS), of(3, 0));
    }

    #[test]
    fn what_a_peer_has_sent_is_kept_short_and_few() {
        let mut refusals = Refusals::default();
        for _ in 0..MOST_LATEST + 500 {
            refusals.note("one", json!({"reason": "x"}), HOUR_MS);
        }
        let mut many = answer("x", &[1; 40]);
        many.reasons = (0..MOST_REASONS + 500)
            .map(|number| api::RefusalReason {
                reason: format!("{number}{}", "x".repeat(1000)),
                minutes: vec![u32::MAX; 7000],
                ..many.reasons[0].clone()
            })
            .collect();
        refusals.learn(&Arc::from("one"), many, HOUR_MS);
        let told = refusals.told(HOUR_MS);
        assert_eq!((told.reasons.len(), told.latest.len()), (MOST_REASONS, MOST_LATEST));
        assert_eq!(
            (told.reasons[0].reason.len(), told.reasons[0].minutes.len()),
            (LONGEST_TEXT, MINUTES)
        );
    }
}
