//! Creates and registers metrics, and writes them as a page for Prometheus. `metrics` and `anchor::metrics` declare
//! them.

use prometheus::process_collector::ProcessCollector;
use prometheus::{Registry, TextEncoder};

/// The error of declaring or writing metrics.
pub use prometheus::Error;
use prometheus::core::Collector;
use prometheus::core::Desc;
use prometheus::proto::Counter;
use prometheus::proto::MetricFamily;
use rustix::time::ClockId;
use rustix::time::clock_gettime;
use std::time::Duration;

pub(crate) mod declare;

/// Returns a registry with the operating system's metrics of the process.
///
/// # Errors
/// A name that is declared twice.
pub(crate) fn registry() -> prometheus::Result<Registry> {
    let registry = Registry::new();
    registry.register(Box::new(Process(ProcessCollector::for_self())))?;
    Ok(registry)
}

/// Returns the page in the text format 0.0.4.
///
/// # Errors
/// A metric without a series; the registry leaves those out.
pub(crate) fn page(registry: &Registry) -> prometheus::Result<String> {
    TextEncoder::new().encode_to_string(&registry.gather())
}

/// The media type of a [`page`].
pub(crate) const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

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
