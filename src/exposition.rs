//! How metrics are made, registered, and written as a page for Prometheus. Which ones there are is said by `metrics` and
//! `anchor::metrics`.

use prometheus::process_collector::ProcessCollector;
use prometheus::{Registry, TextEncoder};

/// Why the metrics cannot be declared or written.
pub use prometheus::Error;

use self::process::Process;

pub(crate) mod declare;
mod process;

/// A registry with the operating system's metrics of the process.
///
/// # Errors
/// A name that is declared twice.
pub(crate) fn registry() -> prometheus::Result<Registry> {
    let registry = Registry::new();
    registry.register(Box::new(Process(ProcessCollector::for_self())))?;
    Ok(registry)
}

/// The page in the text format 0.0.4.
///
/// # Errors
/// A metric without a series; each has one.
pub(crate) fn page(registry: &Registry) -> prometheus::Result<String> {
    TextEncoder::new().encode_to_string(&registry.gather())
}

/// The media type of a [`page`].
pub(crate) const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;
