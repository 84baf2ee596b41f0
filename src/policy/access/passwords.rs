//! The users of a file: each with a hash of the password or public keys, and groups.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::task::spawn_blocking;

use self::entry::{Entry, UNKNOWN_KEY};
use self::hash::Hash;
use super::reviewer::{NoAnswer, ReviewError, Verdict};
use super::user::User;
use crate::base::file;
use crate::base::follow::{self, ReadFailure, ReadHistory, ReloadResult};
use crate::base::secret::Secret;
pub use crate::net::x509::PemError as UserFault;
use crate::protocol::host_key::HostKey;

mod entry;
mod hash;
mod key;

/// The users of a file, in effect until new valid contents have been read.
#[derive(Debug)]
pub struct PasswordFile {
    path: PathBuf,
    /// The beginning of the users' names, which the file leaves out.
    prefix: Box<str>,
    /// `None` before the file was read; until then a name that is missing proves nothing.
    table: ArcSwapOption<Table>,
    has_keys: AtomicBool,
    readings: Mutex<ReadHistory>,
    /// Notified to read the file at once.
    read_again: Notify,
    /// Passwords that are hashed at a time: those of requests, which have waited in their queue, and those of rechecks.
    pub(super) hashing: Arc<Semaphore>,
}

type Table = BTreeMap<Box<str>, Arc<Entry>>;

impl PasswordFile {
    /// Reads a file of at most 1 MiB, whose lines are `name:hash`, `name:hash:group,group` or `name:KEY`. Empty lines and
    /// those that begin with `#` are skipped. The hashes are argon2id and bcrypt; a key is a line of `authorized_keys`.
    ///
    /// # Errors
    /// The first 20 errors of the file, and how many more there are.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Vec<UserFault>> {
        let users = Self::empty(path);
        match users.reload() {
            ReloadResult::Invalid(faults) => Err(faults),
            ReloadResult::Deferred(reason) => Err(vec![UserFault::in_file(reason)]),
            ReloadResult::Loaded | ReloadResult::Unchanged => Ok(users),
        }
    }

    /// Creates it without users, until [`Self::reload`] reads a valid file: for a process that lives without one.
    pub fn empty(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            prefix: Box::default(),
            table: ArcSwapOption::empty(),
            has_keys: AtomicBool::default(),
            readings: Mutex::default(),
            read_again: Notify::new(),
            hashing: Arc::new(Semaphore::new(MAX_HASHED)),
        }
    }

    /// Sets the prefix of all users.
    #[must_use]
    pub fn with_prefix(self, prefix: Option<Box<str>>) -> Self {
        let prefix = prefix.unwrap_or_default();
        Self { prefix, ..self }
    }

    /// Returns a name of the file with the prefix.
    pub(super) fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Returns whether it has the user of that name, prefix included.
    pub(super) fn proves(&self, name: &str) -> bool {
        name.strip_prefix(&*self.prefix).is_some_and(|name| self.contains(name))
    }

    /// Returns whether the line that has proved the user is still there, with the same hash and groups.
    pub(super) fn is_current(&self, user: &Arc<User>) -> bool {
        let name = user.name.strip_prefix(&*self.prefix);
        let entry = name.and_then(|name| self.entry(name));
        entry.is_some_and(|entry| entry.user.get().is_some_and(|own| Arc::ptr_eq(own, user)))
    }

    /// Returns whether a user has a public key.
    pub(super) fn has_keys(&self) -> bool {
        self.has_keys.load(Ordering::Relaxed)
    }

    /// Returns whether a good file has been read.
    pub(super) fn is_loaded(&self) -> bool {
        self.table.load().is_some()
    }

    /// Returns whether there is a user of that name, prefix left out. Names are compared byte by byte.
    pub fn contains(&self, name: &str) -> bool {
        self.entry(name).is_some()
    }

    /// Returns the number of users.
    pub fn len(&self) -> usize {
        self.table.load().as_ref().map_or(0, |table| table.len())
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the first line whose password is guessed fast; `None` without any.
    pub fn weakness(&self) -> Option<UserFault> {
        let table = self.table.load();
        let weak = table.iter().flat_map(|table| table.values());
        let weak = weak.filter(|entry| entry.hash.as_ref().is_some_and(Hash::is_weak));
        let line = weak.filter_map(|entry| entry.line).min();
        let reason =
            "bcrypt with a cost below 10 is guessed fast: make the hashes with `htpasswd -nB -C 10`".to_owned();
        line.is_some().then_some(UserFault { line, reason })
    }

    /// Verifies a password. Two are hashed at a time.
    ///
    /// For a name without a password, it is hashed like that of the alphabetically first user with one. If all hashes have
    /// one kind and cost and no password waits, the time of the answer does not reveal which names exist. A file without
    /// passwords hides nothing.
    ///
    /// # Errors
    /// No file has been read yet, or the password cannot be hashed.
    pub async fn verify(&self, user: &str, password: &Secret) -> Result<Verdict, ReviewError> {
        self.check_loaded()?;
        let entry = self.entry(user).filter(|entry| entry.hash.is_some());
        let first = || {
            let table = self.table.load();
            table.as_ref()?.values().find(|entry| entry.hash.is_some()).cloned()
        };
        let is_right = match entry.clone().or_else(first) {
            Some(entry) => self.hash(&entry, password).await?,
            None => false,
        };
        // The line may have been removed or changed while the password was hashed. New groups apply.
        let now = entry.filter(|_| is_right).zip(self.entry(user));
        Ok(match now.filter(|(entry, now)| now.hash == entry.hash) {
            Some((_, now)) => Verdict::Authenticated(now.user(&self.full_name(user))),
            None => Verdict::Rejected(WRONG.into()),
        })
    }

    /// Verifies a public key, whose signature is verified. It costs no more than a comparison with the user's keys.
    ///
    /// # Errors
    /// No file has been read yet.
    pub(super) fn verify_key(&self, user: &str, key: &HostKey, client: IpAddr) -> Result<Verdict, ReviewError> {
        self.check_loaded()?;
        Ok(match self.user_of_key(user, key, client) {
            Ok(user) if user.has_expired() => Verdict::Rejected(EXPIRED_KEY.into()),
            Ok(user) => Verdict::Authenticated(user.into()),
            Err(phrase) => Verdict::Rejected(phrase.into()),
        })
    }

    /// Returns the user that a key proves now, or would if it had not expired.
    ///
    /// # Errors
    /// The reason why it proves none.
    pub(super) fn user_of_key(&self, user: &str, key: &HostKey, client: IpAddr) -> Result<User, &'static str> {
        let entry = self.entry(user).ok_or(UNKNOWN_KEY)?;
        entry.user_of_key(&self.full_name(user), key, client)
    }

    fn check_loaded(&self) -> Result<(), ReviewError> {
        let unread = || ReviewError::new(NoAnswer::Unavailable, "the file of users was not read yet");
        self.is_loaded().then_some(()).ok_or_else(unread)
    }

    /// Reads the file again, and applies it if it has changed and is valid. Blocks, for 0.1 s if it has changed.
    pub fn reload(&self) -> ReloadResult<UserFault> {
        // htpasswd(1) writes the file in place: for a moment it is empty or cut, and the missing users would lose their
        // tunnels.
        let read = || file::read_unless_short(&self.path, MAX_FILE_BYTES);
        follow::reload(&self.readings, SETTLING, read, |read| {
            let bytes = read.map_err(|reason| vec![UserFault::in_file(reason)])?;
            let mut table = parse(&bytes)?;
            for (name, entry) in &mut table {
                let old = self.entry(name);
                if let Some(old) = old.filter(|old| old.hash == entry.hash && old.groups == entry.groups) {
                    // Its password need not be hashed again.
                    entry.user = Arc::clone(&old.user);
                }
            }
            let has_keys = table.values().any(|entry| !entry.keys.is_empty());
            let table = table.into_iter().map(|(name, entry)| (name, Arc::new(entry)));
            self.table.store(Some(Arc::new(table.collect())));
            self.has_keys.store(has_keys, Ordering::Relaxed);
            Ok(())
        })
    }

    /// Reads the file every 10 s while the future is polled. Reports the result of each reading, or why there is none.
    pub async fn follow<R>(self: Arc<Self>, report: R)
    where
        R: Fn(Result<ReloadResult<UserFault>, ReadFailure>) + Clone + Send + 'static,
    {
        let (users, found) = (Arc::clone(&self), report.clone());
        let read = move || found(Ok(users.reload()));
        follow::follow(|| POLL, &self.read_again, read, |error| report(Err(error))).await;
    }

    /// Makes [`Self::follow`] read the file at once, even while a read hangs, and report its errors once more.
    pub fn read_again(&self) {
        self.readings.lock().repeat_faults();
        self.read_again.notify_one();
    }

    fn entry(&self, name: &str) -> Option<Arc<Entry>> {
        self.table.load().as_ref()?.get(name).cloned()
    }

    /// Returns whether the password is that of the entry.
    async fn hash(&self, entry: &Arc<Entry>, password: &Secret) -> Result<bool, ReviewError> {
        let unavailable = |error: &dyn Display| ReviewError::new(NoAnswer::Unavailable, error.to_string());
        let permit = Arc::clone(&self.hashing).acquire_owned().await;
        let permit = permit.map_err(|error| unavailable(&error))?;
        let (entry, password) = (Arc::clone(entry), password.clone());
        let hashed = spawn_blocking(move || {
            // Held until the hash is done: the client may be gone before.
            let _permit = permit;
            let hash = entry.hash.as_ref();
            hash.map_or(Ok(false), |hash| hash.is_password(password.expose()))
        });
        let hashed = hashed.await.map_err(|error| unavailable(&error))?;
        hashed.map_err(|reason| unavailable(&reason))
    }
}

/// Parses a file, and returns the number of its users.
///
/// # Errors
/// Its first 20 errors, and how many more there are.
pub fn check(bytes: &[u8]) -> Result<usize, Vec<UserFault>> {
    parse(bytes).map(|table| table.len())
}

fn parse(bytes: &[u8]) -> Result<BTreeMap<Box<str>, Entry>, Vec<UserFault>> {
    // An empty file may be one that is being written, or that the operator has not filled yet.
    if bytes.is_empty() {
        let reason = "it is empty: a file without users needs a line that begins with #";
        return Err(vec![UserFault::in_file(reason.to_owned())]);
    }
    let Ok(text) = str::from_utf8(bytes) else {
        let line = bytes
            .utf8_chunks()
            .next()
            .map_or(1, |chunk| chunk.valid().matches('\n').count() + 1);
        return Err(vec![UserFault::at(line, "it is not UTF-8")]);
    };
    let mut table = BTreeMap::<Box<str>, Entry>::new();
    let mut faults = Vec::new();
    let mut more = 0_usize;
    let mut add = |line: usize, reason| match faults.len() < MAX_ERRORS {
        true => faults.push((line, reason)),
        false => more += 1,
    };
    for (number, line) in (1..).zip(text.split('\n')) {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let added = Entry::split(line).and_then(|(name, rest)| {
            let entry = table.entry(name.into()).or_default();
            entry.add(number, name, rest)
        });
        if let Err(reason) = added {
            add(number, reason);
        }
    }
    let without = table
        .values()
        .filter(|entry| entry.hash.is_none() && !entry.has_key_line);
    for line in without.filter_map(|entry| entry.line) {
        add(line, NO_PROOF.to_owned());
    }
    faults.sort();
    let faults = faults.into_iter().map(|(line, reason)| UserFault::at(line, reason));
    let mut faults: Vec<_> = faults.collect();
    if more > 0 {
        faults.push(UserFault::in_file(format!("and {more} more errors")));
    }
    match faults.is_empty() {
        true => Ok(table),
        false => Err(faults),
    }
}

/// The answer for a wrong user and for a wrong password.
const WRONG: &str = "the user or the password is wrong";
/// The answer for a key whose `expiry-time` has passed.
pub(super) const EXPIRED_KEY: &str = "the key has expired";
const NO_PROOF: &str = "there is no hash after the name, and no line with a key of this user";
/// The largest file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The errors of one file that are reported singly. A file of 1 MiB may have 500,000, and each is a line of the log.
const MAX_ERRORS: usize = 20;
/// The passwords that are hashed at a time: each occupies a CPU.
pub(super) const MAX_HASHED: usize = 2;
/// A file of 1 MiB is written within milliseconds.
const SETTLING: Duration = Duration::from_millis(100);
const POLL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
