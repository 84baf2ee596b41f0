//! The users of a file: each with a hash of the password, and groups.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use self::entry::Entry;
use super::reviewer::{Unavailable, Verdict};
use crate::base::file;
use crate::base::secret::Secret;
use crate::net::x509::PemFault;

mod entry;
mod hash;
mod reload;

/// The users of a file, in force until a better file has been read.
pub struct Users {
    source: Source,
    table: ArcSwap<Table>,
    /// The number of readings that have begun.
    readings: AtomicU64,
    last: Mutex<Last>,
    /// Asks for a reading at once.
    read_again: Notify,
    /// The number of tables so far.
    changed: watch::Sender<u64>,
    hashing: Arc<Semaphore>,
    waiting: Semaphore,
}

type Table = BTreeMap<Box<str>, Arc<Entry>>;
/// Reads the file.
type Source = Box<dyn Fn() -> Result<Vec<u8>, Unread> + Send + Sync>;

/// The reading that was applied last.
#[derive(Debug, Default)]
struct Last {
    number: u64,
    /// A hash of the file, good or faulty. Its author has no reason to forge it.
    fingerprint: Option<u64>,
}

impl Users {
    /// Reads a file of at most 1 MiB, whose lines are `name:hash` or `name:hash:group,group`. Empty lines and those that
    /// begin with `#` are skipped. The hashes are argon2id, bcrypt, and SHA-crypt of SHA-256 and SHA-512.
    ///
    /// # Errors
    /// The first 20 faults of the file, and how many more there are.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Vec<UserFault>> {
        let users = Self::empty(path);
        match users.reload() {
            Reloaded::Faulty(faults) => Err(faults),
            Reloaded::Postponed(reason) => Err(vec![UserFault::of_the_file(reason)]),
            Reloaded::Loaded { .. } | Reloaded::Unchanged => Ok(users),
        }
    }

    /// No users, until [`Self::reload`] finds a good file: for a process that lives without it.
    pub fn empty(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self::of(Box::new(move || read(&path)))
    }

    fn of(source: Source) -> Self {
        Self {
            source,
            table: ArcSwap::default(),
            readings: AtomicU64::default(),
            last: Mutex::default(),
            read_again: Notify::new(),
            changed: watch::Sender::new(0),
            hashing: Arc::new(Semaphore::new(MOST_HASHED)),
            waiting: Semaphore::new(MOST_WAITING),
        }
    }

    /// Whether there is a user of that name. Names are compared byte by byte.
    pub fn contains(&self, name: &str) -> bool {
        self.table.load().contains_key(name)
    }

    /// The number of users.
    pub fn len(&self) -> usize {
        self.table.load().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first line whose password is guessed fast; `None` without any.
    pub fn weakness(&self) -> Option<UserFault> {
        let line = self.table.load().values().filter_map(|entry| entry.weak_line).min();
        let reason =
            "bcrypt with a cost below 10 is guessed fast: make the hashes with `htpasswd -nB -C 10`".to_owned();
        line.is_some().then_some(UserFault { line, reason })
    }

    /// Judges a password. `None`: there is no such user.
    ///
    /// Two are judged at a time, and 16 wait for up to 5 s; then there is no answer.
    pub async fn verify(&self, user: &str, password: &Secret) -> Option<Result<Verdict, Unavailable>> {
        let entry = self.entry(user)?;
        let is_right = match self.hash(&entry, password).await {
            Ok(is_right) => is_right,
            Err(unavailable) => return Some(Err(unavailable)),
        };
        // The line may have been removed or changed meanwhile; groups that were changed count as well.
        let now = self.entry(user)?;
        let verdict = match is_right && now.has_hash_of(&entry) {
            true => Verdict::Proved(Arc::new(now.user(user))),
            false => Verdict::Refused(WRONG.into()),
        };
        Some(Ok(verdict))
    }

    /// Refuses a password of a name that is no user's, after as long as the file's first user's would take: for callers for
    /// whom the credential can be nothing else.
    ///
    /// This hides which names exist from a client with a clock only as far as all users have the same kind of hash and the
    /// same cost, and as there is no queue. A file without users hides nothing.
    pub async fn refuse(&self, password: &Secret) -> Result<Verdict, Unavailable> {
        let first = self.table.load().values().next().cloned();
        if let Some(entry) = first {
            self.hash(&entry, password).await?;
        }
        Ok(Verdict::Refused(WRONG.into()))
    }

    /// Counts the tables that were put in force: a change says that users may be gone, or have other groups or passwords.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Reads the file again, and puts it in force if it has changed and has no fault. It blocks; for 0.1 s, if it has changed.
    ///
    /// No lock is held meanwhile: a reading that hangs delays no other, and counts no more once a later one has been applied.
    pub fn reload(&self) -> Reloaded {
        let number = self.readings.fetch_add(1, Ordering::Relaxed);
        let read = (self.source)();
        if let Err(Unread {
            reason,
            is_shortage: true,
        }) = read
        {
            return Reloaded::Postponed(reason);
        }
        let new = Some(fingerprint(&read));
        let last = self.last.lock().fingerprint;
        if last == new {
            return self.apply(number, new, None);
        }
        // htpasswd(1) writes the file in place: for a moment it is empty or cut, and those of its users who are missing would
        // lose their tunnels.
        if last.is_some() && !self.has_settled(new) {
            return Reloaded::Postponed("the file is being written".to_owned());
        }
        let table = read.map_err(|unread| vec![UserFault::of_the_file(unread.reason)]);
        self.apply(number, new, Some(table.and_then(|bytes| parse(&bytes))))
    }

    /// Applies what a reading has found, unless a later one has been applied before. `table`: `None` if it is as before.
    fn apply(&self, number: u64, new: Option<u64>, table: Option<Result<Table, Vec<UserFault>>>) -> Reloaded {
        let mut last = self.last.lock();
        if number < last.number {
            return Reloaded::Unchanged;
        }
        last.number = number;
        let Some(table) = table.filter(|_| last.fingerprint != new) else {
            return Reloaded::Unchanged;
        };
        last.fingerprint = new;
        match table {
            Err(faults) => Reloaded::Faulty(faults),
            Ok(table) => {
                let users = table.len();
                self.table.store(Arc::new(table));
                self.changed.send_modify(|tables| *tables += 1);
                Reloaded::Loaded { users }
            }
        }
    }

    /// Whether the file is a moment later as it was read.
    fn has_settled(&self, fingerprinted: Option<u64>) -> bool {
        std::thread::sleep(SETTLING);
        Some(fingerprint(&(self.source)())) == fingerprinted
    }

    fn entry(&self, name: &str) -> Option<Arc<Entry>> {
        self.table.load().get(name).cloned()
    }

    /// Whether the password is that of the entry.
    async fn hash(&self, entry: &Arc<Entry>, password: &Secret) -> Result<bool, Unavailable> {
        let permit = self.permit().await?;
        let (entry, password) = (Arc::clone(entry), password.clone());
        let hashed = spawn_blocking(move || {
            // For as long as it takes: the client may be gone before.
            let _permit = permit;
            entry.is_password(password.expose())
        });
        let hashed = hashed
            .await
            .map_err(|error| unavailable("hashing", error.to_string()))?;
        hashed.map_err(|reason| unavailable("hashing", reason.to_owned()))
    }

    async fn permit(&self) -> Result<OwnedSemaphorePermit, Unavailable> {
        let busy = || unavailable("busy", "too many passwords are checked at this moment".to_owned());
        let _waiting = self.waiting.try_acquire().map_err(|_| busy())?;
        let permit = timeout(LONGEST_WAIT, Arc::clone(&self.hashing).acquire_owned()).await;
        permit.ok().and_then(Result::ok).ok_or_else(busy)
    }
}

/// Without the source, which has no form to print.
impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users")
            .field("table", &self.table)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

/// What a reading of the file has found.
#[derive(Debug)]
pub enum Reloaded {
    /// The file is as it was.
    Unchanged,
    /// It is in force.
    Loaded {
        /// The number of users.
        users: usize,
    },
    /// It has these faults; the users stay as they were.
    Faulty(Vec<UserFault>),
    /// It could not be read now, for this reason, which is none of the file.
    Postponed(String),
}

/// A fault of the file. Prints as `line 3: there is no hash after the name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserFault {
    /// Counted from 1; `None` for a fault of the file as a whole.
    pub line: Option<usize>,
    /// The reason, without any part of a hash.
    pub reason: String,
}

impl UserFault {
    fn of_the_file(reason: String) -> Self {
        Self { line: None, reason }
    }
}

impl fmt::Display for UserFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

impl std::error::Error for UserFault {}

/// Why the file was not read.
struct Unread {
    reason: String,
    /// The process was short of descriptors or memory.
    is_shortage: bool,
}

fn read(path: &Path) -> Result<Vec<u8>, Unread> {
    file::read(path, LARGEST).map_err(|error| Unread {
        reason: PemFault::unreadable(&error).reason,
        is_shortage: file::is_shortage(&error),
    })
}

/// A hash of a file, or of the reason for which it cannot be read.
fn fingerprint(read: &Result<Vec<u8>, Unread>) -> u64 {
    let mut hasher = DefaultHasher::new();
    match read {
        Ok(bytes) => bytes.hash(&mut hasher),
        Err(unread) => unread.reason.as_bytes().hash(&mut hasher),
    }
    hasher.finish()
}

/// Parses a file.
///
/// # Errors
/// Its first 20 faults, and how many more there are.
pub fn check(bytes: &[u8]) -> Result<usize, Vec<UserFault>> {
    parse(bytes).map(|table| table.len())
}

fn parse(bytes: &[u8]) -> Result<Table, Vec<UserFault>> {
    // As a file is that is being written, or that was not.
    if bytes.is_empty() {
        let reason = "it is empty: without users, it has a line that begins with #";
        return Err(vec![UserFault::of_the_file(reason.to_owned())]);
    }
    let Ok(text) = str::from_utf8(bytes) else {
        let line = bytes
            .utf8_chunks()
            .next()
            .map_or(1, |chunk| chunk.valid().matches('\n').count() + 1);
        let reason = "it is not UTF-8".to_owned();
        return Err(vec![UserFault {
            line: Some(line),
            reason,
        }]);
    };
    let mut table = Table::new();
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    let mut faults = Vec::new();
    let mut more = 0_usize;
    for (number, line) in (1..).zip(text.split('\n')) {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut fault = |reason| match faults.len() < MOST_FAULTS {
            true => faults.push(UserFault {
                line: Some(number),
                reason,
            }),
            false => more += 1,
        };
        let (name, entry) = match Entry::parse(number, line) {
            Ok(parsed) => parsed,
            Err(reason) => {
                fault(reason);
                continue;
            }
        };
        if let Some(first) = lines.get(name) {
            fault(format!("this user is in line {first} already"));
            continue;
        }
        lines.insert(name, number);
        table.insert(name.into(), Arc::new(entry));
    }
    if more > 0 {
        faults.push(UserFault::of_the_file(format!("and {more} more faults")));
    }
    match faults.is_empty() {
        true => Ok(table),
        false => Err(faults),
    }
}

fn unavailable(kind: &'static str, message: String) -> Unavailable {
    Unavailable {
        kind,
        message: message.into(),
    }
}

/// The answer for a wrong user and for a wrong password.
const WRONG: &str = "the user or the password is wrong";
/// The largest file, in bytes.
const LARGEST: u64 = 1 << 20;
/// The faults of one file that are reported one by one: a file of 1 MiB may have 500,000, and each is a line of the log.
const MOST_FAULTS: usize = 20;
/// The passwords that are hashed at a time: each takes a processor for a while.
pub(super) const MOST_HASHED: usize = 2;
/// Those that wait for it.
const MOST_WAITING: usize = 16;
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// A file of 1 MiB is written within milliseconds.
const SETTLING: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;
