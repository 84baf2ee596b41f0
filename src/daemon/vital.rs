//! Starts threads and tasks that the process cannot do without, such as that of the admin port: the panic of such a thread ends
//! the process (`base/platform/runtime.rs`), and such a task is started again.
//!
//! Tokio catches the panic of a task, which costs that task alone. A panic outside of tasks ends its thread. Tokio's
//! driver panics if the system refuses epoll_wait(2): the process would live on, without service and deaf to signals.

use std::io;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime;
use tokio::task::JoinError;
use tokio::time::sleep;
use tracing::error;

use crate::base::follow::restarted;
use crate::base::platform::{keep_blocking, mark_vital};

/// Starts a vital thread of that name, which runs the future of `begin` in a runtime of its own.
///
/// # Errors
/// The thread or the runtime cannot be started, or `begin` has failed.
pub(crate) fn start<F>(name: &str, begin: impl FnOnce() -> io::Result<F> + Send + 'static) -> io::Result<JoinHandle<()>>
where
    F: Future<Output = ()> + 'static,
{
    let (sender, begun) = mpsc::sync_channel(1);
    let run = move || {
        mark_vital();
        let runtime = keep_blocking(&mut runtime::Builder::new_current_thread())
            .enable_all()
            .build();
        let began = runtime.and_then(|runtime| {
            let entered = runtime.enter();
            let work = begin()?;
            drop(entered);
            Ok((runtime, work))
        });
        match began {
            Ok((runtime, work)) => {
                sender.send(Ok(())).ok();
                runtime.block_on(work);
                // Does not wait for a program or a write of a file that is in progress.
                runtime.shutdown_background();
            }
            Err(error) => drop(sender.send(Err(error))),
        }
    };
    let refused = |error: io::Error| io::Error::new(error.kind(), format!("cannot start the thread {name}: {error}"));
    let thread = thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(refused)?;
    begun.recv().map_err(io::Error::other)?.map_err(refused)?;
    Ok(thread)
}

/// Starts a task, and starts it again a second after each end, forever. Calls `failed` after a panic.
pub async fn supervise<T: Future<Output = Result<(), JoinError>>>(
    name: &str,
    start: impl Fn() -> T,
    failed: impl Fn(),
) {
    loop {
        if let Err(error) = start().await {
            error!("{name} has failed and is restarted: {error}");
            failed();
        }
        sleep(BEFORE_RESTART).await;
    }
}

/// Runs a task for as long as the process does: after a panic, which is logged, it is started again.
pub(crate) async fn keep_running<F>(name: &str, start: impl Fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    restarted(start, |error| error!("{name} has failed and is started again: {error}")).await;
}

const BEFORE_RESTART: Duration = Duration::from_secs(1);
