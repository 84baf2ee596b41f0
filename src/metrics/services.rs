//! The counts of what is written about Services: their starts, their Events and their activity.

use super::Metrics;

impl Metrics {
    /// Counts a target that a request was to start; `result` is a word of ours.
    pub fn wake_ended(&self, result: &'static str) {
        self.wakes.with_label_values(&[result]).inc();
    }

    /// Counts an Event about a Service; `result` is a word of ours.
    pub fn service_event(&self, result: &'static str) {
        self.service_events.with_label_values(&[result]).inc();
    }

    /// Counts a report of activity; `result` is a word of ours.
    pub fn activity_reported(&self, result: &'static str) {
        self.activity_reports.with_label_values(&[result]).inc();
    }

    /// Makes the series of each result, with the value 0.
    pub(super) fn show_zeros_of_services(&self) {
        for result in ["started", "running", "failed", "limited"] {
            self.wakes.with_label_values(&[result]);
        }
        for result in ["written", "failed", "dropped"] {
            self.service_events.with_label_values(&[result]);
        }
        for result in ["written", "failed"] {
            self.activity_reports.with_label_values(&[result]);
        }
    }
}
