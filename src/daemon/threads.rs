//! Tries at the start whether the process may have the threads that it needs.
//!
//! Tokio and tracing-appender panic without a thread, and a runtime that gets some of its workers only would never run
//! the work of the others.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::sync::{Mutex, mpsc};
use std::thread::{self, available_parallelism};
use std::time::Duration;

/// Starts the threads that a process with that many workers needs, all at a time, and ends them again. Memory for the start
/// has to be free beside their stacks: an allocation that fails aborts the process.
///
/// # Errors
/// What pthread_create(3) says: EAGAIN at the limit of the user (RLIMIT_NPROC) or of the container (pids.max), and where there
/// is no address space for a stack (RLIMIT_AS). Or `OutOfMemory`.
pub fn try_start(workers: NonZeroUsize) -> io::Result<()> {
    let before = running();
    let gate = Mutex::new(());
    let tried = thread::scope(|scope| {
        let closed = gate.lock();
        let (begins, begun) = mpsc::sync_channel(1);
        let tried = (0..workers.get() + OTHERS).try_for_each(|_| {
            // One after the other: a thread that has its stack, and no memory for the rest, would panic or hang.
            try_memory(STACK + OF_A_THREAD)?;
            let begins = begins.clone();
            let wait = || {
                begins.send(()).ok();
                drop((begins, gate.lock()));
            };
            thread::Builder::new().stack_size(STACK).spawn_scoped(scope, wait)?;
            begun.recv_timeout(LONGEST_BEGIN).map_err(io::Error::other)
        });
        let tried = tried.and_then(|()| try_memory(OF_A_START));
        drop(closed);
        tried
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

/// Runs `work` in a thread, and waits no longer than that for its end. Without a thread it does not run.
pub fn run_within(longest: Duration, work: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel::<()>();
    let run = move || {
        work();
        drop(done);
    };
    if thread::Builder::new().spawn(run).is_ok() {
        // Never a message: the wait ends with the sender, or at its limit.
        ended.recv_timeout(longest).ok();
    }
}

/// Tries whether there are so many bytes of memory. They are not touched.
fn try_memory(bytes: usize) -> io::Result<()> {
    let tried = Vec::<u8>::new().try_reserve_exact(bytes);
    tried.map_err(|_| io::ErrorKind::OutOfMemory.into())
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

/// The time so far in which each worker has run, or has waited for a processor, by the number of its thread. Empty where
/// `/proc` does not tell.
pub fn busy_workers() -> BTreeMap<OsString, Duration> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let busy = threads.filter_map(|thread| {
        let text = |file| fs::read_to_string(thread.path().join(file)).ok();
        if !text("comm")?.starts_with(WORKER) {
            return None;
        }
        // Nanoseconds on a processor and in its queue (Documentation/scheduler/sched-stats.rst).
        let times = text("schedstat")?;
        let times = times.split_whitespace().take(2).map(str::parse::<u64>);
        let nanos = times.sum::<Result<u64, _>>().ok()?;
        Some((thread.file_name(), Duration::from_nanos(nanos)))
    });
    busy.collect()
}

/// The threads of this process; 0 where `/proc` does not tell.
fn running() -> usize {
    fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}

/// Two for the logs, one each for the admin port, the cluster, access roles and tickets, and two for blocking calls.
const OTHERS: usize = 8;
/// In bytes. Under RLIMIT_AS, starts that had their threads and up to 6 MiB more ended by an abort.
const OF_A_START: usize = 8 << 20;
/// In bytes: of a worker by Tokio's default, and of other threads by std's.
const STACK: usize = 2 << 20;
/// In bytes: what a thread allocates at its begin, beside an arena of glibc's, which it can do without.
const OF_A_THREAD: usize = 1 << 20;
const LONGEST_BEGIN: Duration = Duration::from_secs(60);
/// The beginning of the names that Tokio gives.
const WORKER: &str = "tokio-rt";
/// In milliseconds.
const LONGEST_RELEASE: u32 = 100;
