//! An open connection in the gauges.

use crate::tunnel::metrics::Metrics;

/// An open connection in the gauges.
#[derive(Debug)]
pub(super) struct Connection<'a> {
    metrics: &'a Metrics,
}

impl<'a> Connection<'a> {
    /// Counts a connection that was accepted.
    pub(super) fn open(metrics: &'a Metrics) -> Self {
        metrics.connections_accepted.inc();
        metrics.connections_active.inc();
        Self { metrics }
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.metrics.connections_active.dec();
    }
}
