//! Applies a configuration that was read again.

use tracing::{error, info, warn};

use super::capacity::Capacity;
use super::certificate;
use crate::allowlist::Writer;
use crate::config::{Config, LoadError};
use crate::kubernetes::{self, Controller};
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::tunnel::Shared;

/// Reads the configuration: at the start, and at every reload.
pub type LoadConfig = Box<dyn Fn() -> Result<Config, LoadError> + Send>;

/// What a reload changes: static targets, limits, certificates and the cluster. Everything else needs a restart.
pub(super) struct Reload {
    pub(super) config: Box<Config>,
    pub(super) load: LoadConfig,
    pub(super) capacity: Capacity,
    pub(super) writer: Writer,
    pub(super) services: Option<Controller>,
}

impl Reload {
    /// Reads the configuration again, and applies it unless it has faults.
    pub(super) fn run(&mut self, shared: &Shared) {
        let metrics = &shared.metrics;
        match (self.load)() {
            Ok(new) => {
                let removed = self.config.targets_lost_in(&new);
                let untouched = self.config.changes_needing_restart(&new);
                if !untouched.is_empty() {
                    warn!("changed, but needs a restart: {}", untouched.join(", "));
                }
                self.writer.publish(&new.targets, &new.limits);
                let burst = new.limits.tunnel.burst;
                shared.clients.set(new.limits.client, burst, new.limits.caps.client);
                let caps = self.capacity.fitting(new.limits.caps.total, metrics);
                shared.unfinished.set(caps.unfinished);
                shared.tunnels.set(caps.tunnels);
                shared.total.set(new.limits.total, burst);
                certificate::report(&shared.tls.configure(new.tls.clone()), shared);
                self.follow(new.kubernetes.as_ref(), &new.limits, metrics);
                self.config.targets = new.targets;
                self.config.limits = new.limits;
                self.config.kubernetes = new.kubernetes;
                self.config.tls = new.tls;
                metrics.config_last_reload_successful.set(1);
                info!(targets = self.config.targets.len(), removed, "configuration reloaded");
            }
            Err(error) => {
                metrics.config_last_reload_successful.set(0);
                metrics.config_reload_failures.inc();
                report(&error);
            }
        }
    }

    /// Follows the cluster with other settings, begins to follow one, or ceases to.
    fn follow(&mut self, options: Option<&kubernetes::Options>, limits: &Limits, metrics: &Metrics) {
        let followed = match (options.cloned(), self.services.take()) {
            (Some(options), Some(mut running)) => {
                let done = running.configure(options, limits);
                self.services = Some(running);
                done
            }
            (Some(options), None) => {
                self.writer.await_services();
                Controller::start(options, limits, self.writer.clone(), metrics.clone())
                    .map(|started| self.services = Some(started))
            }
            (None, running) => {
                // Ended first: it could write its Services again after they have been removed.
                drop(running);
                self.writer.replace(Vec::new(), true);
                metrics.allowlist_synced();
                Ok(())
            }
        };
        if let Err(error) = followed {
            error!(%error, "cannot follow the cluster");
        }
    }
}

fn report(error: &LoadError) {
    error!("{error}: the settings stay as they were");
    match error {
        LoadError::Unreadable { source, .. } => error!("{source}"),
        LoadError::Faulty { faults, .. } => {
            for fault in faults {
                error!("{fault}");
            }
        }
    }
}
