//! Applies a configuration that was read again.

use tracing::{error, info, warn};

use super::certificate;
use super::{Room, Source, synced};
use crate::allowlist::Writer;
use crate::config::{Config, LoadError};
use crate::kubernetes::{self, Controller};
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::tunnel::Shared;

/// What a reload changes: static targets, limits, certificates and the cluster. Everything else needs a restart.
pub(super) struct Reload {
    pub(super) config: Box<Config>,
    pub(super) source: Source,
    pub(super) room: Room,
    pub(super) writer: Writer,
    pub(super) services: Option<Controller>,
}

impl Reload {
    /// Reads the configuration again, and applies it unless it is faulty.
    pub(super) fn run(&mut self, shared: &Shared) {
        let metrics = &shared.metrics;
        match (self.source)() {
            Ok(new) => {
                let removed = self.config.targets_lost_in(&new);
                let untouched = self.config.changes_needing_restart(&new);
                if !untouched.is_empty() {
                    warn!("changed, but needs a restart: {}", untouched.join(", "));
                }
                self.writer.publish(&new.targets, &new.limits);
                let burst = new.limits.tunnel.burst;
                shared.clients.set(new.limits.client, burst, new.limits.caps.client);
                let caps = self.room.fitting(new.limits.caps.total, metrics);
                shared.unfinished.set(caps.unfinished);
                shared.tunnels.set(caps.tunnels);
                shared.total.set(new.limits.total, burst);
                certificate::tell(&shared.tls.configure(new.tls.clone()), shared);
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

    /// Follows a cluster with other settings, or begins to, or ceases.
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
                // It must have ended before the last word about its Services is said.
                drop(running);
                self.writer.replace(Vec::new(), true);
                synced(metrics);
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
