//! The metrics of what is watched in the cluster and written to it.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::{Gauge, IntCounter, IntGauge, Registry};

use crate::tunnel::exposition::{Counters, counter, counters, gauge, metrics, timestamp};

metrics! {
    /// The metrics of the cluster; a clone is another handle on them.
    pub struct ClusterMetrics();

    /// 1 while a list from the cluster that lost all or most of its objects is held back.
    pub removals_held: IntGauge = gauge("switchboard_allowlist_removals_held");
    /// Listed namespaces that count as empty because the API server forbids reading them.
    pub namespaces_forbidden: IntGauge = gauge("switchboard_allowlist_namespaces_forbidden");
    /// Lists of the cluster's objects that were not read since the start, or a reload that changed them.
    pub lists_missing: IntGauge = gauge("switchboard_allowlist_lists_missing");
    /// When the allowlist was last known to be current, in seconds since 1970.
    pub last_sync_timestamp: Gauge = timestamp("switchboard_allowlist_last_sync_timestamp_seconds");
    /// Wakes of the workloads of targets, by result.
    pub wakes: Counters<1> = counters("switchboard_wakes_total", &["result"]);
    /// Events about Services that were to be written, by result.
    pub service_events: Counters<1> = counters("switchboard_service_events_total", &["result"]);
    /// Reports of activity to workloads, by result.
    pub activity_reports: Counters<1> = counters("switchboard_activity_reports_total", &["result"]);
    /// Annotations of Services that are invalid, above the ceiling or without effect.
    pub annotation_errors: IntCounter = counter("switchboard_annotation_errors_total");
    /// Endpoints and EndpointSlices of targets that are not dialled, by reason.
    pub endpoint_errors: Counters<1> = counters("switchboard_endpoint_errors_total", &["reason"]);
    /// Failed lists and watches of the cluster, by kind of failure.
    pub watch_errors: Counters<1> = counters("switchboard_watch_errors_total", &["kind"]);
}

impl ClusterMetrics {
    /// Creates the metrics in a registry, with the value 0.
    ///
    /// # Errors
    /// A name that is declared twice.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self::declare(registry)?;
        for result in ["started", "running", "failed", "limited"] {
            metrics.wakes.zero([result]);
        }
        for result in ["written", "failed", "dropped"] {
            metrics.service_events.zero([result]);
        }
        for result in ["written", "failed"] {
            metrics.activity_reports.zero([result]);
        }
        Ok(metrics)
    }

    /// Notes that no cluster is watched any more: the metrics by which alerts recognize one that is watched go.
    pub fn stopped(&self) {
        self.synced();
        self.removals_held.set(0);
        self.namespaces_forbidden.set(0);
        self.lists_missing.set(0);
        self.endpoint_errors.series().reset();
    }

    /// Notes that the allowlist is current.
    pub fn synced(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_sync_timestamp.set(now.as_secs_f64());
    }
}
