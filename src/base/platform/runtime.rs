//! The start of a program and of its runtime, where the system may refuse what they need: Tokio would panic.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Error, Write, stderr};
use std::panic;
use std::process;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::{Id, try_id};

use super::system::{IS_WINDOWS, poll_writable};

thread_local! {
    /// On a vital thread: the id of the Tokio task that the thread itself runs as, if any. Each worker runs as a task.
    static VITAL: Cell<Option<Option<Id>>> = const { Cell::new(None) };
}

/// Marks this thread as vital: its panic ends the process, unless another Tokio task panics on the thread.
pub fn mark_vital() {
    VITAL.set(Some(try_id()));
}

/// Installs the panic hook that ends the process with exit status 1 and a sentence on stderr when a vital thread panics.
pub fn watch_vital_threads() {
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
        if poll_writable(&stderr, WRITE_TIMEOUT) {
            let line =
                format_args!("switchboard: the thread {thread} has failed, and the process ends: {reason}{place}");
            writeln!(&stderr, "{line}").unwrap_or_default();
        }
        process::exit(1);
    }));
}

/// Builds a runtime that keeps its threads for blocking work, and starts the first one: while the system refuses further
/// threads, such work waits for one of them. `descriptors`: how many the program needs besides.
///
/// # Errors
/// The system refuses what a start needs, which the error names.
pub fn start_runtime(builder: &mut Builder, descriptors: usize) -> io::Result<Runtime> {
    let refused = |what| move |error: Error| Error::new(error.kind(), format!("cannot {what}: {error}"));
    if !IS_WINDOWS {
        let null = (0..RUNTIME_DESCRIPTORS + descriptors).map(|_| File::open("/dev/null"));
        let opened: io::Result<Vec<_>> = null.collect();
        opened.map_err(refused("open the descriptors that a start needs, see RLIMIT_NOFILE"))?;
    }
    // A worker's thread that cannot be started is a panic, too.
    let tried = thread::Builder::new().spawn(|| {}).map_err(refused("start a thread"))?;
    drop(tried.join());
    let built = keep_blocking(builder).enable_all().build();
    let runtime = built.map_err(refused("start the event loop"))?;
    let first = runtime.block_on(runtime.spawn_blocking(|| {}));
    first.map_err(|error| refused("start a thread")(error.into()))?;
    Ok(runtime)
}

/// Has a runtime keep its threads for blocking work, once started. While the system refuses further threads, such work waits
/// for one of them; if there is none, Tokio panics.
pub fn keep_blocking(builder: &mut Builder) -> &mut Builder {
    builder.thread_keep_alive(FOREVER)
}

/// Those of the runtime, and of its signals.
const RUNTIME_DESCRIPTORS: usize = 7;
/// A year: some systems' waits overflow at `Duration::MAX`.
const FOREVER: Duration = Duration::from_hours(24 * 365);
/// The wait for a stderr that takes nothing.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

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
            "base::platform::runtime::tests::the_panic_of_a_vital_thread_ends_the_process_and_that_of_a_task_does_not";
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
        watch_vital_threads();
        let is_over = Arc::new(AtomicBool::new(false));
        let fails = Arc::clone(&is_over);
        let parks = move || {
            mark_vital();
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
