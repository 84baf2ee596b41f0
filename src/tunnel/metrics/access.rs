//! The counts of access control.

use super::Metrics;

impl Metrics {
    /// Counts a request that was judged.
    pub fn access_ended(&self, method: &'static str, result: &'static str) {
        self.access_requests.with_label_values(&[method, result]).inc();
    }

    /// Makes the series of that result, with the value 0.
    pub fn access_may_end(&self, method: &'static str, result: &'static str) {
        self.access_requests.with_label_values(&[method, result]);
    }

    /// Counts a question to the API server.
    pub fn access_reviewed(&self, kind: &'static str, result: &'static str) {
        self.access_reviews.with_label_values(&[kind, result]).inc();
    }

    /// Makes the series of that kind of question, with the value 0.
    pub fn access_review_may_end(&self, kind: &'static str) {
        for result in ["answered", "unavailable", "suspended"] {
            self.access_reviews.with_label_values(&[kind, result]);
        }
        self.access_suspended(kind, false);
    }

    /// Notes whether questions of that kind are asked.
    pub fn access_suspended(&self, kind: &'static str, is_suspended: bool) {
        self.access_suspended
            .with_label_values(&[kind])
            .set(is_suspended.into());
    }

    /// Counts a question that was answered from memory.
    pub fn access_remembered(&self, answer: &'static str) {
        self.access_cache_hits.with_label_values(&[answer]).inc();
    }

    /// Makes the series of that answer, with the value 0.
    pub fn access_may_be_remembered(&self, answer: &'static str) {
        self.access_cache_hits.with_label_values(&[answer]);
    }

    /// Sets the number of answers that a cache remembers.
    pub fn access_cached(&self, cache: &'static str, entries: usize) {
        let entries = i64::try_from(entries).unwrap_or(i64::MAX);
        self.access_cache_entries.with_label_values(&[cache]).set(entries);
    }

    /// Sets the number of tickets of a source.
    pub fn access_tickets(&self, source: &'static str, state: &'static str, entries: usize) {
        let entries = i64::try_from(entries).unwrap_or(i64::MAX);
        self.access_tickets.with_label_values(&[source, state]).set(entries);
    }

    /// Counts a right in use that was asked about again.
    pub fn access_rechecked(&self, result: &'static str) {
        self.access_rechecks.with_label_values(&[result]).inc();
    }

    /// Makes the series of that result, with the value 0.
    pub fn access_recheck_may_end(&self, result: &'static str) {
        self.access_rechecks.with_label_values(&[result]);
    }
}
