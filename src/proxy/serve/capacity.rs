//! How many tunnels and pipes the process may have: as configured, or as the limit of open files allows.

use std::num::NonZeroU32;

use tracing::{info, warn};

use crate::proxy::metrics::Metrics;
use crate::tunnel::limits::TotalCaps;
use crate::tunnel::limits::descriptors::{FdLimit, TooFewFds};

/// The limit of open files, and the pipes that it allows.
#[derive(Debug)]
pub(super) struct Capacity {
    pub(super) descriptors: FdLimit,
    /// The most pipes that the relays may hold.
    pub(super) pipes: usize,
    /// The configured caps that were logged last.
    reported: Option<TotalCaps>,
}

impl Capacity {
    /// Raises the limit of open files as far as the process may. `ports`: the number that it listens at.
    ///
    /// # Errors
    /// It is too low to serve.
    pub(super) fn raise(ports: usize) -> Result<Self, TooFewFds> {
        let descriptors = FdLimit::raise()?.reserving_runtimes(ports);
        Ok(Self {
            descriptors,
            pipes: descriptors.pipes(MAX_PIPES),
            reported: None,
        })
    }

    /// Returns the caps that fit the limit of open files. Logs them, unless `configured` is as before.
    pub(super) fn fitting(&mut self, configured: TotalCaps, metrics: &Metrics) -> TotalCaps {
        let fitting = self.descriptors.caps_for(configured, self.pipes);
        metrics.tunnels_limit.set(number(fitting.tunnels).into());
        if self.reported.replace(configured) != Some(configured) {
            self.report(configured, fitting);
        }
        fitting
    }

    fn report(&self, configured: TotalCaps, fitting: TotalCaps) {
        let (tunnels, unfinished) = (number(fitting.tunnels), number(fitting.unfinished));
        let descriptors = self.descriptors.max.unwrap_or_default();
        if fitting == configured {
            info!("capacity: {tunnels} tunnels");
        } else if asks_for_more(configured, fitting) {
            warn!(
                "capacity: {tunnels} tunnels and {unfinished} unfinished requests, less than limits.process: the limit of \
                 open files is {descriptors}"
            );
        } else {
            info!(
                "capacity: {tunnels} tunnels and {unfinished} unfinished requests, as the limit of open files is \
                 {descriptors}"
            );
        }
    }
}

/// Returns whether a configured cap is a number that an operator has chosen, and is higher than what fits. The defaults
/// are meant to be lowered.
fn asks_for_more(configured: TotalCaps, fitting: TotalCaps) -> bool {
    let default = TotalCaps::default();
    [
        (configured.tunnels, fitting.tunnels, default.tunnels),
        (configured.unfinished, fitting.unfinished, default.unfinished),
    ]
    .into_iter()
    .any(|(configured, fitting, default)| configured.is_some() && configured != fitting && configured != default)
}

fn number(cap: Option<NonZeroU32>) -> u32 {
    cap.map_or(u32::MAX, NonZeroU32::get)
}

/// 56 MiB at full size, as 32 pipes are large. An unprivileged user may have 64 MiB (pipe(7)).
const MAX_PIPES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_that_was_chosen_is_worth_a_warning() {
        let default = TotalCaps::default();
        let caps = |tunnels, unfinished| TotalCaps {
            tunnels: NonZeroU32::new(tunnels),
            unfinished: NonZeroU32::new(unfinished),
            ..default
        };
        let fitting = caps(500, 200);
        for (configured, asks) in [
            (default, false),
            (caps(0, 0), false),
            (caps(500, 200), false),
            (caps(500, 4096), false),
            (caps(501, 200), true),
            (caps(100_000, 201), true),
            (caps(0, 201), true),
        ] {
            assert_eq!(asks_for_more(configured, fitting), asks, "{configured:?}");
        }
    }
}
