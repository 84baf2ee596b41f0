//! Threads: the workers of the runtime, how busy they are, and work that is waited for in bounded time.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::num::NonZeroUsize;
use std::sync::mpsc;
use std::thread::{self, available_parallelism};
use std::time::Duration;

/// Returns the number of runtime workers: TOKIO_WORKER_THREADS if set, at most 1024, else the number of processors up to `max`.
pub fn workers(max: NonZeroUsize) -> NonZeroUsize {
    let named = std::env::var("TOKIO_WORKER_THREADS")
        .ok()
        .and_then(|named| named.parse::<NonZeroUsize>().ok())
        .map(|named| named.min(MAX_WORKERS));
    named
        .or_else(|| available_parallelism().ok().map(|processors| processors.min(max)))
        .unwrap_or(NonZeroUsize::MIN)
}

/// Returns the time so far in which each thread of Tokio has run, or has waited for a processor, by its thread id.
/// Empty if `/proc` lacks it.
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

/// Runs `work` in a thread, and waits at most `timeout` for its end. Returns `false` if no thread can be started.
pub fn run_within(timeout: Duration, work: impl FnOnce() + Send + 'static) -> bool {
    let (done, ended) = mpsc::channel::<()>();
    let run = move || {
        work();
        drop(done);
    };
    // No message is sent: the wait ends when the sender is dropped, or after `timeout`.
    let wait = |_| ended.recv_timeout(timeout);
    thread::Builder::new().spawn(run).map(wait).is_ok()
}

/// More than any machine has processors: the start of each takes time.
const MAX_WORKERS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1023);
/// The beginning of the names that Tokio gives its threads.
const WORKER: &str = "tokio-rt";
