//! A line of the file of users.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::super::user::{Method, User};
use super::hash::Hash;
use crate::base::values::is_name;

/// A user's hash and groups.
pub(super) struct Entry {
    pub(super) hash: Hash,
    pub(super) groups: Vec<Box<str>>,
    /// The number of its line when it was first read.
    pub(super) line: usize,
    /// The user, once a password has proved it.
    pub(super) user: OnceLock<Arc<User>>,
}

impl Entry {
    /// Parses the line of that number, `name:hash` or `name:hash:group,group`. Names and groups have no colon, so none
    /// begins with `system:`.
    ///
    /// # Errors
    /// The error of the line, without any part of its hash.
    pub(super) fn parse(number: usize, line: &str) -> Result<(&str, Self), String> {
        let (name, rest) = line
            .split_once(':')
            .ok_or("there is no colon: a line is name:hash or name:hash:groups")?;
        if !is_name(name, MAX_NAME) {
            return Err("the name is empty, too long, not printable, or has a space at an end".to_owned());
        }
        let (hash, groups) = rest.split_once(':').unwrap_or((rest, ""));
        if hash.is_empty() {
            return Err("there is no hash after the name".to_owned());
        }
        let hash = Hash::parse(hash)?;
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
        let groups = groups.into_iter().map(Into::into).collect();
        Ok((
            name,
            Self {
                hash,
                groups,
                line: number,
                user: OnceLock::new(),
            },
        ))
    }

    /// Returns the user, with this name.
    pub(super) fn user(&self, name: &str) -> Arc<User> {
        let user = || Arc::new(User::claimed(Method::Password, name, self.groups.clone(), None));
        Arc::clone(self.user.get_or_init(user))
    }
}

/// Without the hash.
impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("groups", &self.groups)
            .finish_non_exhaustive()
    }
}

/// In bytes.
const MAX_NAME: usize = 256;
const MAX_GROUPS: usize = 256;
