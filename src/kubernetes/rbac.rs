//! Tells when roles, bindings or ServiceAccounts of the cluster have changed, so that what users may do is asked again.
//!
//! What a role grants is not read: the API server knows how all of it adds up, and is asked. So only the metadata of the
//! objects is listed and watched, and only what tells two versions of it apart is kept.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::error;

use self::follower::Follower;
use self::kind::Kind;
use super::failure::Failure;
use crate::access::Change;
use crate::metrics::Metrics;

mod follower;
mod kind;
mod known;

/// Follows roles, bindings and ServiceAccounts on a thread of its own, until it is dropped.
#[derive(Debug)]
pub struct RbacWatch {
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl RbacWatch {
    /// Starts to follow, whether the API server answers or not. `changed` is called on the thread for each change, and for
    /// none that the first lists tell.
    ///
    /// # Errors
    /// The thread or its runtime cannot be started.
    pub fn start(
        kubeconfig: Option<PathBuf>,
        metrics: Metrics,
        changed: impl Fn(Change) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        for failure in Failure::ALL {
            metrics.watch_may_fail(failure.label());
        }
        let outputs = Arc::new(Outputs {
            kubeconfig,
            metrics,
            changed: Box::new(changed),
        });
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name("rbac".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = follow(outputs) => {}
                    () = stopped.cancelled() => {}
                }
            });
            // In the background: a program of the kubeconfig may run.
            runtime.shutdown_background();
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for RbacWatch {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // An error is a panic of the thread, which has ended it as well.
            thread.join().ok();
        }
    }
}

/// Where the followers ask, and what they tell.
struct Outputs {
    kubeconfig: Option<PathBuf>,
    metrics: Metrics,
    changed: Box<dyn Fn(Change) + Send + Sync>,
}

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outputs").finish_non_exhaustive()
    }
}

/// Runs a follower for each kind, and restarts one that panics. It has then forgotten what it knew.
async fn follow(outputs: Arc<Outputs>) {
    let mut followers = JoinSet::new();
    for kind in Kind::ALL {
        followers.spawn(run(kind, Arc::clone(&outputs)));
    }
    // None of them returns.
    while followers.join_next().await.is_some() {}
}

async fn run(kind: Kind, outputs: Arc<Outputs>) {
    loop {
        let follower = Follower::new(kind, Arc::clone(&outputs));
        if let Err(error) = tokio::spawn(follower.run()).await {
            error!(
                kind = kind.plural(),
                "a task that follows access rights has failed, it is restarted: {error}"
            );
            (outputs.changed)(Change::Everywhere);
        }
        sleep(BEFORE_RESTART).await;
    }
}

const BEFORE_RESTART: Duration = Duration::from_secs(1);
