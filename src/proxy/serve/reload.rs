//! Reads the configuration again on a thread of its own, and applies it.
//!
//! A file may be on a mount that hangs: signals are handled during a read, which fails at its deadline.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tracing::{error, info, warn};

use super::access_sources::{AccessSources, log_unread};
use super::capacity::Capacity;
use super::certificate_poll;
use crate::base::follow::{ReadFailure, ReadPool, ReloadResult, follow};
use crate::kubernetes::{self, Controller};
use crate::policy::allowlist::{StaticTarget, Writer};
use crate::proxy::config::{Config, LoadedConfig, Report, Severity};
use crate::proxy::connection::Shared;
use crate::proxy::metrics::Metrics;
use crate::tunnel::host_key_files::POLL_INTERVAL;
use crate::tunnel::limits::Limits;

/// Reads the configuration: at the start, and at every reload.
pub type LoadConfig = Box<dyn Fn() -> Result<LoadedConfig, Report> + Send + Sync>;

/// Reloads whenever `wanted` is notified: one reload at a time, and one more for all requests during it.
pub(super) async fn keep_reloading(
    load: Arc<LoadConfig>,
    reload: Arc<Mutex<Reload>>,
    shared: Arc<Shared>,
    wanted: Arc<Notify>,
) {
    let (reads, of_certificates) = (ReadPool::default(), ReadPool::default());
    loop {
        wanted.notified().await;
        let load = Arc::clone(&load);
        let applied = match reads.run(move || load()).await {
            Ok(loaded) => {
                let (reload, shared) = (Arc::clone(&reload), Arc::clone(&shared));
                // It blocks until threads have ended.
                let applied = spawn_blocking(move || reload.lock().apply(loaded, &shared)).await;
                applied.map_err(|_| ReadFailure::Panicked)
            }
            Err(error) => Err(error),
        };
        match applied {
            Ok(None) => {}
            Ok(Some(TargetCounts { targets, removed })) => {
                // The certificates were read with the configuration, but since then their mount may hang.
                certificate_poll::read(&of_certificates, &shared).await;
                shared.metrics.config_last_reload_successful.set(1);
                info!(targets, removed, "configuration reloaded");
            }
            Err(error) => {
                failed(&shared.metrics);
                error!("the configuration was {error}: the settings stay as they were");
            }
        }
    }
}

/// Reads the files with host keys of static targets again, for as long as the process runs.
pub(super) async fn poll_host_keys(reload: Arc<Mutex<Reload>>) {
    let read = move || {
        let targets = reload.lock().config.targets.clone();
        for (name, files) in targets
            .iter()
            .filter_map(|target| Some((&target.name, target.host_keys.as_ref()?)))
        {
            let found = files.reload();
            log_unread(&found, &format!("the host keys of {name}"));
            if found == ReloadResult::Loaded {
                info!("the host keys of {name} have changed");
            }
        }
    };
    let report = |error| error!("the host keys of targets were {error}: they stay as they were");
    follow(|| POLL_INTERVAL, &Notify::new(), read, report).await;
}

/// Leaves a target its host keys if their files are invalid now.
fn take_over_host_keys(former: &[StaticTarget], targets: &[StaticTarget]) {
    let files = |target: &StaticTarget| Some((target.name.clone(), target.host_keys.clone()?));
    let former: HashMap<_, _> = former.iter().filter_map(files).collect();
    for (name, keys) in targets.iter().filter_map(files) {
        former.get(&name).into_iter().for_each(|former| keys.take_over(former));
    }
}

fn failed(metrics: &Metrics) {
    metrics.config_last_reload_successful.set(0);
    metrics.config_reload_failures.inc();
}

/// The static targets after a reload, and those that it has removed.
struct TargetCounts {
    targets: usize,
    removed: usize,
}

/// The parts that a reload changes: static targets, access, limits, certificates, cluster. All else needs a restart.
pub(super) struct Reload {
    pub(super) config: Box<Config>,
    pub(super) users: AccessSources,
    pub(super) capacity: Capacity,
    pub(super) writer: Writer,
    pub(super) services: Option<Controller>,
}

impl Reload {
    /// Applies the configuration; `None` if it has errors. The certificates' files are read afterwards.
    fn apply(&mut self, loaded: Result<LoadedConfig, Report>, shared: &Arc<Shared>) -> Option<TargetCounts> {
        let metrics = &shared.metrics;
        let LoadedConfig { config, report } = match loaded {
            Ok(loaded) => loaded,
            Err(report) => {
                failed(metrics);
                error!("the configuration has errors: the settings stay as they were");
                log(&report);
                return None;
            }
        };
        log(&report);
        let removed = self.config.targets_removed_in(&config);
        let needing_restart = self.config.changes_needing_restart(&config);
        if !needing_restart.is_empty() {
            warn!("changed, but needs a restart: {}", needing_restart.join(", "));
        }
        take_over_host_keys(&self.config.targets, &config.targets);
        // Before the targets, so that a new target is never open to clients without permission, and user lists
        // that no longer apply end no tunnel.
        shared.anchors.set_taken(config.takes_anchors());
        shared.anchors.set_publishing(config.anchor_keys);
        shared.lists_names.store(config.lists_names, Ordering::Relaxed);
        self.users.apply(&config, shared);
        self.writer.publish(&config.targets, &config.limits);
        shared.clients.set(config.limits.client_limits());
        shared.users.set(config.limits.user_limits());
        shared.connect_rate.set(config.limits.client);
        let caps = self.capacity.fitting(config.limits.process, metrics);
        shared.unfinished.set(caps.unfinished);
        shared.tunnels.set(caps.tunnels);
        shared
            .total
            .set(config.limits.process.rates(), config.limits.tunnel.burst);
        shared.tls.configure(config.tls.clone());
        self.follow(config.cluster.as_ref(), &config.limits, metrics);
        self.config.targets = config.targets;
        self.config.cluster = config.cluster;
        self.config.limits = config.limits;
        self.config.tls = config.tls;
        self.config.access = config.access;
        self.config.access_kubeconfig = config.access_kubeconfig;
        Some(TargetCounts {
            targets: self.config.targets.len(),
            removed,
        })
    }

    /// Watches the cluster with new settings, starts to watch one, or stops.
    fn follow(&mut self, options: Option<&kubernetes::Options>, limits: &Limits, metrics: &Metrics) {
        let followed = match (options.cloned(), self.services.take()) {
            (Some(options), Some(mut running)) => {
                let done = running.configure(options, limits);
                self.services = Some(running);
                done
            }
            (Some(options), None) => {
                self.writer.await_services(None);
                Controller::start(options, limits, self.writer.clone(), metrics.cluster.clone())
                    .map(|started| self.services = Some(started))
            }
            (None, running) => {
                // Ended first: it could write its Services again after they have been removed.
                drop(running);
                self.writer.remove_cluster();
                metrics.cluster.stopped();
                Ok(())
            }
        };
        if let Err(error) = followed {
            error!(%error, "cannot follow the cluster");
        }
    }
}

/// Logs every finding as `switchboard check` prints it, but with its severity as the level of the line.
pub(super) fn log(report: &Report) {
    for (severity, line) in report.log_lines() {
        match severity {
            Severity::Error => error!("{line}"),
            Severity::Warning => warn!("{line}"),
            Severity::Note => info!("{line}"),
        }
    }
}
