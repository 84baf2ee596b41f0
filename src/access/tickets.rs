//! Tickets: 26 letters in place of a token, for clients that cannot carry one. Only their hashes are kept.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use self::entry::Entry;
pub use self::entry::{Target, Ticket, data_of};
pub use self::letters::{Key, Minted};
use super::user::User;
use crate::secret::Secret;

mod entry;
mod letters;

/// The tickets in force, by their hashes.
#[derive(Debug)]
pub struct Tickets {
    /// The longest life.
    ttl: Duration,
    table: ArcSwap<HashMap<Key, Entry>>,
    /// The number of tables so far.
    changed: watch::Sender<u64>,
}

/// What a ticket proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The user.
    pub user: Arc<User>,
    /// The only target that it opens, if it is for one. It gives no right to it.
    pub target: Option<Target>,
}

impl Tickets {
    /// No tickets. None of those to come is accepted that has longer to live.
    pub fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            table: ArcSwap::default(),
            changed: watch::Sender::new(0),
        }
    }

    /// Judges a ticket. `None`: the text has not the shape of one.
    ///
    /// It is found by its hash in a map. The time that this takes depends on the hash of what the client has sent, and says
    /// nothing of the tickets that there are.
    ///
    /// # Errors
    /// The reason of the refusal, for the client.
    pub fn verify(&self, ticket: &Secret, now: SystemTime) -> Option<Result<Proof, &'static str>> {
        let key = Key::of(ticket)?;
        let table = self.table.load();
        let Some(entry) = table.get(&key) else {
            return Some(Err("the ticket is not known, or was taken back"));
        };
        if entry.expires <= now {
            return Some(Err("the ticket has expired"));
        }
        if now.checked_add(self.ttl).is_some_and(|latest| entry.expires > latest) {
            return Some(Err("the ticket is valid for longer than tickets may be"));
        }
        Some(Ok(Proof {
            user: Arc::clone(&entry.user),
            target: entry.target.clone(),
        }))
    }

    /// The number of tickets, those that have expired included.
    pub fn len(&self) -> usize {
        self.table.load().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Counts the tables that were put in force: a change says that tickets may have been taken back.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Puts the data of a Secret in force, in place of all tickets; no data takes all back. An entry that cannot be read is
    /// no ticket, and the others count.
    pub fn replace(&self, data: &BTreeMap<String, Vec<u8>>) -> Vec<TicketFault> {
        let mut table = HashMap::new();
        let mut faults = Vec::new();
        for (name, value) in data {
            match Key::parse(name)
                .ok_or(entry::NOT_A_HASH)
                .and_then(|key| Ok((key, Entry::parse(value)?)))
            {
                Ok((key, entry)) if table.len() < MOST => drop(table.insert(key, entry)),
                Ok(_) => faults.push(TicketFault::new(name, "there are more than 16384 tickets")),
                Err(reason) => faults.push(TicketFault::new(name, reason)),
            }
        }
        self.table.store(Arc::new(table));
        self.changed.send_modify(|tables| *tables += 1);
        faults
    }
}

/// A fault of an entry. Prints as `e3b0c442…: it has no user`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketFault {
    /// The beginning of its key: enough to find it.
    pub key: Box<str>,
    /// The reason.
    pub reason: &'static str,
}

impl TicketFault {
    fn new(name: &str, reason: &'static str) -> Self {
        Self {
            key: crate::text::excerpt(name, 8).into(),
            reason,
        }
    }
}

impl fmt::Display for TicketFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.reason)
    }
}

impl std::error::Error for TicketFault {}

/// The tickets of a table. A Secret of 1 MiB has room for a quarter of them.
const MOST: usize = 16_384;

#[cfg(test)]
mod tests;
