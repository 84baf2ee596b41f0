//! How many tunnels and pipes the process may have: as configured, or as the limit of open files allows.

use std::num::NonZeroU32;

use tracing::{info, warn};

use crate::limits::TotalCaps;
use crate::limits::descriptors::Descriptors;
use crate::metrics::Metrics;

/// The limit of open files, and the pipes that it allows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity {
    descriptors: Descriptors,
    /// The most pipes that the relays may hold.
    pub(super) pipes: usize,
}

impl Capacity {
    /// Raises the limit of open files as far as the process may.
    pub(super) fn raise() -> Self {
        let descriptors = Descriptors::raise();
        Self {
            descriptors,
            pipes: descriptors.pipes(MOST_PIPES),
        }
    }

    /// The caps that fit the limit of open files. A warning says so where they are lower than the configured ones.
    pub(super) fn fitting(self, configured: TotalCaps, metrics: &Metrics) -> TotalCaps {
        let fitting = self.descriptors.fitting(configured, self.pipes);
        let number = |cap: Option<NonZeroU32>| cap.map_or(u32::MAX, NonZeroU32::get);
        let (tunnels, unfinished) = (number(fitting.tunnels), number(fitting.unfinished));
        metrics.tunnels_limit.set(tunnels.into());
        if fitting == configured {
            info!("capacity: {tunnels} tunnels");
        } else {
            let descriptors = self.descriptors.most().unwrap_or_default();
            warn!(
                "capacity: {tunnels} tunnels and {unfinished} unfinished requests, less than limits.total: the limit of \
                 open files is {descriptors}"
            );
        }
        fitting
    }
}

/// 56 MiB of pipes at their full size, 32 of them large: an unprivileged user may have 64.
const MOST_PIPES: usize = 128;
