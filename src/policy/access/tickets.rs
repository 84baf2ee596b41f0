//! Tickets: 26 letters in place of a token, for clients that cannot carry one. Only their hashes are kept.
//!
//! They come from two lists: a Secret that operators write, and certificate signing requests, whose user the API server
//! itself has named. Each list stays as it was while its watch fails, and no ticket outlives its expiry.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::watch;

use self::entry::Entry;
pub use self::requests::{Request, Requests};
use super::reviewer::{Unavailable, Verdict};
use super::token::SKEW;
use super::user::User;
use crate::policy::allowlist::TargetId;
pub use crate::protocol::ticket::{Key, Minted, SECRET_TYPE, SIGNER, Ticket, TicketTarget, data_of, expiry_of};

pub(crate) mod check;
mod entry;
mod requests;
pub(crate) mod watches;

/// The tickets in force, by their hashes.
#[derive(Debug)]
pub struct Tickets {
    /// The longest life.
    ttl: Duration,
    table: ArcSwap<Table>,
    lists: Mutex<Lists>,
    /// The number of tables so far.
    changed: watch::Sender<u64>,
}

type Entries = HashMap<Key, Arc<Entry>>;

#[derive(Debug, Default)]
struct Table {
    entries: Entries,
    /// Whether both lists were read; before that a missing hash proves nothing.
    is_complete: bool,
}

#[derive(Debug, Default)]
struct Lists {
    secret: Option<List>,
    requests: Option<List>,
    /// The ids of users that were deleted and still have tickets.
    gone: HashSet<Box<str>>,
}

#[derive(Debug, Default)]
struct List {
    entries: Entries,
    /// The number of entries that are no tickets.
    faults: usize,
}

/// What is known of a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judged {
    /// It is in force.
    Proved(Proof),
    /// It was, and its time is over.
    Expired,
    /// It has longer to live than tickets may.
    TooLong,
    /// There is none with this hash.
    Unknown,
    /// There is none with this hash in what has been listed so far.
    Unlisted,
}

/// What a ticket proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The user.
    pub user: Arc<User>,
    /// The only target that it opens, if it is for one. It gives no right to it.
    pub target: Option<TicketTarget>,
}

impl Proof {
    /// Whether the ticket is for that target. It is the one that is dialled, by whatever name it was asked for.
    pub fn opens(&self, target: &TargetId) -> bool {
        self.target.as_ref().is_none_or(|own| is_for(own, target))
    }
}

/// Whether a ticket's target is this one.
fn is_for(own: &TicketTarget, target: &TargetId) -> bool {
    match target.is_static() {
        true => own.is_static(&target.service),
        false => own.is_service(&target.service, &target.namespace),
    }
}

/// The numbers of entries, by the labels `source` and `state`.
pub type Counts = [(&'static str, &'static str, usize); 4];

/// Those without tickets.
pub(super) const NO_TICKETS: Counts = [
    ("secret", "valid", 0),
    ("secret", "invalid", 0),
    ("request", "valid", 0),
    ("request", "invalid", 0),
];

impl Tickets {
    /// No tickets, and neither list. Tickets that expire more than `ttl` from now are refused.
    pub fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            table: ArcSwap::default(),
            lists: Mutex::default(),
            changed: watch::Sender::new(0),
        }
    }

    /// Judges the ticket of that hash.
    ///
    /// It is found by its hash in a map. The time that this takes depends on the hash of what the client has sent, and says
    /// nothing of the tickets that there are.
    pub fn judge(&self, key: Key, now: SystemTime) -> Judged {
        let table = self.table.load();
        match table.entries.get(&key) {
            None if table.is_complete => Judged::Unknown,
            None => Judged::Unlisted,
            Some(entry) if entry.expires <= now => Judged::Expired,
            Some(entry) if self.lasts_too_long(entry.expires, now) => Judged::TooLong,
            Some(entry) => Judged::Proved(Proof {
                user: Arc::clone(&entry.user),
                target: entry.target.clone(),
            }),
        }
    }

    /// By more than what clocks differ by.
    fn lasts_too_long(&self, expires: SystemTime, now: SystemTime) -> bool {
        let latest = now.checked_add(self.ttl).and_then(|latest| latest.checked_add(SKEW));
        latest.is_some_and(|latest| expires > latest)
    }

    /// The verdict on the ticket of that hash. Where the table `is_late`, it may be out of date, and only a no counts that
    /// stays one. `record_wrong` counts a ticket that there is not.
    pub(super) fn verdict(
        &self,
        key: Key,
        is_late: bool,
        record_wrong: impl FnOnce() -> bool,
    ) -> Result<Verdict, Unavailable> {
        match self.judge(key, SystemTime::now()) {
            Judged::Proved(_) | Judged::Unknown if is_late => Err(Unavailable {
                kind: "tickets",
                message: "what was taken back may not be known yet".into(),
            }),
            Judged::Proved(proof) => Ok(Verdict::Proved(proof.user)),
            Judged::Expired => Ok(Verdict::Refused(EXPIRED.into())),
            Judged::TooLong => Ok(Verdict::Refused(TOO_LONG.into())),
            Judged::Unknown => {
                record_wrong();
                Ok(Verdict::Refused(UNKNOWN.into()))
            }
            Judged::Unlisted => Err(Unavailable {
                kind: "tickets",
                message: "the tickets have not been listed yet".into(),
            }),
        }
    }

    /// The numbers of entries that are tickets, those that have expired included, and of those that are none.
    pub fn counts(&self) -> Counts {
        let lists = self.lists.lock();
        let of = |list: &Option<List>| list.as_ref().map_or((0, 0), |list| (list.entries.len(), list.faults));
        let ((secret, bad_secret), (requests, bad_requests)) = (of(&lists.secret), of(&lists.requests));
        [
            ("secret", "valid", secret),
            ("secret", "invalid", bad_secret),
            ("request", "valid", requests),
            ("request", "invalid", bad_requests),
        ]
    }

    /// Counts the tables that were put in force: a change says that tickets may have been taken back.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Puts the data of the Secret in force, in place of what it had before; no data takes all of its tickets back. An
    /// entry that cannot be read is no ticket, and the others count.
    pub fn replace(&self, data: &BTreeMap<String, Vec<u8>>) -> Vec<TicketFault> {
        let mut entries = Entries::new();
        let mut faults = Vec::new();
        for (name, value) in data {
            match Key::parse(name)
                .ok_or(entry::NOT_A_HASH)
                .and_then(|key| Ok((key, Entry::parse(value)?)))
            {
                Ok((key, entry)) if entries.len() < MOST => drop(entries.insert(key, Arc::new(entry))),
                Ok(_) => faults.push(TicketFault::new(name, "there are more than 16384 tickets")),
                Err(reason) => faults.push(TicketFault::new(name, reason)),
            }
        }
        let list = List {
            entries,
            faults: faults.len(),
        };
        self.put(|lists| lists.secret = Some(list));
        faults
    }

    /// Puts the tickets of the requests in force, in place of those that they were before.
    pub fn replace_requests(&self, requests: &mut Requests) {
        let (entries, faults) = requests.entries(SystemTime::now());
        self.put(|lists| lists.requests = Some(List { entries, faults }));
    }

    /// The user of this id was deleted: its tickets are taken back.
    pub(super) fn user_gone(&self, id: &str) {
        self.put(|lists| {
            lists.gone.insert(id.into());
        });
    }

    /// Changes the lists, and makes a new table of them.
    fn put(&self, change: impl FnOnce(&mut Lists)) {
        let mut lists = self.lists.lock();
        change(&mut lists);
        let Lists { secret, requests, gone } = &mut *lists;
        let uid = |entry: &Entry| entry.user.uid.clone();
        let own = requests.as_ref().map(|list| &list.entries);
        let known: HashSet<_> = own
            .iter()
            .flat_map(|own| own.values())
            .filter_map(|own| uid(own))
            .collect();
        gone.retain(|id| known.contains(id));
        let is_there = |entry: &Entry| entry.user.uid.as_ref().is_none_or(|id| !gone.contains(id));
        let mut entries: Entries = own
            .into_iter()
            .flatten()
            .filter(|(_, entry)| is_there(entry))
            .map(|(key, entry)| (*key, Arc::clone(entry)))
            .collect();
        // A Secret entry takes precedence over a CSR with the same hash: hashes can be read, and a CSR is its author's.
        let written = secret.iter().flat_map(|list| &list.entries);
        entries.extend(written.map(|(key, entry)| (*key, Arc::clone(entry))));
        let is_complete = secret.is_some() && requests.is_some();
        self.table.store(Arc::new(Table { entries, is_complete }));
        drop(lists);
        self.changed.send_modify(|tables| *tables += 1);
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
            key: crate::base::text::excerpt(name, 8).into(),
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

/// The answers to a ticket that proves no user.
pub(super) const UNKNOWN: &str = "the ticket is not known, or was taken back";
pub(super) const EXPIRED: &str = "the ticket has expired";
const TOO_LONG: &str = "the ticket is valid for longer than tickets may be";
/// The tickets of a list. A Secret of 1 MiB has room for a quarter of them.
const MOST: usize = 16_384;

#[cfg(test)]
mod tests;
