//! The operating system's metrics of the process.

use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::{Counter, MetricFamily};
use rustix::time::{ClockId, clock_gettime};

/// The library's collector, which counts processor time in whole seconds, with the kernel's count of nanoseconds.
pub(super) struct Process(pub(super) ProcessCollector);

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
