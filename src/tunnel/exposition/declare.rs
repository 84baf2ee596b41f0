//! Makes metrics of each kind and registers them.

use prometheus::core::Collector;
use prometheus::{
    CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, Result,
};

/// A counter without labels.
pub(crate) fn counter(registry: &Registry, name: &str, help: &str) -> Result<IntCounter> {
    registered(registry, IntCounter::new(name, help)?)
}

/// A gauge without labels.
pub(crate) fn gauge(registry: &Registry, name: &str, help: &str) -> Result<IntGauge> {
    registered(registry, IntGauge::new(name, help)?)
}

/// A point in time, in seconds since 1970.
pub(crate) fn timestamp(registry: &Registry, name: &str, help: &str) -> Result<Gauge> {
    registered(registry, Gauge::new(name, help)?)
}

/// Points in time with these labels, in seconds since 1970.
pub(crate) fn timestamps(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec> {
    registered(registry, GaugeVec::new(Opts::new(name, help), labels)?)
}

/// Counters with these labels.
pub(crate) fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec> {
    registered(registry, IntCounterVec::new(Opts::new(name, help), labels)?)
}

/// Gauges with these labels.
pub(crate) fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec> {
    registered(registry, IntGaugeVec::new(Opts::new(name, help), labels)?)
}

/// Counters of seconds with these labels.
pub(crate) fn seconds(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<CounterVec> {
    registered(registry, CounterVec::new(Opts::new(name, help), labels)?)
}

/// A histogram with these upper bounds.
pub(crate) fn histogram(registry: &Registry, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram> {
    let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    registered(registry, Histogram::with_opts(options)?)
}

fn registered<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}
