//! Tries at the start whether the process may have the threads that it needs.
//!
//! Tokio and tracing-appender panic without a thread, and a runtime that gets some of its workers only would never run
//! the work of the others.

use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::thread::{self, available_parallelism};
use std::time::Duration;

/// Starts the threads that a process with that many workers needs, all at a time, and ends them again.
///
/// # Errors
/// What pthread_create(3) says: EAGAIN at the limit of the user (RLIMIT_NPROC) or of the container (pids.max).
pub fn try_start(workers: NonZeroUsize) -> io::Result<()> {
    let before = running();
    let gate = Mutex::new(());
    let tried = thread::scope(|scope| {
        let closed = gate.lock();
        let threads = workers.get() + OTHERS;
        let started = (0..threads).try_for_each(|_| {
            thread::Builder::new()
                .spawn_scoped(scope, || drop(gate.lock()))
                .map(drop)
        });
        drop(closed);
        started
    });
    // A thread that was joined counts until the kernel has released it.
    for _ in 0..LONGEST_RELEASE {
        if running() <= before {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    tried
}

/// The workers of the runtime: as many as processors, but at most that many, unless the environment names their number, as
/// Tokio has it.
pub fn workers(most: NonZeroUsize) -> NonZeroUsize {
    let named = std::env::var("TOKIO_WORKER_THREADS")
        .ok()
        .and_then(|named| named.parse().ok());
    named
        .or_else(|| available_parallelism().ok().map(|processors| processors.min(most)))
        .unwrap_or(NonZeroUsize::MIN)
}

/// The threads of this process; 0 where `/proc` does not tell.
fn running() -> usize {
    fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Two for the logs, one each for the admin port, the cluster and the configuration, and one for blocking calls.
const OTHERS: usize = 6;
/// In milliseconds.
const LONGEST_RELEASE: u32 = 100;
