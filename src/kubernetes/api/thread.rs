//! A thread with a runtime of its own, for what follows the cluster: a long list delays no tunnel.

use std::io;
use std::thread::{self, JoinHandle};

use tokio::runtime;
use tokio_util::sync::CancellationToken;

use crate::daemon::vital;

/// Runs until it is dropped.
#[derive(Debug)]
pub(crate) struct Thread {
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Thread {
    /// Runs `work` on a thread of that name.
    ///
    /// # Errors
    /// The thread or its runtime cannot be started.
    pub(crate) fn start(name: &str, work: impl Future<Output = ()> + Send + 'static) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            vital::mark();
            runtime.block_on(async {
                tokio::select! {
                    () = work => {}
                    () = stopped.cancelled() => {}
                }
            });
            // In the background: a program of the kubeconfig may run, or a snapshot be in the middle of its write.
            runtime.shutdown_background();
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
