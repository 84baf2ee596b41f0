//! A file about users that is read again while the process runs: its last valid contents apply.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::base::file;
use crate::base::follow::{self, ReadFailure, ReadHistory, ReloadResult};
pub use crate::net::x509::PemError as UserFault;

/// A file, with its contents in effect until new valid ones have been read.
#[derive(Debug)]
pub struct FollowedFile<T> {
    path: PathBuf,
    /// The beginning of the users' names, which the file leaves out.
    prefix: Box<str>,
    /// `None` before the file was read; until then a name that is missing proves nothing.
    contents: ArcSwapOption<T>,
    pub(in crate::policy::access) readings: Mutex<ReadHistory>,
    /// Notified to read the file at once.
    read_again: Notify,
}

/// The contents of such a file.
pub trait Contents: Sized + Send + Sync + 'static {
    /// Parses them, and takes over from `old` ones what they share.
    ///
    /// # Errors
    /// Their first errors, and how many more there are.
    fn parse(bytes: &[u8], old: Option<&Self>) -> Result<Self, Vec<UserFault>>;

    /// Returns the number of their entries.
    fn count(&self) -> usize;
}

impl<T: Contents> FollowedFile<T> {
    /// Reads a file of at most 1 MiB.
    ///
    /// # Errors
    /// The first 20 errors of the file, and how many more there are.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Vec<UserFault>> {
        let file = Self::empty(path);
        match file.reload() {
            ReloadResult::Invalid(faults) => Err(faults),
            ReloadResult::Deferred(reason) => Err(vec![UserFault::in_file(reason)]),
            ReloadResult::Loaded | ReloadResult::Unchanged => Ok(file),
        }
    }

    /// Creates it without contents, until [`Self::reload`] reads valid ones: for a process that lives without them.
    pub fn empty(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            prefix: Box::default(),
            contents: ArcSwapOption::empty(),
            readings: Mutex::default(),
            read_again: Notify::new(),
        }
    }

    /// Sets the prefix of all users.
    #[must_use]
    pub fn with_prefix(self, prefix: Option<Box<str>>) -> Self {
        let prefix = prefix.unwrap_or_default();
        Self { prefix, ..self }
    }

    /// Returns a name of the file with the prefix.
    pub(in crate::policy::access) fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Returns the name in the file of a user, prefix included; `None` if the user can be none of the file.
    pub(in crate::policy::access) fn own_name<'a>(&self, name: &'a str) -> Option<&'a str> {
        name.strip_prefix(&*self.prefix)
    }

    /// Returns the contents; `None` before a good file has been read.
    pub(in crate::policy::access) fn contents(&self) -> Option<Arc<T>> {
        self.contents.load_full()
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.contents().map_or(0, |contents| contents.count())
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads the file again, and applies it if it has changed and is valid. Blocks, for 0.1 s if it has changed.
    pub fn reload(&self) -> ReloadResult<UserFault> {
        // htpasswd(1) writes the file in place: for a moment it is empty or cut, and the missing users would lose their
        // tunnels.
        let read = || file::read_unless_short(&self.path, MAX_FILE_BYTES);
        follow::reload(&self.readings, SETTLING, read, |read| {
            let bytes = read.map_err(|reason| vec![UserFault::in_file(reason)])?;
            let contents = T::parse(&bytes, self.contents().as_deref())?;
            self.contents.store(Some(Arc::new(contents)));
            Ok(())
        })
    }

    /// Reads the file every 10 s while the future is polled. Reports the result of each reading, or why there is none.
    pub async fn follow<R>(self: Arc<Self>, report: R)
    where
        R: Fn(Result<ReloadResult<UserFault>, ReadFailure>) + Clone + Send + 'static,
    {
        let (file, found) = (Arc::clone(&self), report.clone());
        let read = move || found(Ok(file.reload()));
        follow::follow(|| POLL, &self.read_again, read, |error| report(Err(error))).await;
    }

    /// Makes [`Self::follow`] read the file at once, even while a read hangs, and report its errors once more.
    pub fn read_again(&self) {
        self.readings.lock().repeat_faults();
        self.read_again.notify_one();
    }
}

/// The errors of lines, each with its number. Only the first are kept.
#[derive(Debug, Default)]
pub(in crate::policy::access) struct LineFaults {
    faults: Vec<(usize, String)>,
    more: usize,
}

impl LineFaults {
    pub(in crate::policy::access) fn add(&mut self, line: usize, reason: String) {
        match self.faults.len() < MAX_ERRORS {
            true => self.faults.push((line, reason)),
            false => self.more += 1,
        }
    }

    /// Returns all of them in the order of the lines; nothing if there are none.
    pub(in crate::policy::access) fn into_result(mut self) -> Result<(), Vec<UserFault>> {
        self.faults.sort();
        let faults = self
            .faults
            .into_iter()
            .map(|(line, reason)| UserFault::at(line, reason));
        let mut faults: Vec<_> = faults.collect();
        if self.more > 0 {
            faults.push(UserFault::in_file(format!("and {} more errors", self.more)));
        }
        match faults.is_empty() {
            true => Ok(()),
            false => Err(faults),
        }
    }
}

/// Returns the lines of a file that are neither empty nor comments, with their numbers. `entries` names them for the error of an
/// empty file.
pub(in crate::policy::access) fn lines<'a>(
    bytes: &'a [u8],
    entries: &str,
) -> Result<impl Iterator<Item = (usize, &'a str)>, Vec<UserFault>> {
    // An empty file may be one that is being written, or that the operator has not filled yet.
    if bytes.is_empty() {
        let reason = format!("it is empty: a file without {entries} needs a line that begins with #");
        return Err(vec![UserFault::in_file(reason)]);
    }
    let Ok(text) = str::from_utf8(bytes) else {
        let line = bytes
            .utf8_chunks()
            .next()
            .map_or(1, |chunk| chunk.valid().matches('\n').count() + 1);
        return Err(vec![UserFault::at(line, "it is not UTF-8")]);
    };
    let lines = (1..).zip(text.split('\n'));
    let lines = lines.map(|(number, line)| (number, line.strip_suffix('\r').unwrap_or(line)));
    Ok(lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')))
}

/// The largest file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The errors of one file that are reported singly. A file of 1 MiB may have 500,000, and each is a line of the log.
const MAX_ERRORS: usize = 20;
/// A file of 1 MiB is written within milliseconds.
const SETTLING: Duration = Duration::from_millis(100);
const POLL: Duration = Duration::from_secs(10);
