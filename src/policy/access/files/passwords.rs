//! The users of a file: each with a hash of the password or public keys, and groups.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use self::entry::Entry;
pub(in crate::policy::access) use self::entry::UNKNOWN_KEY;
use self::hash::Hash;
pub use super::followed_file::UserFault;
use super::followed_file::{Contents, FollowedFile, LineFaults, lines};
use crate::base::secret::Secret;
use crate::policy::access::reviewer::{NoAnswer, ReviewError, Verdict};
use crate::policy::access::user::User;
use crate::protocol::host_key::HostKey;

mod entry;
mod hash;
pub(in crate::policy::access) mod key;
pub mod key_secret;

/// The file of users. Its lines are `name:hash`, `name:hash:group,group` or `name:KEY`; empty lines and those that begin with `#`
/// are skipped. The hashes are argon2id and bcrypt; a key is a line of `authorized_keys`.
pub type PasswordFile = FollowedFile<Users>;

/// The users of a file, by name.
#[derive(Debug)]
pub struct Users {
    entries: BTreeMap<Box<str>, Arc<Entry>>,
    has_keys: bool,
    /// Passwords that are hashed at a time: those of requests, which have waited in their queue, and those of rechecks.
    hashing: Arc<Semaphore>,
}

impl Contents for Users {
    fn parse(bytes: &[u8], old: Option<&Self>) -> Result<Self, Vec<UserFault>> {
        let mut entries = parse(bytes)?;
        for (name, entry) in &mut entries {
            let old = old.and_then(|old| old.entries.get(name));
            if let Some(old) = old.filter(|old| old.hash == entry.hash && old.groups == entry.groups) {
                // Its password need not be hashed again.
                entry.user = Arc::clone(&old.user);
            }
        }
        let new = || Arc::new(Semaphore::new(MAX_HASHED));
        Ok(Self {
            has_keys: entries.values().any(|entry| !entry.keys.is_empty()),
            entries: entries
                .into_iter()
                .map(|(name, entry)| (name, Arc::new(entry)))
                .collect(),
            hashing: old.map_or_else(new, |old| Arc::clone(&old.hashing)),
        })
    }

    fn count(&self) -> usize {
        self.entries.len()
    }
}

impl PasswordFile {
    /// Returns whether it has the user of that name, prefix included.
    pub(in crate::policy::access) fn proves(&self, name: &str) -> bool {
        self.own_name(name).is_some_and(|name| self.contains(name))
    }

    /// Returns whether the line that has proved the user is still there, with the same hash and groups.
    pub(in crate::policy::access) fn is_current(&self, user: &Arc<User>) -> bool {
        let entry = self.own_name(&user.name).and_then(|name| self.entry(name));
        entry.is_some_and(|entry| entry.user.get().is_some_and(|own| Arc::ptr_eq(own, user)))
    }

    /// Returns whether a user has a public key.
    pub(in crate::policy::access) fn has_keys(&self) -> bool {
        self.contents().is_some_and(|users| users.has_keys)
    }

    /// Returns whether a good file has been read.
    pub(in crate::policy::access) fn is_loaded(&self) -> bool {
        self.contents().is_some()
    }

    /// Returns whether there is a user of that name, prefix left out. Names are compared byte by byte.
    pub fn contains(&self, name: &str) -> bool {
        self.entry(name).is_some()
    }

    /// Returns the first line whose password is guessed fast; `None` without any.
    pub fn weakness(&self) -> Option<UserFault> {
        let users = self.contents();
        let weak = users.iter().flat_map(|users| users.entries.values());
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
        let users = self.contents().ok_or_else(unread)?;
        let entry = self.entry(user).filter(|entry| entry.hash.is_some());
        let first = || users.entries.values().find(|entry| entry.hash.is_some()).cloned();
        let is_right = match entry.clone().or_else(first) {
            Some(entry) => users.hash(&entry, password).await?,
            None => false,
        };
        // The line may have been removed or changed while the password was hashed. New groups apply.
        let now = entry.filter(|_| is_right).zip(self.entry(user));
        Ok(match now.filter(|(entry, now)| now.hash == entry.hash) {
            Some((_, now)) => Verdict::Authenticated(now.user(&self.full_name(user))),
            None => Verdict::Rejected(WRONG.into()),
        })
    }

    /// Returns the permits of hashing. The file has been read.
    #[cfg(test)]
    pub(in crate::policy::access) fn hashing(&self) -> Arc<Semaphore> {
        Arc::clone(&self.contents().unwrap().hashing)
    }

    /// Returns the groups of a user, prefix included; none of one that it lacks.
    pub(in crate::policy::access) fn groups(&self, name: &str) -> Vec<Box<str>> {
        let entry = self.own_name(name).and_then(|name| self.entry(name));
        entry.map_or_else(Vec::new, |entry| entry.groups.clone())
    }

    /// Returns the user that a key proves now, or would if it had not expired.
    ///
    /// # Errors
    /// The reason why it proves none.
    pub(in crate::policy::access) fn user_of_key(
        &self,
        user: &str,
        key: &HostKey,
        client: IpAddr,
    ) -> Result<User, &'static str> {
        let entry = self.entry(user).ok_or(UNKNOWN_KEY)?;
        entry.user_of_key(&self.full_name(user), key, client)
    }

    fn entry(&self, name: &str) -> Option<Arc<Entry>> {
        self.contents()?.entries.get(name).cloned()
    }
}

impl Users {
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

fn unread() -> ReviewError {
    ReviewError::new(NoAnswer::Unavailable, "the file of users was not read yet")
}

/// Parses a file, and returns the number of its users.
///
/// # Errors
/// Its first 20 errors, and how many more there are.
pub fn check(bytes: &[u8]) -> Result<usize, Vec<UserFault>> {
    parse(bytes).map(|table| table.len())
}

fn parse(bytes: &[u8]) -> Result<BTreeMap<Box<str>, Entry>, Vec<UserFault>> {
    let mut table = BTreeMap::<Box<str>, Entry>::new();
    let mut faults = LineFaults::default();
    for (number, line) in lines(bytes, "users")? {
        let added = Entry::split(line).and_then(|(name, rest)| {
            let entry = table.entry(name.into()).or_default();
            entry.add(number, name, rest)
        });
        if let Err(reason) = added {
            faults.add(number, reason);
        }
    }
    let without = table
        .values()
        .filter(|entry| entry.hash.is_none() && !entry.has_key_line);
    for line in without.filter_map(|entry| entry.line) {
        faults.add(line, NO_PROOF.to_owned());
    }
    faults.into_result().map(|()| table)
}

/// The answer for a wrong user and for a wrong password.
const WRONG: &str = "the user or the password is wrong";
const NO_PROOF: &str = "there is no hash after the name, and no line with a key of this user";
/// The passwords that are hashed at a time: each occupies a CPU.
pub(in crate::policy::access) const MAX_HASHED: usize = 2;

#[cfg(test)]
mod tests;
