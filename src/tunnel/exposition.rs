//! Creates and registers metrics, and writes them as a page for Prometheus. Files called `metrics` declare them.

use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::{Counter, MetricFamily};
use prometheus::{
    CounterVec, Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Result, TextEncoder,
};
use rustix::time::{ClockId, clock_gettime};

/// The metrics of one page, and the error of declaring or writing them.
pub use prometheus::{Error, Registry};

/// Returns a registry with the operating system's metrics of the process.
///
/// # Errors
/// A name that is declared twice.
pub(crate) fn registry() -> Result<Registry> {
    let registry = Registry::new();
    registry.register(Box::new(Process(ProcessCollector::for_self())))?;
    Ok(registry)
}

/// Returns the page in the text format 0.0.4.
///
/// # Errors
/// A metric without a series; the registry leaves those out.
pub(crate) fn page(registry: &Registry) -> Result<String> {
    TextEncoder::new().encode_to_string(&registry.gather())
}

/// The media type of a [`page`].
pub(crate) const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// Returns a counter without labels.
pub(crate) fn counter(registry: &Registry, name: &str, help: &str) -> Result<IntCounter> {
    registered(registry, IntCounter::new(name, help)?)
}

/// Raises a counter to a total that is counted elsewhere.
pub(crate) fn raise_to(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

/// Returns a gauge without labels.
pub(crate) fn gauge(registry: &Registry, name: &str, help: &str) -> Result<IntGauge> {
    registered(registry, IntGauge::new(name, help)?)
}

/// Returns a gauge of a point in time, in seconds since 1970.
pub(crate) fn timestamp(registry: &Registry, name: &str, help: &str) -> Result<Gauge> {
    registered(registry, Gauge::new(name, help)?)
}

/// Returns gauges of points in time with these labels, in seconds since 1970.
pub(crate) fn timestamps(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec> {
    registered(registry, GaugeVec::new(Opts::new(name, help), labels)?)
}

/// Counters by labels whose values are constants: a peer that chose them could fill the memory.
#[derive(Clone, Debug)]
pub struct Counters<const N: usize>(IntCounterVec);

impl<const N: usize> Counters<N> {
    /// Counts an event.
    pub fn count(&self, labels: [&'static str; N]) {
        self.with_labels(labels).inc();
    }

    /// Creates the series of these labels, with the value 0: rate() cannot see an event that is the first value of its
    /// series.
    pub fn zero(&self, labels: [&'static str; N]) {
        self.with_labels(labels);
    }

    /// Returns the counter of these labels.
    pub fn with_labels(&self, labels: [&'static str; N]) -> IntCounter {
        self.0.with_label_values(&labels)
    }

    /// Returns the series, for labels whose values are those of an enum or of the allowlist.
    pub(crate) fn series(&self) -> &IntCounterVec {
        &self.0
    }
}

/// Gauges by labels whose values are constants.
#[derive(Clone, Debug)]
pub struct Gauges<const N: usize>(IntGaugeVec);

impl<const N: usize> Gauges<N> {
    /// Sets the gauge of these labels.
    pub fn set(&self, labels: [&'static str; N], value: impl TryInto<i64>) {
        let value = value.try_into().unwrap_or(i64::MAX);
        self.0.with_label_values(&labels).set(value);
    }

    /// Returns the series, for labels whose values are those of the allowlist or of the configuration.
    pub(crate) fn series(&self) -> &IntGaugeVec {
        &self.0
    }
}

/// Returns counters with these labels.
pub(crate) fn counters<const N: usize>(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str; N],
) -> Result<Counters<N>> {
    registered(registry, IntCounterVec::new(Opts::new(name, help), labels)?).map(Counters)
}

/// Returns gauges with these labels.
pub(crate) fn gauges<const N: usize>(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str; N],
) -> Result<Gauges<N>> {
    registered(registry, IntGaugeVec::new(Opts::new(name, help), labels)?).map(Gauges)
}

/// Seconds: a dial in the cluster takes a millisecond, its deadline is ten seconds.
pub(crate) const FAST: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0];

/// Returns counters of seconds with these labels.
pub(crate) fn seconds(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> Result<CounterVec> {
    registered(registry, CounterVec::new(Opts::new(name, help), labels)?)
}

/// Returns a histogram with these upper bounds.
pub(crate) fn histogram(registry: &Registry, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram> {
    let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    registered(registry, Histogram::with_opts(options)?)
}

fn registered<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

/// The library's collector, with the kernel's count of CPU time in nanoseconds instead of whole seconds.
struct Process(ProcessCollector);

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.0.collect();
        let processor_time = families.iter_mut().filter(|family| family.name() == CPU_SECONDS);
        for metric in processor_time.flat_map(MetricFamily::mut_metric) {
            let used = clock_gettime(ClockId::ProcessCPUTime);
            let mut seconds = Counter::default();
            seconds.set_value(Duration::try_from(used).unwrap_or_default().as_secs_f64());
            metric.set_counter(seconds);
        }
        families
    }
}

const CPU_SECONDS: &str = "process_cpu_seconds_total";

/// Makes a struct of metrics, and the function that creates them, from one table. A row is a field, its type, the
/// function that makes it, its name, and its labels or bucket bounds; the comment of the row is the metric's help text.
/// The fields in parentheses are given to the function.
macro_rules! metrics {
    (
        $(#[doc = $about:literal])*
        $visibility:vis struct $Name:ident(
            $($(#[doc = $given_about:literal])? $given_visibility:vis $given:ident: $Given:ty),*
        );

        $(
            #[doc = $help:literal]
            $field_visibility:vis $field:ident: $Kind:ty = $declare:ident($name:literal $(, $detail:expr)?);
        )*
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug)]
        $visibility struct $Name {
            $(#[doc = $help] $field_visibility $field: $Kind,)*
            $($(#[doc = $given_about])? $given_visibility $given: $Given,)*
        }

        impl $Name {
            /// Creates the metrics in a registry.
            ///
            /// # Errors
            /// A name that is declared twice, or is not a metric name.
            pub(crate) fn declare(page: &prometheus::Registry $(, $given: $Given)*) -> prometheus::Result<Self> {
                Ok(Self {
                    $($field: $declare(page, $name, $help.trim() $(, $detail)?)?,)*
                    $($given,)*
                })
            }
        }
    };
}
pub(crate) use metrics;
