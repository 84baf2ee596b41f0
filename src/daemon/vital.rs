//! Starts threads that the process cannot do without, such as that of the admin port, and ends the process when one panics.
//!
//! Tokio catches the panic of a task, which costs that task alone. A panic outside of tasks ends its thread. Tokio's
//! driver panics if the system refuses epoll_wait(2): the process would live on, without service and deaf to signals.

use std::cell::Cell;
use std::io::{self, Write, stderr};
use std::panic;
use std::process;
use std::sync::{Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::runtime;
use tokio::task::{Id, JoinError, try_id};
use tokio::time::sleep;
use tracing::error;

use super::threads::keep_blocking;

thread_local! {
    /// On a vital thread: the id of the Tokio task that the thread itself runs as, if any. Each worker runs as a task.
    static VITAL: Cell<Option<Option<Id>>> = const { Cell::new(None) };
}

/// Marks this thread as vital: its panic ends the process, unless another Tokio task panics on the thread.
pub fn mark() {
    VITAL.set(Some(try_id()));
}

/// Installs the panic hook that ends the process with exit status 1 and a sentence on stderr when a vital thread panics.
pub fn watch() {
    let (report, ending) = (panic::take_hook(), Mutex::new(()));
    panic::set_hook(Box::new(move |panic| {
        if VITAL.get() != Some(try_id()) {
            return report(panic);
        }
        // Only the first thread reports: it holds the lock until the exit.
        let _first = ending.lock();
        let thread = thread::current().name().unwrap_or_default().to_owned();
        let reason = panic.payload_as_str().unwrap_or_default().to_owned();
        let place = panic.location().map(|place| format!(" ({place})")).unwrap_or_default();
        // Bypasses the log, whose writer may be that thread. Polls, since a write to a stalled stderr would block.
        let stderr = stderr();
        if poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&WRITE_TIMEOUT)) != Ok(0) {
            let line =
                format_args!("switchboard: the thread {thread} has failed, and the process ends: {reason}{place}");
            writeln!(&stderr, "{line}").unwrap_or_default();
        }
        process::exit(1);
    }));
}

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
        mark();
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
    let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
    begun.recv().map_err(io::Error::other)??;
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

const BEFORE_RESTART: Duration = Duration::from_secs(1);
/// The wait for a stderr that takes nothing.
const WRITE_TIMEOUT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

#[cfg(test)]
mod tests {
    use std::env;
    use std::future::pending;
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use tokio::runtime::Builder;
    use tokio::time::timeout;

    use super::*;

    /// Runs itself again as a process of its own, which ends by a thread of the runtime that the variable names.
    #[test]
    fn the_panic_of_a_vital_thread_ends_the_process_and_that_of_a_task_does_not() {
        const NAME: &str =
            "daemon::vital::tests::the_panic_of_a_vital_thread_ends_the_process_and_that_of_a_task_does_not";
        const VARIABLE: &str = "SWITCHBOARD_TEST_VITAL";
        if let Ok(runtime) = env::var(VARIABLE) {
            let builder = match runtime.as_str() {
                "workers" => Builder::new_multi_thread(),
                _ => Builder::new_current_thread(),
            };
            return panic_in_a_task_and_outside(builder);
        }
        for runtime in ["workers", "one thread"] {
            let mut again = Command::new(env::current_exe().unwrap());
            again.args([NAME, "--exact", "--nocapture"]).env(VARIABLE, runtime);
            let output = again.output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{runtime}: {stderr}");
            assert!(stderr.contains("in a task"), "{stderr}");
            let last = stderr.lines().last().unwrap();
            assert!(last.starts_with("switchboard: the thread "), "{stderr}");
            assert!(
                last.contains(" has failed, and the process ends: outside (src/"),
                "{stderr}"
            );
        }
    }

    fn panic_in_a_task_and_outside(mut builder: Builder) {
        watch();
        let is_over = Arc::new(AtomicBool::new(false));
        let fails = Arc::clone(&is_over);
        let parks = move || {
            mark();
            assert!(!fails.load(Ordering::SeqCst), "outside");
        };
        let runtime = builder.worker_threads(1).enable_time().on_thread_park(parks).build();
        runtime.unwrap().block_on(async {
            let failing = tokio::spawn(async { panic!("in a task") });
            assert!(failing.await.unwrap_err().is_panic());
            is_over.store(true, Ordering::SeqCst);
            // Has a worker that is parked park again.
            tokio::spawn(async {});
            timeout(Duration::from_mins(1), pending::<()>()).await.unwrap_err();
        });
    }
}
