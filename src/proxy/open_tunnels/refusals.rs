//! The refusals of the process: counts by reason, and those of the past hour.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::events::RefusedRequest;
use super::open_tunnel::Start;
use super::past::{Entry, Listing, PastHour, bytes_of_target};
use crate::proxy::record::RequestInfo;
use crate::tunnel::limits::owners::network;
use crate::tunnel::outcome::{Outcome, RefusalReason};

/// Refusals that are equal in all but their times and ids.
#[derive(Clone, Debug)]
pub struct RefusalEntry {
    /// The last one.
    pub request: RefusedRequest,
    /// When the first one was.
    pub first: Start,
    last: Instant,
    /// How many there were.
    pub count: u64,
    /// Further refusals of the client's network, for which there was no entry.
    pub others: u64,
}

impl RefusalEntry {
    fn new(info: &RequestInfo, outcome: Outcome) -> Self {
        let first = Start::now();
        Self {
            request: RefusedRequest::new(info, outcome),
            first,
            last: first.established,
            count: 1,
            others: 0,
        }
    }

    fn is_like(&self, info: &RequestInfo, outcome: Outcome) -> bool {
        let request = &self.request;
        request.outcome == outcome
            && request.authority == info.authority
            && *request.user == *info.user_name()
            && request.claimed == info.claimed
    }
}

impl Entry for RefusalEntry {
    fn age(&self) -> Duration {
        self.last.elapsed()
    }

    fn time(&self) -> SystemTime {
        self.first.to_system_time(self.last)
    }

    fn bytes(&self) -> usize {
        let RefusedRequest { user, claimed, why, .. } = &self.request;
        let host = self
            .request
            .authority
            .as_ref()
            .map_or(0, |authority| authority.host().len());
        let claimed = claimed.as_ref().map_or(0, |claimed| claimed.len());
        let target = bytes_of_target(self.request.target.as_ref());
        size_of::<Self>() + user.len() + claimed + why.len() + host + target
    }
}

/// The refusals of a process.
#[derive(Debug)]
pub struct Refusals {
    /// Those since its start by reason, as in the access log, and the time of the last one.
    counts: Mutex<BTreeMap<&'static str, (u64, SystemTime)>>,
    /// Those of authenticated users, and those of others: strangers cannot displace the refusals of users.
    past: Mutex<[PastHour<RefusalEntry>; 2]>,
}

impl Default for Refusals {
    fn default() -> Self {
        Self {
            counts: Mutex::default(),
            past: Mutex::new([MAX_BYTES; 2].map(PastHour::new)),
        }
    }
}

impl Refusals {
    /// Counts a refusal, and lists it. Port probes are only counted: they would displace the rest.
    pub(crate) fn note(&self, info: &RequestInfo, outcome: Outcome) {
        let now = SystemTime::now();
        let mut counts = self.counts.lock();
        let (count, last) = counts.entry(outcome.reason()).or_insert((0, now));
        (*count, *last) = (*count + 1, now);
        drop(counts);
        if outcome != Outcome::Refused(RefusalReason::PortProbe) {
            let [users, others] = &mut *self.past.lock();
            let past = if info.user.is_some() { users } else { others };
            add(past, info, outcome);
        }
    }

    /// Drops those of more than an hour ago.
    pub(super) fn expire(&self) {
        self.past.lock().iter_mut().for_each(PastHour::expire);
    }

    /// Returns the counts by reason, and the time of the last refusal.
    pub fn counts(&self) -> BTreeMap<&'static str, (u64, SystemTime)> {
        self.counts.lock().clone()
    }

    /// Returns those of the last hour, in no order.
    pub fn list(&self) -> Listing<RefusalEntry> {
        let [mut users, others] = self.past.lock().each_mut().map(PastHour::list);
        users.entries.extend(others.entries);
        users.complete_since = users.complete_since.max(others.complete_since);
        users
    }
}

/// Adds a refusal to an equal one, or as an entry of its own. A network gets [`MAX_OF_NETWORK`] entries of the last
/// [`LATEST`]: names that a stranger makes up would displace all others.
fn add(past: &mut PastHour<RefusalEntry>, info: &RequestInfo, outcome: Outcome) {
    let own = network(info.client.ip());
    let mut entries = 0;
    let mut newest = None;
    for entry in past.latest(LATEST).filter(|entry| network(entry.request.client) == own) {
        if entry.is_like(info, outcome) {
            let entry = Arc::make_mut(entry);
            (entry.request.id, entry.request.client) = (info.id, info.client.ip());
            (entry.last, entry.count) = (Instant::now(), entry.count + 1);
            return;
        }
        entries += 1;
        newest.get_or_insert(entry);
    }
    match newest {
        Some(newest) if entries >= MAX_OF_NETWORK => Arc::make_mut(newest).others += 1,
        _ => past.push(RefusalEntry::new(info, outcome)),
    }
}

/// Bytes of the refusals of users, and again of those of others.
const MAX_BYTES: usize = 280 << 10;
/// The entries among which an equal one is searched: some 0.2 µs for each refusal.
const LATEST: usize = 128;
const MAX_OF_NETWORK: usize = LATEST / 4;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::policy::access::{Method, User};
    use crate::proxy::record::Ids;

    fn user(name: &str) -> Arc<User> {
        Arc::new(User {
            name: name.into(),
            uid: None,
            groups: Vec::new(),
            extra: BTreeMap::new(),
            method: Method::Ticket,
            expires: None,
        })
    }

    fn info(client: &str, authority: &str) -> RequestInfo {
        let address = SocketAddr::new(client.parse().unwrap(), 1);
        let mut info = RequestInfo::new(Ids::default().next(), [address; 2], Instant::now());
        info.authority = authority.parse().ok();
        info
    }

    const NOT_ALLOWED: Outcome = Outcome::Refused(RefusalReason::NotAllowed);

    /// Returns the entries as client, name, count and others.
    fn listed(refusals: &Refusals) -> Vec<(String, String, u64, u64)> {
        let entries = refusals.list().entries;
        let row = |entry: &Arc<RefusalEntry>| {
            let RefusedRequest { client, authority, .. } = &entry.request;
            let name = authority.as_ref().map(ToString::to_string).unwrap_or_default();
            (client.to_string(), name, entry.count, entry.others)
        };
        entries.iter().map(row).collect()
    }

    #[test]
    fn equal_refusals_are_one_entry_however_they_interleave() {
        let refusals = Refusals::default();
        for _ in 0..1000 {
            for (client, name) in [("192.0.2.1", "a:22"), ("192.0.2.2", "a:22"), ("192.0.2.1", "b:22")] {
                refusals.note(&info(client, name), NOT_ALLOWED);
            }
            refusals.note(&info("192.0.2.1", ""), Outcome::Refused(RefusalReason::PortProbe));
        }
        let row = |client: &str, name: &str| (client.to_owned(), name.to_owned(), 1000, 0);
        let expected = [
            row("192.0.2.1", "a:22"),
            row("192.0.2.2", "a:22"),
            row("192.0.2.1", "b:22"),
        ];
        assert_eq!(listed(&refusals), expected);
        assert_eq!(refusals.counts()["port_probe"].0, 1000);
    }

    #[test]
    fn a_stranger_with_made_up_names_displaces_neither_other_clients_nor_users() {
        let refusals = Refusals::default();
        let since = refusals.list().complete_since;
        refusals.note(&info("192.0.2.9", "devbox:22"), NOT_ALLOWED);
        let mut of_user = info("192.0.2.8", "devbox:22");
        of_user.user = Some(user("alice"));
        refusals.note(&of_user, NOT_ALLOWED);
        for number in 0..10_000 {
            refusals.note(
                &info(&format!("2001:db8::{number:x}"), &format!("n{number}:22")),
                NOT_ALLOWED,
            );
        }
        let rows = listed(&refusals);
        assert_eq!(rows.len(), 2 + MAX_OF_NETWORK);
        assert_eq!(
            rows.iter().map(|(.., count, others)| count + others).sum::<u64>(),
            10_002
        );
        assert_eq!(refusals.list().complete_since, since);
        // Of many networks at once: users stay, and the list says since when it is complete.
        for number in 0..10_000_u32 {
            let address = std::net::Ipv4Addr::from_bits(number).to_string();
            refusals.note(&info(&address, "x:22"), NOT_ALLOWED);
        }
        let list = refusals.list();
        assert!(list.complete_since > since && list.entries.len() <= 1001);
        assert_eq!(listed(&refusals)[0].0, "192.0.2.8");
    }

    #[test]
    fn the_entries_of_a_process_take_less_than_a_mebibyte() {
        let long = |number: usize| {
            let name = format!("{}:22", vec!["x".repeat(63); 3].join("."));
            let mut info = info(&format!("2001:db8:0:{number:x}::1"), &name);
            info.authorization = Some("é".repeat(2000).into());
            info
        };
        let refusals = Refusals::default();
        for number in 0..3000 {
            let mut info = long(number);
            info.user = number.is_multiple_of(2).then(|| user(&"é".repeat(2000)));
            refusals.note(&info, NOT_ALLOWED);
        }
        let bytes: usize = refusals.list().entries.iter().map(|entry| entry.bytes()).sum();
        assert!((MAX_BYTES..2 * MAX_BYTES).contains(&bytes), "{bytes}");
    }
}
