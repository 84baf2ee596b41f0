//! The series of each target, which are removed with it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use prometheus::{CounterVec, Gauge, GaugeVec, IntCounter, IntGauge, Registry};

use crate::tunnel::direction::Direction;
use crate::tunnel::exposition::{Counters, Gauges, counters, gauges, metrics, seconds, timestamps};
use crate::tunnel::relay::meter::Totals;

/// The series of one target.
#[derive(Debug)]
pub struct TargetSeries {
    labels: [Box<str>; 2],
    /// Open tunnels.
    pub tunnels_active: IntGauge,
    /// The bytes and the throttled time of its tunnels.
    pub totals: Arc<Totals>,
    bytes: [IntCounter; 2],
    /// The last activity of its tunnels, in milliseconds since 1970.
    last_activity: AtomicU64,
    last_activity_timestamp: Gauge,
    /// The throttled time in `totals` that has been added to the counter of the process.
    throttled: Mutex<[Duration; 2]>,
    metrics: Weak<TargetMetrics>,
}

impl TargetSeries {
    /// Notes that a tunnel was active at that time.
    pub fn was_active(&self, at: SystemTime) {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let millis = u64::try_from(since).unwrap_or(u64::MAX);
        self.last_activity.fetch_max(millis, Ordering::Relaxed);
    }

    /// Returns the last activity of its tunnels; `None` before the first one.
    pub fn last_activity(&self) -> Option<SystemTime> {
        let millis = self.last_activity.load(Ordering::Relaxed);
        (millis > 0).then(|| UNIX_EPOCH + Duration::from_millis(millis))
    }

    /// Adds to the counters what `totals` has gained.
    fn collect(&self, throttled_seconds: &CounterVec) {
        let last_activity = self
            .last_activity()
            .and_then(|last| last.duration_since(UNIX_EPOCH).ok());
        self.last_activity_timestamp
            .set(last_activity.unwrap_or_default().as_secs_f64());
        let mut counted = self.throttled.lock();
        for ((direction, counter), counted) in Direction::ALL.into_iter().zip(&self.bytes).zip(counted.iter_mut()) {
            counter.inc_by(self.totals.bytes(direction).saturating_sub(counter.get()));
            let throttled = self.totals.throttled(direction);
            let gained = throttled.saturating_sub(*counted);
            throttled_seconds
                .with_label_values(&[direction.label()])
                .inc_by(gained.as_secs_f64());
            *counted = throttled;
        }
    }
}

impl Drop for TargetSeries {
    fn drop(&mut self) {
        if let Some(targets) = self.metrics.upgrade() {
            targets.remove(self);
        }
    }
}

metrics! {
    /// The metrics that all targets share; each target has its own series of the first three.
    struct Families();

    /// Open tunnels.
    tunnels_active: Gauges<2> = gauges("switchboard_tunnels_active", &["target_namespace", "target_service"]);
    /// Bytes relayed, counted while the tunnel runs.
    bytes: Counters<3> = counters(
        "switchboard_tunnel_bytes_total",
        &["direction", "target_namespace", "target_service"]
    );
    /// The last activity of a target's tunnels, in seconds since 1970; keepalives and heartbeats are none.
    last_activity: GaugeVec = timestamps(
        "switchboard_target_last_activity_timestamp_seconds",
        &["target_namespace", "target_service"]
    );
    /// Seconds that directions of tunnels waited for their limits.
    throttled_seconds: CounterVec = seconds("switchboard_throttled_seconds_total", &["direction"]);
}

/// The series of all targets.
#[derive(Debug)]
pub struct TargetMetrics {
    families: Families,
    series: Mutex<HashMap<[Box<str>; 2], Weak<TargetSeries>>>,
}

impl TargetMetrics {
    /// Creates the metrics. Before the first target only the throttled times of both directions have series, at 0.
    ///
    /// # Errors
    /// A name that is declared twice.
    pub fn new(registry: &Registry) -> prometheus::Result<Arc<Self>> {
        let families = Families::declare(registry)?;
        for direction in Direction::ALL {
            families.throttled_seconds.with_label_values(&[direction.label()]);
        }
        Ok(Arc::new(Self {
            families,
            series: Mutex::default(),
        }))
    }

    /// Returns the series of one target, created at its first use. They are removed when the last handle on them is dropped.
    pub fn series(self: &Arc<Self>, namespace: &str, service: &str) -> Arc<TargetSeries> {
        let labels = [namespace.into(), service.into()];
        let mut series = self.series.lock();
        if let Some(known) = series.get(&labels).and_then(Weak::upgrade) {
            return known;
        }
        let families = &self.families;
        let made = Arc::new(TargetSeries {
            tunnels_active: families
                .tunnels_active
                .series()
                .with_label_values(&[namespace, service]),
            totals: Arc::default(),
            bytes: Direction::ALL.map(|direction| {
                let series = families.bytes.series();
                series.with_label_values(&[direction.label(), namespace, service])
            }),
            last_activity: AtomicU64::new(0),
            last_activity_timestamp: families.last_activity.with_label_values(&[namespace, service]),
            throttled: Mutex::default(),
            metrics: Arc::downgrade(self),
            labels: labels.clone(),
        });
        series.insert(labels, Arc::downgrade(&made));
        made
    }

    /// Brings the counters of all targets up to date.
    pub(crate) fn collect(&self) {
        let series = self.series.lock();
        let held: Vec<_> = series.values().filter_map(Weak::upgrade).collect();
        // Unlocked first: a handle in `held` may be the last one, and its drop locks the map.
        drop(series);
        for series in &held {
            series.collect(&self.families.throttled_seconds);
        }
    }

    fn remove(&self, gone: &TargetSeries) {
        gone.collect(&self.families.throttled_seconds);
        let mut series = self.series.lock();
        // A target of the same name may have been added since, with a handle of its own on the same series.
        if series.get(&gone.labels).is_none_or(|known| known.strong_count() > 0) {
            return;
        }
        series.remove(&gone.labels);
        // A removal fails only for a series that does not exist. These exist: only this function removes series.
        let (families, labels) = (&self.families, gone.labels.each_ref().map(|label| &**label));
        families.tunnels_active.series().remove_label_values(&labels).ok();
        families.last_activity.remove_label_values(&labels).ok();
        let [namespace, service] = labels;
        for direction in Direction::ALL {
            let labels = [direction.label(), namespace, service];
            families.bytes.series().remove_label_values(&labels).ok();
        }
    }
}
