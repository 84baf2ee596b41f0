//! The latest events of one kind, as the replicas report them.

use std::collections::VecDeque;

use serde_json::{Map, Value};

/// At most `MOST` events, the latest first.
#[derive(Debug, Default)]
pub(super) struct Recent<const MOST: usize> {
    events: VecDeque<Value>,
    /// The number of events so far, with those that were dropped.
    pub(super) noted: u64,
}

impl<const MOST: usize> Recent<MOST> {
    /// Adds the data of an event, with the replica and the time in milliseconds since 1970.
    pub(super) fn push(&mut self, replica: &str, data: Value, now: u64) {
        let Value::Object(mut data) = data else { return };
        shorten(&mut data);
        data.insert("replica".to_owned(), replica.into());
        data.insert("at".to_owned(), now.into());
        self.events.push_front(data.into());
        self.events.truncate(MOST);
        self.noted += 1;
    }

    /// Returns the events of the last hour.
    pub(super) fn list(&self, now: u64) -> Vec<Value> {
        let is_recent = |one: &&Value| {
            let at = one.get("at").and_then(Value::as_u64);
            at.is_some_and(|at| at + HOUR_MS > now)
        };
        self.events.iter().filter(is_recent).cloned().collect()
    }
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

/// More than an access line has.
const MAX_FIELDS: usize = 64;
/// One hour.
pub(super) const HOUR_MS: u64 = 3_600_000;
/// Characters of a string.
pub(super) const MAX_TEXT: usize = 300;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
