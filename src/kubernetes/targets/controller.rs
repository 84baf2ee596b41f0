//! Runs the watches and the reconciler of a cluster on their own thread.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};

use super::join::TargetPolicy;
use super::reconciler::{IdleReconciler, Outputs, Reconciler};
use super::remarks::Remarks;
use super::source::{SourceHandle, sources};
use crate::daemon::vital::supervise;
use crate::kubernetes::api::api_client::ApiClient;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::requests::{FOLLOWER, report_cluster};
use crate::kubernetes::api::thread::BackgroundRuntime;
use crate::kubernetes::metrics::ClusterMetrics;
use crate::kubernetes::objects::model::Kind;
use crate::kubernetes::options::{Options, WorkloadKind};
use crate::kubernetes::writes::activity_reports::ActivityReports;
use crate::kubernetes::writes::event_recorder::EventRecorder;
use crate::kubernetes::writes::workload_starter::WorkloadStarter;
use crate::policy::allowlist::Writer;
use crate::tunnel::limits::Limits;

/// The watches of a cluster, until this handle is dropped. The allowlist then stays as it is.
#[derive(Debug)]
pub struct Controller {
    worker: Worker,
    /// `None` while it is replaced, and after a failed replacement.
    thread: Option<BackgroundRuntime>,
}

impl Controller {
    /// Starts to watch a cluster, even while its API server does not answer. Until the first complete list, a name that
    /// is not on the allowlist is unknown rather than forbidden.
    ///
    /// # Errors
    /// The thread or its runtime cannot be started.
    pub fn start(options: Options, limits: &Limits, writer: Writer, metrics: ClusterMetrics) -> io::Result<Self> {
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
        outputs.writer.configure(options.allowlist_options());
        let reconciler = IdleReconciler::default();
        outputs
            .writer
            .set_cluster(Box::new(Remarks::new(Arc::clone(&reconciler))));
        let worker = Worker {
            policy: Arc::new(watch::Sender::new(TargetPolicy::new(&options, limits))),
            options,
            outputs,
            reconciler,
        };
        let thread = Some(worker.start()?);
        Ok(Self { worker, thread })
    }

    /// Changes the settings. If they need another thread, the targets stay until it has a complete list. Until then an absent
    /// name is unknown in the namespaces whose sources have changed.
    ///
    /// # Errors
    /// The other thread cannot be started. Nothing watches the cluster then.
    pub fn configure(&mut self, options: Options, limits: &Limits) -> io::Result<()> {
        let (writer, known) = (&self.worker.outputs.writer, &self.worker.options);
        if sources(&options) != sources(known) || tasks_of(&options) != tasks_of(known) {
            // The drop waits for the thread's end: two threads would write one allowlist.
            self.thread = None;
        }
        if self.thread.is_none() {
            let known = sources(known);
            let new = sources(&options).into_iter().filter(|source| !known.contains(source));
            let (pods, others): (Vec<_>, Vec<_>) = new.partition(|source| source.kind == Kind::Pod);
            writer.await_services(others.into_iter().map(|source| source.namespace).collect());
            if !pods.is_empty() {
                writer.await_pods(pods.into_iter().map(|source| source.namespace).collect());
            }
        }
        writer.configure(options.allowlist_options());
        // Cannot fail, unlike `send`. A reconciler that is restarting starts with the newest policy.
        self.worker.policy.send_replace(TargetPolicy::new(&options, limits));
        self.worker.options = options;
        if self.thread.is_none() {
            self.thread = Some(self.worker.start()?);
        }
        Ok(())
    }
}

/// Returns the settings that decide which tasks there are.
fn tasks_of(options: &Options) -> (Option<&PathBuf>, [bool; 3], &[WorkloadKind]) {
    let switches = [options.wakes, options.reports_activity, options.writes_events];
    (options.snapshot_file.as_ref(), switches, &options.workload_kinds)
}

/// The work of the thread.
#[derive(Clone, Debug)]
struct Worker {
    options: Options,
    policy: Arc<watch::Sender<TargetPolicy>>,
    outputs: Outputs,
    reconciler: IdleReconciler,
}

impl Worker {
    fn start(&self) -> io::Result<BackgroundRuntime> {
        BackgroundRuntime::start("kubernetes", self.clone().run())
    }

    async fn run(self) {
        let kubeconfig = self.options.kubeconfig.clone();
        tokio::spawn(report_cluster("allowlist.kubernetes", kubeconfig));
        supervise("a task that follows the cluster", || self.follow(), || {}).await;
    }

    /// Runs the reconciler, a watch per source and the writers, until one of them ends.
    async fn follow(&self) -> Result<(), JoinError> {
        let (sender, events) = mpsc::channel(QUEUED_EVENTS);
        let mut policy = self.policy.subscribe();
        let newest = policy.borrow_and_update().clone();
        let handles = SourceHandle::all(sources(&self.options));
        let mut tasks = JoinSet::new();
        let outputs = self.start_writers(&mut tasks);
        Reconciler::prepare(&self.reconciler, newest, handles.clone(), outputs);
        tasks.spawn(Reconciler::run(Arc::clone(&self.reconciler), events, policy));
        for handle in handles {
            tasks.spawn(handle.run(sender.clone(), self.outputs.metrics.clone()));
        }
        drop(sender);
        // A task that ends has panicked, or the `Controller` is dropped.
        tasks.join_next().await.unwrap_or(Ok(()))
    }

    /// Starts the writers to the cluster that are switched on.
    fn start_writers(&self, tasks: &mut JoinSet<()>) -> Outputs {
        let mut outputs = self.outputs.clone();
        let api = Arc::new(ApiClient::new(self.options.kubeconfig.clone(), FOLLOWER));
        if self.options.writes_events {
            let (recorder, work) = EventRecorder::start(Arc::clone(&api), outputs.metrics.clone());
            tasks.spawn(work);
            outputs.recorder = Some(recorder);
        }
        let Outputs {
            writer,
            metrics,
            recorder,
        } = outputs.clone();
        let options = Arc::new(self.options.clone());
        if self.options.wakes {
            let starter = WorkloadStarter {
                api: Arc::clone(&api),
                options: Arc::clone(&options),
                writer: writer.clone(),
                metrics: metrics.clone(),
                recorder,
            };
            tasks.spawn(starter.run());
        }
        if self.options.reports_activity {
            let reports = ActivityReports {
                api,
                options,
                writer,
                metrics,
            };
            tasks.spawn(reports.run());
        }
        outputs
    }
}

/// The most events between watches and reconciler. When the queue is full, the watches wait.
const QUEUED_EVENTS: usize = 4096;
