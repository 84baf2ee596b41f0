//! The lines of one user in the file of users.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use super::hash::Hash;
use super::key::UserKey;
use crate::base::values::is_name;
use crate::policy::access::user::{Method, User};
use crate::protocol::host_key::HostKey;

/// A user's hash, groups and public keys.
#[derive(Default)]
pub(super) struct Entry {
    /// `None` without a password.
    pub(super) hash: Option<Hash>,
    pub(super) groups: Vec<Box<str>>,
    /// The number of the line with the hash and the groups.
    pub(super) line: Option<usize>,
    pub(super) keys: Vec<UserKey>,
    /// True if a line has a key, even if it is faulty.
    pub(super) has_key_line: bool,
    /// The user, once a password has proved it. Shared with the entries of earlier readings, while hash and groups are the same.
    pub(super) user: Arc<OnceLock<Arc<User>>>,
}

impl Entry {
    /// Returns the name and the rest of a line: `name:hash`, `name:hash:group,group` or `name:KEY`. Names and groups have no
    /// colon, so none begins with `system:`.
    ///
    /// # Errors
    /// The error of the line.
    pub(super) fn split(line: &str) -> Result<(&str, &str), String> {
        let (name, rest) = line
            .split_once(':')
            .ok_or("there is no colon: a line is name:hash, name:hash:groups or name:KEY")?;
        match is_name(name, MAX_NAME) {
            true => Ok((name, rest)),
            false => Err("the name is empty, too long, not printable, or has a space at an end".to_owned()),
        }
    }

    /// Adds the rest of a line of that number, after the user's name.
    ///
    /// # Errors
    /// The error of the line, without any part of its hash.
    pub(super) fn add(&mut self, number: usize, name: &str, rest: &str) -> Result<(), String> {
        // No hash has a space, and each key has one. A group may.
        match rest.contains([' ', '\t']) && !rest.starts_with(['$', ':']) {
            true => self
                .add_key(rest)
                .map_err(|fault| format!("the key of {name}: {fault}")),
            false => self.add_hash(number, rest),
        }
    }

    /// Adds a line of `authorized_keys`.
    ///
    /// # Errors
    /// The error of the line.
    pub(super) fn add_key(&mut self, text: &str) -> Result<(), String> {
        self.has_key_line = true;
        let key = UserKey::parse(text)?;
        if self.keys.iter().any(|own| own.key == key.key) {
            return Err("the user has this key already".to_owned());
        }
        if self.keys.len() == MAX_KEYS {
            return Err("the user has 16 keys already".to_owned());
        }
        self.keys.push(key);
        Ok(())
    }

    fn add_hash(&mut self, number: usize, text: &str) -> Result<(), String> {
        let (hash, groups) = text.split_once(':').unwrap_or((text, ""));
        let hash = match hash {
            "" => None,
            hash => Some(Hash::parse(hash)?),
        };
        if groups.contains(':') {
            return Err("there is a colon after the groups: a line is name:hash or name:hash:groups".to_owned());
        }
        let groups = match groups {
            "" => Vec::new(),
            groups => groups.split(',').collect(),
        };
        if groups.len() > MAX_GROUPS || !groups.iter().all(|group| is_name(group, MAX_NAME)) {
            return Err("a group is empty, too long, not printable, or has a space at an end".to_owned());
        }
        if let Some(first) = self.line {
            return Err(format!("this user is in line {first} already"));
        }
        self.line = Some(number);
        self.hash = hash;
        self.groups = groups.into_iter().map(Into::into).collect();
        Ok(())
    }

    /// Returns the user that a password has proved, with this name.
    pub(super) fn user(&self, name: &str) -> Arc<User> {
        let user = || Arc::new(User::claimed(Method::Password, name, self.groups.clone(), None));
        Arc::clone(self.user.get_or_init(user))
    }

    /// Returns the user that this key proves, with this name. A key that has expired proves one, too.
    ///
    /// # Errors
    /// The key is not the user's, or not for that client.
    pub(super) fn user_of_key(&self, name: &str, key: &HostKey, client: IpAddr) -> Result<User, &'static str> {
        let expires = self.expiry(key, client)?;
        Ok(User::claimed(Method::PublicKey, name, self.groups.clone(), expires))
    }

    /// Returns when this key expires, or has expired.
    ///
    /// # Errors
    /// The key is not the user's, or not for that client.
    pub(super) fn expiry(&self, key: &HostKey, client: IpAddr) -> Result<Option<SystemTime>, &'static str> {
        let own = self.keys.iter().find(|own| own.key == *key);
        let own = own.ok_or(UNKNOWN_KEY)?;
        match own.admits(client) {
            true => Ok(own.expires),
            false => Err("the key is not accepted from this address"),
        }
    }
}

/// Without the hash.
impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("groups", &self.groups)
            .field("keys", &self.keys.len())
            .finish_non_exhaustive()
    }
}

/// The answer to a key of an unknown user, and to an unknown key.
pub(in crate::policy::access) const UNKNOWN_KEY: &str = "the user has no such key";
/// In bytes.
const MAX_NAME: usize = 256;
const MAX_GROUPS: usize = 256;
const MAX_KEYS: usize = 16;
