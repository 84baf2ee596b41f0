//! Tickets: 26 characters instead of a token, for clients that cannot carry a token. Only their hashes are kept.
//!
//! They are entries of a Secret that operators write. While its watch fails, the tickets stay as they were, but after
//! 5 s no ticket opens a new tunnel. No ticket outlives its expiry.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::reviewer::{NoAnswer, ReviewError, Verdict};
use super::user::{Method, User};
use crate::policy::allowlist::TargetId;
use crate::protocol::jwt::SKEW;
pub use crate::protocol::ticket::{Key, NewTicket, SECRET_TYPE, Ticket, TicketTarget, data_of};

/// The tickets in effect, by their hashes.
#[derive(Debug)]
pub struct Tickets {
    /// The longest life.
    ttl: Duration,
    /// `None` before the Secret was listed; until then a missing hash proves nothing.
    table: ArcSwapOption<Table>,
    /// The number of tables so far.
    changed: watch::Sender<u64>,
}

#[derive(Debug)]
struct Table {
    entries: HashMap<Key, TicketIdentity>,
    /// The number of invalid entries.
    faults: usize,
}

/// The result of the lookup of a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TicketLookup {
    /// It is in effect.
    Proved(TicketIdentity),
    /// It has expired.
    Expired,
    /// It lives longer than tickets may.
    TooLong,
    /// There is none with this hash.
    Unknown,
    /// The Secret has not been listed yet.
    Unlisted,
}

/// The identity that a ticket proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketIdentity {
    /// The user.
    pub user: Arc<User>,
    /// The only target that it opens; `None` for any. The user needs the right to the target as well.
    pub target: Option<TicketTarget>,
}

impl TicketIdentity {
    /// Parses the value of one key of the Secret.
    fn parse(value: &[u8]) -> Result<Self, &'static str> {
        let Ticket {
            user,
            groups,
            expires,
            target,
        } = Ticket::parse(value)?;
        let user = Arc::new(User::claimed(Method::Ticket, &user, groups, Some(expires)));
        Ok(Self { user, target })
    }

    /// Returns whether the ticket is for the target that is dialled, whichever of its names was requested.
    pub fn allows(&self, target: &TargetId) -> bool {
        self.target.as_ref().is_none_or(|own| match target.is_static() {
            true => own.is_static(&target.service),
            false if target.is_pod() => own.is_pod(&target.short_name()),
            false => own.is_service(target.service_name(), &target.namespace),
        })
    }
}

impl Tickets {
    /// Creates a table that has not been listed. Tickets that expire more than `ttl` from now are refused.
    pub fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            table: ArcSwapOption::empty(),
            changed: watch::Sender::new(0),
        }
    }

    /// Looks up the ticket of that hash.
    ///
    /// The time of the lookup depends on the hash of what the client has sent, and reveals nothing of other tickets.
    pub fn lookup(&self, key: Key, now: SystemTime) -> TicketLookup {
        let table = self.table.load();
        let Some(table) = table.as_ref() else {
            return TicketLookup::Unlisted;
        };
        // Operators' clocks may be ahead by [`SKEW`].
        let latest = now.checked_add(self.ttl).and_then(|latest| latest.checked_add(SKEW));
        match table.entries.get(&key) {
            None => TicketLookup::Unknown,
            Some(proof) if proof.user.expires.is_none_or(|expires| expires <= now) => TicketLookup::Expired,
            Some(proof) if latest.is_some_and(|latest| proof.user.expires > Some(latest)) => TicketLookup::TooLong,
            Some(proof) => TicketLookup::Proved(proof.clone()),
        }
    }

    /// Returns the verdict on the ticket of that hash. If the table `is_out_of_date`, only an expired or
    /// too long ticket has a verdict. `record_wrong` counts an unknown ticket.
    pub(super) fn authenticate(
        &self,
        key: Key,
        is_out_of_date: bool,
        record_wrong: impl FnOnce() -> bool,
    ) -> Result<Verdict, ReviewError> {
        let unavailable = |message: &str| Err(ReviewError::new(NoAnswer::Unavailable, message));
        match self.lookup(key, SystemTime::now()) {
            TicketLookup::Proved(_) | TicketLookup::Unknown if is_out_of_date => {
                unavailable("revoked tickets may not be known yet")
            }
            TicketLookup::Proved(proof) => Ok(Verdict::Authenticated(proof.user)),
            TicketLookup::Expired => Ok(Verdict::Rejected(EXPIRED.into())),
            TicketLookup::TooLong => Ok(Verdict::Rejected(TOO_LONG.into())),
            TicketLookup::Unknown => {
                record_wrong();
                Ok(Verdict::Rejected(UNKNOWN.into()))
            }
            TicketLookup::Unlisted => unavailable("the tickets have not been listed yet"),
        }
    }

    /// Returns the number of tickets, those that have expired included, and of invalid entries.
    pub fn counts(&self) -> (usize, usize) {
        let table = self.table.load();
        table
            .as_ref()
            .map_or((0, 0), |table| (table.entries.len(), table.faults))
    }

    /// Returns the number of tables so far: a change means that tickets may have been revoked.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Replaces the tickets by the data of the Secret; no data revokes all of them. Returns the errors of invalid
    /// entries, which are left out.
    pub fn replace(&self, data: &BTreeMap<String, Vec<u8>>) -> Vec<TicketEntryError> {
        let mut entries = HashMap::new();
        let mut faults = Vec::new();
        for (name, value) in data {
            let key = Key::parse(name).ok_or(NOT_A_HASH);
            match key.and_then(|key| Ok((key, TicketIdentity::parse(value)?))) {
                Ok((key, proof)) if entries.len() < MAX_TICKETS => drop(entries.insert(key, proof)),
                Ok(_) => faults.push(TicketEntryError::new(name, "there are more than 16384 tickets")),
                Err(reason) => faults.push(TicketEntryError::new(name, reason)),
            }
        }
        self.table.store(Some(Arc::new(Table {
            entries,
            faults: faults.len(),
        })));
        self.changed.send_modify(|tables| *tables += 1);
        faults
    }
}

/// All watches that revoke access.
#[derive(Debug, Default)]
pub struct Watches {
    /// Watches that were dropped do not count.
    watches: Mutex<Vec<Weak<StaleSince>>>,
}

/// A handle of one watch, which counts until its last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Watch(Arc<StaleSince>);

/// The time since when a watch is out of step; `None` while it is in step.
type StaleSince = Mutex<Option<Instant>>;

impl Watches {
    /// Adds a watch, in step until [`Watch::note`] says otherwise.
    pub(crate) fn add(&self) -> Watch {
        let since = Arc::default();
        let mut watches = self.watches.lock();
        watches.retain(|watch| watch.strong_count() > 0);
        watches.push(Arc::downgrade(&since));
        Watch(since)
    }

    /// Returns whether one of them has been out of step for 5 s or longer.
    pub(in crate::policy::access) fn are_out_of_date(&self) -> bool {
        let watches = self.watches.lock();
        let mut out_of_step = watches
            .iter()
            .filter_map(Weak::upgrade)
            .filter_map(|since| *since.lock());
        out_of_step.any(|since| since.elapsed() >= MAX_OUT_OF_STEP)
    }
}

impl Watch {
    /// Notes whether it is in step.
    pub(crate) fn note(&self, is_in_step: bool) {
        let mut since = self.0.lock();
        *since = (!is_in_step).then(|| since.unwrap_or_else(Instant::now));
    }
}

/// The error of an entry. Prints as `e3b0c442…: it has no user`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct TicketEntryError {
    /// The beginning of its key: enough to find it.
    pub key: Box<str>,
    /// The reason.
    pub reason: &'static str,
}

impl TicketEntryError {
    fn new(name: &str, reason: &'static str) -> Self {
        Self {
            key: crate::base::text::excerpt(name, 8).into(),
            reason,
        }
    }
}

/// A watch that is cut, or an API server that hands over to another one, is back within a second or two.
const MAX_OUT_OF_STEP: Duration = Duration::from_secs(5);
/// The answers to a ticket that proves no user.
pub(super) const UNKNOWN: &str = "the ticket is not known, or was revoked";
pub(super) const EXPIRED: &str = "the ticket has expired";
const TOO_LONG: &str = "the ticket is valid for longer than tickets may be";
/// The error of a key.
const NOT_A_HASH: &str = "its key is no SHA-256 in lower-case hexadecimal digits";
/// The most tickets. A Secret of 1 MiB has room for a quarter of them.
const MAX_TICKETS: usize = 16_384;

#[cfg(test)]
mod tests;
