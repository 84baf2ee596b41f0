//! The metrics of each target, which come and go with it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{CounterVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use super::declare::{counters, registered};
use crate::direction::Direction;
use crate::relay::meter::Totals;

/// The metrics of one target.
#[derive(Debug)]
pub struct TargetSeries {
    labels: [Box<str>; 2],
    /// Open tunnels.
    pub tunnels_active: IntGauge,
    /// What its tunnels move.
    pub totals: Arc<Totals>,
    bytes: [IntCounter; 2],
    /// What of `totals` has been added to the process's throttled time.
    throttled: Mutex<[Duration; 2]>,
    of: Weak<TargetMetrics>,
}

impl TargetSeries {
    fn fold(&self, throttled_seconds: &CounterVec) {
        let mut seen = self.throttled.lock();
        for ((direction, counter), seen) in Direction::ALL.into_iter().zip(&self.bytes).zip(seen.iter_mut()) {
            counter.inc_by(self.totals.bytes(direction).saturating_sub(counter.get()));
            let throttled = self.totals.throttled(direction);
            let since = throttled.saturating_sub(*seen);
            throttled_seconds
                .with_label_values(&[direction.label()])
                .inc_by(since.as_secs_f64());
            *seen = throttled;
        }
    }
}

impl Drop for TargetSeries {
    fn drop(&mut self) {
        if let Some(targets) = self.of.upgrade() {
            targets.forget(self);
        }
    }
}

/// Those of all targets.
#[derive(Debug)]
pub(super) struct TargetMetrics {
    tunnels_active: IntGaugeVec,
    bytes: IntCounterVec,
    throttled_seconds: CounterVec,
    series: Mutex<HashMap<[Box<str>; 2], Weak<TargetSeries>>>,
}

impl TargetMetrics {
    pub(super) fn new(into: &Registry) -> prometheus::Result<Self> {
        let active = Opts::new("switchboard_tunnels_active", "Open tunnels.");
        let throttled = Opts::new(
            "switchboard_throttled_seconds_total",
            "How long directions waited for their limits.",
        );
        let metrics = Self {
            tunnels_active: registered(into, IntGaugeVec::new(active, &["target_namespace", "target_service"])?)?,
            bytes: counters(
                into,
                "switchboard_tunnel_bytes_total",
                "Bytes relayed, counted while the tunnel runs.",
                &["direction", "target_namespace", "target_service"],
            )?,
            throttled_seconds: registered(into, CounterVec::new(throttled, &["direction"])?)?,
            series: Mutex::default(),
        };
        for direction in Direction::ALL {
            metrics.throttled_seconds.with_label_values(&[direction.label()]);
        }
        Ok(metrics)
    }

    pub(super) fn series(self: &Arc<Self>, namespace: &str, service: &str) -> Arc<TargetSeries> {
        let labels = [namespace.into(), service.into()];
        let mut series = self.series.lock();
        if let Some(known) = series.get(&labels).and_then(Weak::upgrade) {
            return known;
        }
        let made = Arc::new(TargetSeries {
            tunnels_active: self.tunnels_active.with_label_values(&[namespace, service]),
            totals: Arc::default(),
            bytes: Direction::ALL.map(|way| self.bytes.with_label_values(&[way.label(), namespace, service])),
            throttled: Mutex::default(),
            of: Arc::downgrade(self),
            labels: labels.clone(),
        });
        series.insert(labels, Arc::downgrade(&made));
        made
    }

    pub(super) fn fold(&self) {
        let series = self.series.lock();
        let held: Vec<_> = series.values().filter_map(Weak::upgrade).collect();
        // The last holder may be this one, and its drop locks the map.
        drop(series);
        for series in &held {
            series.fold(&self.throttled_seconds);
        }
    }

    fn forget(&self, gone: &TargetSeries) {
        gone.fold(&self.throttled_seconds);
        let mut series = self.series.lock();
        // The same target may have come back meanwhile, with series of its own.
        if series.get(&gone.labels).is_none_or(|known| known.strong_count() > 0) {
            return;
        }
        series.remove(&gone.labels);
        let [namespace, service] = &gone.labels;
        // They were made together with `gone`, and nobody else removes them.
        self.tunnels_active.remove_label_values(&[namespace, service]).ok();
        for direction in Direction::ALL {
            self.bytes
                .remove_label_values(&[direction.label(), namespace, service])
                .ok();
        }
    }
}
