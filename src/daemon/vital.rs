//! Ends the process when a thread panics that it cannot do without, such as that of the admin port, or a worker of the tunnels.
//!
//! Tokio catches the panic of a task, which costs that task alone. A panic outside of tasks ends a thread, such as that of
//! Tokio's own driver where the system refuses epoll_wait(2): the process would live on, without service and deaf to signals.

use std::cell::Cell;
use std::io::{Write, stderr};
use std::panic;
use std::process;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use tokio::task::{Id, try_id};

use super::threads::run_within;

thread_local! {
    /// Set on vital threads: the id of the Tokio task that the thread itself runs as, if any. Each worker is one.
    static VITAL: Cell<Option<Option<Id>>> = const { Cell::new(None) };
}

/// Marks this thread as vital: a panic in it ends the process, unless it is inside of another Tokio task.
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
        // Not through the log, whose writer may be that thread; and in a thread of its own, since stderr may block.
        run_within(LONGEST_WRITE, move || {
            let line =
                format_args!("switchboard: the thread {thread} has failed, and the process ends: {reason}{place}");
            writeln!(stderr(), "{line}").unwrap_or_default();
        });
        process::exit(1);
    }));
}

const LONGEST_WRITE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::env;
    use std::future::pending;
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

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
