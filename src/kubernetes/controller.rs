//! Runs the reflectors and the reconciler of a cluster on a thread of their own.

use std::io;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::failure::Failure;
use super::model::EndpointFault;
use super::options::Options;
use super::reconciler::{Outputs, Reconciler};
use super::reflector;
use super::rules::Rules;
use super::source::{Feed, Source, sources};
use crate::allowlist::Writer;
use crate::limits::Limits;
use crate::metrics::Metrics;

/// Follows a cluster until it is dropped. The allowlist then stays as it is.
#[derive(Debug)]
pub struct Controller {
    options: Options,
    rules: watch::Sender<Rules>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
    outputs: Outputs,
}

impl Controller {
    /// Starts to follow a cluster, whether its API server answers or not. Until the first complete list, a name that is not
    /// on the allowlist is unknown rather than forbidden.
    ///
    /// # Errors
    /// The thread or its runtime cannot be started.
    pub fn start(options: Options, limits: &Limits, writer: Writer, metrics: Metrics) -> io::Result<Self> {
        writer.configure(options.of_allowlist());
        for failure in Failure::ALL {
            metrics.watch_may_fail(failure.label());
        }
        for fault in EndpointFault::ALL {
            metrics.endpoint_may_fail(fault.label());
        }
        let outputs = Outputs { writer, metrics };
        let (rules, receiver) = watch::channel(Rules::new(&options, limits));
        let stop = CancellationToken::new();
        let worker = Worker {
            sources: sources(&options),
            snapshot: options.snapshot_file.clone(),
            rules: receiver,
            outputs: outputs.clone(),
        };
        let stopped = stop.clone();
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name("kubernetes".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = worker.run() => {}
                    () = stopped.cancelled() => {}
                }
            });
            // In the background: a snapshot may be in the middle of its write.
            runtime.shutdown_background();
        })?;
        Ok(Self {
            options,
            rules,
            stop,
            thread: Some(thread),
            outputs,
        })
    }

    /// Changes the settings. The allowlist stays as it is until they have led to a complete list.
    ///
    /// # Errors
    /// The settings need another thread, which cannot be started. Those before stay in force.
    pub fn configure(&mut self, options: Options, limits: &Limits) -> io::Result<()> {
        if sources(&options) == sources(&self.options) && options.snapshot_file == self.options.snapshot_file {
            self.outputs.writer.configure(options.of_allowlist());
            // Not `send`, which fails while the reconciler is restarted: it starts with the newest rules.
            self.rules.send_replace(Rules::new(&options, limits));
            self.options = options;
            return Ok(());
        }
        let Outputs { writer, metrics } = self.outputs.clone();
        self.end();
        *self = Self::start(options, limits, writer, metrics)?;
        Ok(())
    }

    fn end(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // An error is a panic of the thread, which has ended it as well.
            thread.join().ok();
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.end();
    }
}

/// The work of the thread.
struct Worker {
    sources: Vec<Source>,
    snapshot: Option<PathBuf>,
    rules: watch::Receiver<Rules>,
    outputs: Outputs,
}

impl Worker {
    /// Runs one reconciler and a reflector for each source, and restarts all of them after a panic of any.
    async fn run(self) {
        loop {
            let (sender, events) = mpsc::channel(QUEUED_EVENTS);
            let mut rules = self.rules.clone();
            let newest = rules.borrow_and_update().clone();
            let feeds: Vec<_> = self.sources.iter().cloned().map(Feed::new).collect();
            let reconciler = Reconciler::new(newest, feeds.clone(), self.snapshot.clone(), self.outputs.clone());
            let mut tasks = JoinSet::new();
            tasks.spawn(reconciler.run(events, rules));
            for feed in feeds {
                tasks.spawn(reflector::run(feed, sender.clone()));
            }
            drop(sender);
            // None of them returns before the others do.
            if let Some(Err(error)) = tasks.join_next().await {
                error!("a task that follows the cluster has failed, all of them are restarted: {error}");
            }
            drop(tasks);
            sleep(BEFORE_RESTART).await;
        }
    }
}

/// The most events between reflectors and reconciler. When the queue is full, the reflectors wait.
const QUEUED_EVENTS: usize = 4096;
const BEFORE_RESTART: Duration = Duration::from_secs(1);
