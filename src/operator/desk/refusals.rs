//! The refusals: by reason as the replicas have counted them since they began, and the latest as they tell them.

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
    /// The counts of each replica.
    counted: HashMap<Arc<str>, Vec<api::RefusalReason>>,
    latest: Latest<MOST_LATEST>,
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
}

impl Refusals {
    /// Notes what a replica has counted.
    pub(super) fn learn(&mut self, replica: &Arc<str>, refusals: api::Refusals) {
        let mut reasons = refusals.reasons;
        reasons.truncate(MOST_REASONS);
        for known in &mut reasons {
            known.reason = known.reason.chars().take(LONGEST_TEXT).collect();
        }
        self.counted.insert(Arc::clone(replica), reasons);
    }

    /// Forgets the counts of replicas that there are no more.
    pub(super) fn keep(&mut self, is_there: impl Fn(&Arc<str>) -> bool) {
        self.counted.retain(|replica, _| is_there(replica));
    }

    /// Notes one, by the data of its event.
    pub(super) fn note(&mut self, replica: &str, data: Value, now: u64) {
        self.latest.note(replica, data, now);
    }

    /// The sums of all replicas, and the latest ones of the last hour.
    pub(super) fn told(&self, now: u64) -> Told {
        let mut reasons: BTreeMap<&str, ReasonTold> = BTreeMap::new();
        for known in self.counted.values().flatten() {
            let told = reasons.entry(&known.reason).or_insert_with(|| ReasonTold {
                reason: known.reason.clone(),
                ..ReasonTold::default()
            });
            told.count = told.count.saturating_add(known.count);
            told.last = told.last.max(millis(&known.last));
        }
        let mut reasons: Vec<_> = reasons.into_values().collect();
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

/// More than the proxy has.
const MOST_REASONS: usize = 100;
const MOST_LATEST: usize = 100;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::operator::desk::latest::HOUR_MS;

    fn answer(reason: &str, count: u64) -> api::Refusals {
        api::Refusals {
            reasons: vec![api::RefusalReason {
                reason: reason.to_owned(),
                count,
                last: "1970-01-01T00:00:01.500Z".to_owned(),
            }],
        }
    }

    #[test]
    fn the_counts_of_all_replicas_are_one() {
        let mut refusals = Refusals::default();
        let counts = |refusals: &Refusals| -> Vec<_> {
            let told = refusals.told(0).reasons.into_iter();
            told.map(|one| (one.reason, one.count, one.last)).collect()
        };
        let [one, other] = ["one", "other"].map(Arc::from);
        refusals.learn(&one, answer("not_allowed", 3));
        refusals.learn(&other, answer("not_allowed", 4));
        let of = |count| vec![("not_allowed".to_owned(), count, 1500)];
        assert_eq!(counts(&refusals), of(7));
        // The next answer is in place of the one before.
        refusals.learn(&one, answer("not_allowed", 5));
        assert_eq!(counts(&refusals), of(9));
        refusals.learn(&other, answer("not_allowed", u64::MAX));
        assert_eq!(counts(&refusals), of(u64::MAX));
        refusals.keep(|replica| *replica == one);
        assert_eq!(counts(&refusals), of(5));
    }

    #[test]
    fn what_a_peer_has_sent_is_kept_short_and_few() {
        let mut refusals = Refusals::default();
        for _ in 0..MOST_LATEST + 500 {
            refusals.note("one", json!({"reason": "x"}), HOUR_MS);
        }
        let mut many = answer("x", 1);
        many.reasons = (0..MOST_REASONS + 500)
            .map(|number| api::RefusalReason {
                reason: format!("{number}{}", "x".repeat(1000)),
                ..many.reasons[0].clone()
            })
            .collect();
        refusals.learn(&Arc::from("one"), many);
        let told = refusals.told(HOUR_MS);
        assert_eq!((told.reasons.len(), told.latest.len()), (MOST_REASONS, MOST_LATEST));
        assert_eq!(told.reasons[0].reason.len(), LONGEST_TEXT);
    }
}
