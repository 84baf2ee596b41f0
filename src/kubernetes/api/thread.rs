//! A thread with its own runtime, for watching the cluster: a long list must not delay tunnels.

use std::io;
use std::thread::JoinHandle;

use tokio_util::sync::CancellationToken;

use crate::daemon::vital;

/// A thread that runs until this handle is dropped. The drop waits for the thread's end.
#[derive(Debug)]
pub struct BackgroundRuntime {
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundRuntime {
    /// Runs `work` on a thread with this name.
    ///
    /// # Errors
    /// The thread or its runtime cannot be started.
    pub(crate) fn start(name: &str, work: impl Future<Output = ()> + Send + 'static) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let run = async move { stopped.run_until_cancelled(work).await.unwrap_or_default() };
        let thread = vital::start(name, move || Ok(run))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for BackgroundRuntime {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
