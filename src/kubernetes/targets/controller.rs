//! Runs the watches and the reconciler of a cluster on their own thread.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};

use super::join::TargetPolicy;
use super::reconciler::{IdleReconciler, Outputs, Reconciler};
use super::source::{SourceHandle, sources};
use crate::daemon::vital::supervise;
use crate::kubernetes::api::api_client::ApiClient;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::requests::{FOLLOWER, report_cluster};
use crate::kubernetes::api::thread::BackgroundRuntime;
use crate::kubernetes::options::Options;
use crate::kubernetes::writes::activity_reports::ActivityReports;
use crate::kubernetes::writes::event_recorder::EventRecorder;
use crate::kubernetes::writes::workload_starter::WorkloadStarter;
use crate::policy::allowlist::Writer;
use crate::tunnel::limits::Limits;
use crate::tunnel::metrics::Metrics;

/// The watches of a cluster, until this handle is dropped. The allowlist then stays as it is.
#[derive(Debug)]
pub struct Controller {
    options: Options,
    rules: watch::Sender<TargetPolicy>,
    outputs: Outputs,
    reconciler: IdleReconciler,
    /// `None` while it is replaced, and after a failed replacement.
    thread: Option<BackgroundRuntime>,
}

impl Controller {
    /// Starts to watch a cluster, even while its API server does not answer. Until the first complete list, a name that
    /// is not on the allowlist is unknown rather than forbidden.
    ///
    /// # Errors
    /// The thread or its runtime cannot be started.
    pub fn start(options: Options, limits: &Limits, writer: Writer, metrics: Metrics) -> io::Result<Self> {
        for failure in Failure::ALL {
            metrics.watch_errors.zero([failure.label()]);
        }
        for reason in ["forbidden", "unusable"] {
            metrics.endpoint_errors.zero([reason]);
        }
        let outputs = Outputs {
            writer,
            metrics,
            recorder: None,
        };
        Self::with_reconciler(options, limits, outputs, IdleReconciler::default())
    }

    /// Starts the thread with the reconciler of the previous one.
    fn with_reconciler(
        options: Options,
        limits: &Limits,
        outputs: Outputs,
        reconciler: IdleReconciler,
    ) -> io::Result<Self> {
        outputs.writer.configure(options.of_allowlist());
        let (rules, receiver) = watch::channel(TargetPolicy::new(&options, limits));
        let worker = Worker {
            options: options.clone(),
            rules: receiver,
            outputs: outputs.clone(),
            reconciler: Arc::clone(&reconciler),
        };
        Ok(Self {
            options,
            rules,
            outputs,
            reconciler,
            thread: Some(BackgroundRuntime::start("kubernetes", worker.run())?),
        })
    }

    /// Changes the settings. If they need another thread, the targets stay until it has a complete list. Until then an absent
    /// name is unknown in the namespaces whose sources have changed.
    ///
    /// # Errors
    /// The other thread cannot be started. Nothing watches the cluster then.
    pub fn configure(&mut self, options: Options, limits: &Limits) -> io::Result<()> {
        let is_watching = self.thread.is_some();
        if is_watching && sources(&options) == sources(&self.options) && tasks_of(&options) == tasks_of(&self.options) {
            self.outputs.writer.configure(options.of_allowlist());
            // Cannot fail, unlike `send`. A reconciler that is restarting starts with the newest rules.
            self.rules.send_replace(TargetPolicy::new(&options, limits));
            self.options = options;
            return Ok(());
        }
        // The drop waits for the thread's end: two threads would write one allowlist.
        self.thread = None;
        let known = sources(&self.options);
        let new = sources(&options).into_iter().filter(|source| !known.contains(source));
        let namespaces = new.map(|source| source.namespace).collect();
        self.outputs.writer.expect_services(namespaces);
        *self = Self::with_reconciler(options, limits, self.outputs.clone(), Arc::clone(&self.reconciler))?;
        Ok(())
    }
}

/// Returns the settings that decide which tasks there are.
fn tasks_of(options: &Options) -> (Option<&PathBuf>, [bool; 3]) {
    let switches = [options.wakes, options.reports_activity, options.writes_events];
    (options.snapshot_file.as_ref(), switches)
}

/// The work of the thread.
struct Worker {
    options: Options,
    rules: watch::Receiver<TargetPolicy>,
    outputs: Outputs,
    reconciler: IdleReconciler,
}

impl Worker {
    async fn run(self) {
        let kubeconfig = self.options.kubeconfig.clone();
        tokio::spawn(report_cluster("allowlist.kubernetes", kubeconfig));
        supervise("a task that follows the cluster", || self.follow(), || {}).await;
    }

    /// Runs the reconciler, a watch per source and the writers, until one of them ends.
    async fn follow(&self) -> Result<(), JoinError> {
        let (sender, events) = mpsc::channel(QUEUED_EVENTS);
        let mut rules = self.rules.clone();
        let newest = rules.borrow_and_update().clone();
        let feeds = SourceHandle::all(sources(&self.options));
        let mut tasks = JoinSet::new();
        let outputs = self.start_writers(&mut tasks);
        Reconciler::prepare(&self.reconciler, newest, feeds.clone(), outputs);
        tasks.spawn(Reconciler::run(Arc::clone(&self.reconciler), events, rules));
        for feed in feeds {
            tasks.spawn(feed.run(sender.clone(), self.outputs.metrics.clone()));
        }
        drop(sender);
        // A task that ends has panicked, or the `Controller` is dropped.
        tasks.join_next().await.unwrap_or(Ok(()))
    }

    /// Starts the writers to the cluster that are switched on.
    fn start_writers(&self, tasks: &mut JoinSet<()>) -> Outputs {
        let Outputs { writer, metrics, .. } = self.outputs.clone();
        let link = Arc::new(ApiClient::new(self.options.kubeconfig.clone(), FOLLOWER));
        let recorder = self.options.writes_events.then(|| {
            let (recorder, work) = EventRecorder::start(Arc::clone(&link), metrics.clone());
            tasks.spawn(work);
            recorder
        });
        if self.options.wakes {
            let waker = WorkloadStarter {
                link: Arc::clone(&link),
                writer: writer.clone(),
                metrics: metrics.clone(),
                recorder: recorder.clone(),
            };
            tasks.spawn(waker.run());
        }
        if self.options.reports_activity {
            let reports = ActivityReports {
                link,
                writer: writer.clone(),
                metrics: metrics.clone(),
            };
            tasks.spawn(reports.run());
        }
        Outputs {
            writer,
            metrics,
            recorder,
        }
    }
}

/// The most events between watches and reconciler. When the queue is full, the watches wait.
const QUEUED_EVENTS: usize = 4096;
