//! Follows files and addresses that are read again while the process runs: the last good contents apply until better
//! ones have been read. A file may be on a mount that hangs, and a thread that waits for it cannot be ended.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet, spawn_blocking};
use tokio::time::{Instant, timeout};

/// The result of reading a source again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReloadResult<F> {
    /// It has not changed.
    Unchanged,
    /// It has changed, and applies from now on.
    Loaded,
    /// It has changed and has these faults: the former contents still apply.
    Invalid(Vec<F>),
    /// It could not be read now, for this reason. Whether it has changed is unknown.
    Deferred(String),
}

/// Reads a source again, and applies what it holds if that has changed. Blocks.
///
/// Contents are compared, not times: Kubernetes changes a mounted Secret by swapping a symbolic link. New contents are
/// read again, after a pause, until two reads agree: files may be swapped between the reads of a certificate and of its
/// key, and a file that is written in place is empty or truncated for a moment.
///
/// A reading may last until a mount answers, and holds no lock, so it delays no other reading. Its result is
/// dropped if a later reading has been applied.
pub(crate) fn reload<T: Hash, F>(
    readings: &Mutex<ReadHistory>,
    settling: Duration,
    read: impl Fn() -> Result<T, String>,
    apply: impl FnOnce(T) -> Result<(), Vec<F>>,
) -> ReloadResult<F> {
    let (number, before) = readings.lock().begin();
    let (contents, fingerprint) = match settled(before, settling, read) {
        Ok(settled) => settled,
        Err(reason) => return ReloadResult::Deferred(reason),
    };
    let mut readings = readings.lock();
    if !readings.is_news(number, fingerprint) {
        return ReloadResult::Unchanged;
    }
    let applied = apply(contents);
    readings.is_faulty = applied.is_err();
    match applied {
        Ok(()) => ReloadResult::Loaded,
        Err(faults) => ReloadResult::Invalid(faults),
    }
}

/// Returns contents and their fingerprint when two successive reads agree, or the first agrees with `before`. Pauses
/// between reads only if `before` is given.
///
/// # Errors
/// The reason for which nothing can be read now.
pub(crate) fn settled<T: Hash>(
    before: Option<u64>,
    settling: Duration,
    read: impl Fn() -> Result<T, String>,
) -> Result<(T, u64), String> {
    let mut last = before;
    for _ in 0..MAX_READS {
        let contents = read()?;
        let found = fingerprint(&contents);
        if last.replace(found) == Some(found) {
            return Ok((contents, found));
        }
        if before.is_some() {
            sleep(settling);
        }
    }
    Err("it is being written".to_owned())
}

/// Returns a hash of contents. Contents with equal hashes count as equal: their author has no reason to forge a hash.
pub(crate) fn fingerprint(contents: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    contents.hash(&mut hasher);
    hasher.finish()
}

/// The readings of a source so far, and the contents that were applied last, good or faulty.
#[derive(Debug, Default)]
pub(crate) struct ReadHistory {
    begun: u64,
    applied: u64,
    fingerprint: Option<u64>,
    /// True if the contents that were applied last are faulty.
    is_faulty: bool,
}

impl ReadHistory {
    /// Makes the next reading apply what it finds, changed or not, and drops the results of readings under way.
    pub(crate) fn restart(&mut self) {
        self.applied = self.begun;
        self.fingerprint = None;
    }

    /// Makes the next reading report the faults again, if there are any.
    pub(crate) fn repeat_faults(&mut self) {
        if self.is_faulty {
            self.restart();
        }
    }

    /// Returns the number of readings that have begun.
    #[cfg(test)]
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    fn begin(&mut self) -> (u64, Option<u64>) {
        self.begun += 1;
        (self.begun, self.fingerprint)
    }

    fn is_news(&mut self, number: u64, fingerprint: u64) -> bool {
        if number <= self.applied {
            return false;
        }
        self.applied = number;
        self.fingerprint.replace(fingerprint) != Some(fingerprint)
    }
}

/// The readings of a source that may hang: each is abandoned at its deadline, and few hang at a time.
#[derive(Debug)]
pub struct ReadPool {
    /// The start of the last reading. The number of references tells how many readings are under way.
    begun: Arc<Mutex<Instant>>,
}

/// The reason for which a source was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadFailure {
    /// Its deadline has passed.
    #[error("not read within 10s, a file of it may be on a mount that hangs")]
    Late,
    /// Earlier readings still wait.
    #[error("not read: earlier readings of its files still hang")]
    Stuck,
    /// There are too many threads.
    #[error("not read: no thread can be started")]
    NoThread,
    /// A defect, about which the panic has said more.
    #[error("not read: a defect")]
    Panicked,
}

impl Default for ReadPool {
    fn default() -> Self {
        let begun = Arc::new(Mutex::new(Instant::now()));
        Self { begun }
    }
}

impl ReadPool {
    /// Reads in a blocking thread, and waits at most 10 s; a later result is dropped. While four readings hang, one
    /// starts every 5 min; while 32 hang, none does.
    ///
    /// # Errors
    /// The reason why it was not read.
    pub async fn run<T: Send + 'static>(&self, read: impl FnOnce() -> T + Send + 'static) -> Result<T, ReadFailure> {
        let stuck = Arc::strong_count(&self.begun) - 1;
        {
            let mut begun = self.begun.lock();
            if stuck >= MAX_STUCK || (stuck >= FEW_STUCK && begun.elapsed() < SLOW) {
                return Err(ReadFailure::Stuck);
            }
            *begun = Instant::now();
        }
        let under_way = Arc::clone(&self.begun);
        let reading = spawn_blocking(move || {
            let _under_way = under_way;
            read()
        });
        match timeout(READ_TIMEOUT, reading).await {
            Ok(read) => read.map_err(|_| ReadFailure::Panicked),
            Err(_) => Err(ReadFailure::Late),
        }
    }
}

/// Reads a source after each pause, and without a pause when `again` is notified, even if readings hang. `read` reports
/// its own result, possibly late. A failure is reported once while it repeats.
pub(crate) async fn follow(
    pause: impl Fn() -> Duration,
    again: &Notify,
    read: impl Fn() + Clone + Send + 'static,
    report: impl Fn(ReadFailure),
) {
    let (mut reads, mut last) = (ReadPool::default(), None);
    loop {
        if timeout(pause(), again.notified()).await.is_ok() {
            reads = ReadPool::default();
        }
        let fault = reads.run(read.clone()).await.err();
        if let Some(fault) = fault.filter(|_| fault != last) {
            report(fault);
        }
        last = fault;
    }
}

/// Runs a task, and again a second after each panic, which `failed` reports: otherwise what the task follows would be stale
/// for as long as the process runs. Returns when the task does, and a drop ends the task.
pub(crate) async fn restarted<F>(start: impl Fn() -> F, failed: impl Fn(JoinError))
where
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        let mut task = JoinSet::new();
        task.spawn(start());
        match task.join_next().await {
            Some(Err(error)) if error.is_panic() => failed(error),
            Some(_) | None => return,
        }
        tokio::time::sleep(BEFORE_RESTART).await;
    }
}

/// Reads after which contents that keep changing are left to the next reading.
const MAX_READS: usize = 6;
/// The time for a reading. A local file is read within milliseconds.
pub const READ_TIMEOUT: Duration = Duration::from_secs(10);
const BEFORE_RESTART: Duration = Duration::from_secs(1);
/// The readings that may hang before the next ones start only every [`SLOW`].
const FEW_STUCK: usize = 4;
const SLOW: Duration = Duration::from_mins(5);
/// The readings that may hang: each holds a thread.
const MAX_STUCK: usize = 32;

#[cfg(test)]
mod tests;
