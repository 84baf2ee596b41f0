//! Makes metrics of each kind and registers them.

use prometheus::core::Collector;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// A counter without labels.
pub(super) fn counter(into: &Registry, name: &str, help: &str) -> prometheus::Result<IntCounter> {
    registered(into, IntCounter::new(name, help)?)
}

/// A gauge without labels.
pub(super) fn gauge(into: &Registry, name: &str, help: &str) -> prometheus::Result<IntGauge> {
    registered(into, IntGauge::new(name, help)?)
}

/// Counters by these labels.
pub(super) fn counters(into: &Registry, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
    registered(into, IntCounterVec::new(Opts::new(name, help), labels)?)
}

/// A histogram with these upper bounds.
pub(super) fn histogram(into: &Registry, name: &str, help: &str, buckets: &[f64]) -> prometheus::Result<Histogram> {
    registered(
        into,
        Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?,
    )
}

/// What the registry has from now on.
pub(super) fn registered<C: Collector + Clone + 'static>(into: &Registry, collector: C) -> prometheus::Result<C> {
    into.register(Box::new(collector.clone()))?;
    Ok(collector)
}
