//! Reads the configuration again in a thread of its own, and applies it.
//!
//! A file may be on a mount that hangs. The process hears its signals meanwhile, and gives a read up at its deadline.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{error, info, warn};

use super::capacity::Capacity;
use super::certificate_poll;
use super::users::Users;
use super::{StartError, Started};
use crate::kubernetes::{self, Controller};
use crate::net::tls::Tls;
use crate::policy::allowlist::Writer;
use crate::proxy::config::{Config, Loaded, Report, Severity};
use crate::proxy::connection::Shared;
use crate::tunnel::limits::Limits;
use crate::tunnel::metrics::Metrics;

/// Reads the configuration: at the start, and at every reload.
pub type LoadConfig = Box<dyn Fn() -> Result<Loaded, Report> + Send + Sync>;

/// The reloads of a process: one at a time, and one more for all requests that come meanwhile.
pub(super) struct Reloads {
    load: Arc<LoadConfig>,
    reload: Arc<Mutex<Reload>>,
    shared: Arc<Shared>,
    running: Option<Running>,
    /// Another reload follows the running one.
    is_requested: bool,
}

/// A reload in progress.
struct Running {
    /// Its message, or the drop of its sender, is the end of the reload.
    ended: oneshot::Receiver<()>,
    /// The end of the wait for the files; `None` once it has passed while the settings were being applied.
    deadline: Option<Instant>,
    /// Set by whichever comes first: the reading thread when done (it then applies), or `settled` at the deadline.
    is_claimed: Arc<AtomicBool>,
}

impl Reloads {
    /// No reload yet.
    pub(super) fn new(load: LoadConfig, reload: Reload, shared: Arc<Shared>) -> Self {
        Self {
            load: Arc::new(load),
            reload: Arc::new(Mutex::new(reload)),
            shared,
            running: None,
            is_requested: false,
        }
    }

    /// Begins a reload, or has one follow that in progress.
    pub(super) fn request(&mut self) {
        if self.running.is_some() {
            info!("a reload was asked for again during another one: it follows");
            self.is_requested = true;
        } else {
            self.begin();
        }
    }

    /// Completes when the reload in progress has ended, its read is given up, or its deadline passes while it is
    /// applied; without a reload, never.
    pub(super) async fn settled(&mut self) {
        let Some(Running {
            ended,
            deadline,
            is_claimed,
        }) = &mut self.running
        else {
            return pending().await;
        };
        let late = async {
            match *deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => pending().await,
            }
        };
        tokio::select! {
            // An error is a panic of the thread, which has ended it as well.
            _ = ended => {}
            () = late => {
                if is_claimed.swap(true, Ordering::AcqRel) {
                    *deadline = None;
                    return;
                }
                failed(&self.shared.metrics);
                error!("the configuration was {NOT_READ}: the settings stay as they were");
            }
        }
        self.running = None;
        if std::mem::take(&mut self.is_requested) {
            self.begin();
        }
    }

    fn begin(&mut self) {
        match self.start() {
            Ok(running) => self.running = Some(running),
            Err(error) => {
                failed(&self.shared.metrics);
                error!(%error, "cannot start a thread for the reload: the settings stay as they were");
            }
        }
    }

    fn start(&self) -> io::Result<Running> {
        // Each living reading thread has a clone of `load`, so the count is the threads and one.
        if Arc::strong_count(&self.load) > MOST_THREADS {
            return Err(io::Error::other("those of earlier reloads still wait for their files"));
        }
        let is_claimed = Arc::new(AtomicBool::new(false));
        let (load, reload, shared) = (
            Arc::clone(&self.load),
            Arc::clone(&self.reload),
            Arc::clone(&self.shared),
        );
        let (claim, runtime) = (Arc::clone(&is_claimed), Handle::current());
        let ended = in_a_thread(move || {
            let loaded = load();
            if !claim.swap(true, Ordering::AcqRel) {
                let _entered = runtime.enter();
                reload.lock().finish(loaded, &shared);
            }
        })?;
        Ok(Running {
            ended,
            deadline: Some(Instant::now() + LONGEST_READ),
            is_claimed,
        })
    }
}

/// Reads the configuration and its certificates for the first time.
pub(super) async fn first(load: LoadConfig) -> Result<Started, StartError> {
    let read = in_a_thread(move || {
        let Loaded { config, report } = load()?;
        log(&report);
        let config = Box::new(config);
        let tls = Tls::new(config.tls.clone(), config.handshake).map_err(StartError::Tls)?;
        Ok(Started { load, config, tls })
    });
    match timeout(LONGEST_READ, read.map_err(StartError::Thread)?).await {
        Ok(Ok(started)) => started,
        // The thread has panicked, and printed why.
        Ok(Err(_)) => Err(StartError::Unread("not read: a defect".to_owned())),
        Err(_) => Err(StartError::Unread(NOT_READ.to_owned())),
    }
}

fn in_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<oneshot::Receiver<T>> {
    let (sender, receiver) = oneshot::channel();
    thread::Builder::new().name("configuration".to_owned()).spawn(move || {
        // Nothing waits for a read that was given up.
        sender.send(work()).ok();
    })?;
    Ok(receiver)
}

fn failed(metrics: &Metrics) {
    metrics.config_last_reload_successful.set(0);
    metrics.config_reload_failures.inc();
}

/// Applies a configuration that was read: static targets, limits, certificates, cluster. All else needs a restart.
pub(super) struct Reload {
    pub(super) config: Box<Config>,
    pub(super) users: Users,
    pub(super) capacity: Capacity,
    pub(super) writer: Writer,
    pub(super) services: Option<Controller>,
}

impl Reload {
    /// Applies what was read, unless it has faults.
    fn finish(&mut self, loaded: Result<Loaded, Report>, shared: &Arc<Shared>) {
        let metrics = &shared.metrics;
        match loaded {
            Ok(Loaded { config: new, report }) => {
                log(&report);
                let removed = self.config.targets_lost_in(&new);
                let needing_restart = self.config.changes_needing_restart(&new);
                if !needing_restart.is_empty() {
                    warn!("changed, but needs a restart: {}", needing_restart.join(", "));
                }
                // Before the targets: a new one is not open for a moment to clients without a right, and lists that no
                // longer count end no tunnel.
                self.users.apply(&new, shared);
                self.writer.publish(&new.targets, &new.limits);
                let burst = new.limits.tunnel.burst;
                shared.clients.set(new.limits.client, burst, new.limits.caps.client);
                shared.users.set(new.limits.user, burst, new.limits.caps.user);
                let caps = self.capacity.fitting(new.limits.caps.total, metrics);
                shared.unfinished.set(caps.unfinished);
                shared.tunnels.set(caps.tunnels);
                shared.total.set(new.limits.total, burst);
                certificate_poll::log_and_count(&shared.tls.configure(new.tls.clone()), shared);
                self.follow(new.kubernetes.as_ref(), &new.limits, metrics);
                self.config.targets = new.targets;
                self.config.limits = new.limits;
                self.config.kubernetes = new.kubernetes;
                self.config.tls = new.tls;
                self.config.access = new.access;
                metrics.config_last_reload_successful.set(1);
                info!(targets = self.config.targets.len(), removed, "configuration reloaded");
            }
            Err(report) => {
                failed(metrics);
                error!("the configuration has faults: the settings stay as they were");
                log(&report);
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

/// Logs every finding, as `switchboard check` prints it.
fn log(report: &Report) {
    for (severity, line) in report.lines() {
        match severity {
            Severity::Error => error!("{line}"),
            Severity::Warning => warn!("{line}"),
            Severity::Note => info!("{line}"),
        }
    }
}

/// The time for a configuration and the files that it names. A local file is read within milliseconds.
pub const LONGEST_READ: Duration = Duration::from_secs(10);
/// The fault of a configuration that was not read in that time.
pub const NOT_READ: &str = "not read within 10s, a file of it may be on a mount that hangs";
/// The most threads at a time: those of reads that were given up, and one.
const MOST_THREADS: usize = 4;
