//! Writes what tenants and operators should know about Services to the log, at most 200 lines a minute.

use std::time::{Duration, Instant};

use tracing::{info, warn};

use crate::kubernetes::targets::join::{NEEDED, Remark};

/// The lines of the current minute. Tenants cause them, so their number is bounded.
#[derive(Debug)]
pub(super) struct RemarkLog {
    minute: Instant,
    lines: u32,
}

impl Default for RemarkLog {
    fn default() -> Self {
        Self {
            minute: Instant::now(),
            lines: 0,
        }
    }
}

impl RemarkLog {
    /// Writes a remark, unless the minute has had its lines.
    pub(super) fn write(&mut self, remark: &Remark) {
        if !self.admit() {
            return;
        }
        match remark {
            Remark::Added(service) => info!(%service, "the Service is on the allowlist"),
            Remark::Removed(service) => info!(%service, "the Service is no longer on the allowlist"),
            Remark::Annotation(service, fault) => {
                let (key, reason) = (&fault.key, &fault.reason);
                info!(%service, annotation = %key, "the annotation is not in force as written: {reason}");
            }
            Remark::EndpointForbidden(service, address, class) => {
                let class = class.name();
                warn!(%service, %address, class, "the endpoint is not dialled: its address is not allowed");
            }
            Remark::SliceUnusable(service, slice) => {
                warn!(%service, %slice, "the EndpointSlice cannot be dialled as it is: {NEEDED}");
            }
            Remark::ExternalName(service) => info!(%service, "an ExternalName Service is never on the allowlist"),
        }
    }

    fn admit(&mut self) -> bool {
        if self.minute.elapsed() >= Duration::from_secs(60) {
            if let Some(dropped) = self.lines.checked_sub(MOST_LINES).filter(|dropped| *dropped > 0) {
                info!(lines = dropped, "log lines about Services were dropped");
            }
            *self = Self::default();
        }
        self.lines = self.lines.saturating_add(1);
        self.lines <= MOST_LINES
    }
}

/// Lines a minute.
const MOST_LINES: u32 = 200;
