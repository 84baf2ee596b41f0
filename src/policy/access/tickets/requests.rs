//! The tickets of certificate signing requests: which of them count, where several have one hash.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::entry::Entry;
use super::{Entries, MOST};
use crate::policy::access::user::User;
use crate::protocol::ticket::{Key, TicketTarget};

/// A certificate signing request for a ticket. Its user is what the API server wrote into it, which is as good as what it
/// answers to the review of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The hash of the ticket.
    pub key: Key,
    /// The user that made it.
    pub user: User,
    /// When it was made, by the clock of the API server; to the second.
    pub created: SystemTime,
    /// How long the ticket is to live; `None` is as long as tickets may.
    pub lifetime: Option<Duration>,
    /// The only target, if the ticket is for one.
    pub target: Option<TicketTarget>,
    /// Whether the request was denied: that takes the ticket back.
    pub is_denied: bool,
    /// Its length as JSON, in bytes.
    pub size: usize,
}

/// The requests that there are, by their ids.
#[derive(Debug)]
pub struct Requests {
    /// The longest life of a ticket.
    ttl: Duration,
    /// `None` is one that asks for no ticket that can be.
    known: HashMap<Box<str>, Option<Known>>,
    of_user: HashMap<Box<str>, usize>,
    /// The sum of their lengths.
    bytes: usize,
    /// The number of those that are one too many.
    ignored: usize,
}

#[derive(Debug)]
struct Known {
    request: Request,
    /// Whether an older one had its hash: then it never counts, also behind the end of the older one. Hashes can be read
    /// in the cluster, and a copy would make the logins of the ticket's bearer those of the copy's author.
    is_copy: bool,
}

impl Requests {
    /// None.
    pub fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            known: HashMap::new(),
            of_user: HashMap::new(),
            bytes: 0,
            ignored: 0,
        }
    }

    /// Takes a complete list.
    pub fn list(&mut self, requests: impl IntoIterator<Item = (Box<str>, Option<Request>)>) {
        let before = std::mem::replace(self, Self::new(self.ttl));
        for (id, request) in requests {
            self.add(id, request);
        }
        for (id, was) in before.known {
            if let (Some(was), Some(Some(now))) = (was, self.known.get_mut(&id)) {
                now.is_copy = was.is_copy;
            }
        }
    }

    /// Takes one that is new or has changed.
    pub fn add(&mut self, id: Box<str>, request: Option<Request>) {
        let was_copy = self.remove(&id);
        let (name, size) = match &request {
            Some(request) => (request.user.name.clone(), request.size),
            None => (Box::default(), id.len()),
        };
        let of_user = self.of_user.get(&name).copied().unwrap_or_default();
        let most = if request.is_some() { MOST_OF_ONE } else { MOST_MALFORMED };
        let is_one_too_many = of_user >= most;
        if is_one_too_many || self.known.len() >= MOST_KNOWN || self.bytes + size > MOST_BYTES {
            self.ignored += 1;
            return;
        }
        self.of_user.insert(name, of_user + 1);
        self.bytes += size;
        let known = request.map(|request| Known {
            request,
            is_copy: was_copy,
        });
        self.known.insert(id, known);
    }

    /// Forgets one that was deleted. Whether it was a copy.
    pub fn remove(&mut self, id: &str) -> bool {
        let Some((id, known)) = self.known.remove_entry(id) else {
            return false;
        };
        let name = known
            .as_ref()
            .map(|known| &*known.request.user.name)
            .unwrap_or_default();
        if let Some(count) = self.of_user.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                self.of_user.remove(name);
            }
        }
        self.bytes -= known.as_ref().map_or(id.len(), |known| known.request.size);
        known.is_some_and(|known| known.is_copy)
    }

    /// The tickets, and the number of requests that are none. The oldest request with a hash counts. Where two users' have
    /// it within one second, neither does: which of them is the copy is not known.
    pub(super) fn entries(&mut self, now: SystemTime) -> (Entries, usize) {
        let mut known: Vec<(&str, &mut Known)> = self
            .known
            .iter_mut()
            .filter_map(|(id, known)| Some((&**id, known.as_mut()?)))
            .collect();
        known.sort_by(|(one, first), (two, second)| {
            let order = |known: &Known| (known.request.key, known.request.created);
            order(first).cmp(&order(second)).then_with(|| one.cmp(two))
        });
        for same in known.chunk_by_mut(|(_, one), (_, two)| one.request.key == two.request.key) {
            mark_copies(same);
        }
        let ttl = self.ttl;
        let mut tickets: Vec<_> = known
            .iter()
            .filter(|(_, known)| !known.is_copy && !known.request.is_denied)
            .map(|(_, known)| (known.request.key, entry(&known.request, ttl)))
            .collect();
        // Those that have expired are only told so: they take no place from others.
        tickets.sort_by_key(|(_, entry)| (entry.expires <= now, entry.expires));
        tickets.truncate(MOST);
        let entries: Entries = tickets.into_iter().map(|(key, entry)| (key, Arc::new(entry))).collect();
        let faults = self.known.len() + self.ignored - entries.len();
        (entries, faults)
    }
}

/// Marks all but the oldest one of those with one hash.
fn mark_copies(same: &mut [(&str, &mut Known)]) {
    let [(_, oldest), rest @ ..] = same else {
        return;
    };
    for (_, other) in rest {
        let is_tie = other.request.created == oldest.request.created;
        if is_tie && other.request.user.name != oldest.request.user.name {
            oldest.is_copy = true;
        }
        other.is_copy = true;
    }
}

fn entry(request: &Request, ttl: Duration) -> Entry {
    let lifetime = request.lifetime.map_or(ttl, |own| own.min(ttl));
    let expires = request.created.checked_add(lifetime).unwrap_or(request.created);
    Entry {
        user: Arc::new(User {
            expires: Some(expires),
            ..request.user.clone()
        }),
        expires,
        target: request.target.clone(),
    }
}

/// Requests of one user that are looked at: a user takes no place from others.
const MOST_OF_ONE: usize = 256;
/// Requests that ask for no ticket that can be, and are counted.
const MOST_MALFORMED: usize = 1024;
/// Requests that are kept, and their length in all. What is beyond is no ticket.
const MOST_KNOWN: usize = 4 * MOST;
const MOST_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::policy::access::test_support::user;
    use crate::policy::access::tickets::Minted;

    const TTL: Duration = Duration::from_hours(12);

    fn at(second: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_800_000_000 + second)
    }

    fn request(key: Key, name: &str, second: u64) -> Option<Request> {
        Some(Request {
            key,
            user: user(name),
            created: at(second),
            lifetime: None,
            target: None,
            is_denied: false,
            size: 1000,
        })
    }

    /// The users of the tickets.
    fn users(requests: &mut Requests) -> Vec<String> {
        let (entries, _) = requests.entries(at(100));
        let mut users: Vec<_> = entries.values().map(|entry| entry.user.name.to_string()).collect();
        users.sort();
        users
    }

    #[test]
    fn the_oldest_request_of_a_hash_counts_and_a_copy_never_does() {
        let key = Minted::new().unwrap().key;
        let mut requests = Requests::new(TTL);
        requests.add("2".into(), request(key, "mallory", 5));
        requests.add("1".into(), request(key, "alice", 4));
        assert_eq!(users(&mut requests), ["alice"]);
        assert_eq!(requests.entries(at(100)).1, 1);
        // After its end the ticket proves no user.
        requests.remove("1");
        assert_eq!(users(&mut requests), [] as [&str; 0]);
        requests.list([("2".into(), request(key, "mallory", 5))]);
        assert_eq!(users(&mut requests), [] as [&str; 0]);
        requests.add("2".into(), request(key, "mallory", 5));
        assert_eq!(users(&mut requests), [] as [&str; 0]);
        // An expired one keeps its hash as well.
        let key = Minted::new().unwrap().key;
        requests.list([
            ("1".into(), request(key, "alice", 4)),
            ("2".into(), request(key, "mallory", 5)),
        ]);
        let (entries, _) = requests.entries(at(50_000));
        assert_eq!(&*entries[&key].user.name, "alice");
        assert!(entries[&key].expires < at(50_000));
    }

    #[test]
    fn of_two_users_requests_within_a_second_neither_counts() {
        let (tie, own) = (Minted::new().unwrap().key, Minted::new().unwrap().key);
        let mut requests = Requests::new(TTL);
        requests.add("a".into(), request(tie, "mallory", 5));
        requests.add("b".into(), request(tie, "alice", 5));
        // A client that has repeated its request is no attack.
        requests.add("c".into(), request(own, "bob", 5));
        requests.add("d".into(), request(own, "bob", 5));
        assert_eq!(users(&mut requests), ["bob"]);
    }

    #[test]
    fn a_ticket_lives_as_long_as_it_says_and_no_longer_than_tickets_may() {
        let hour = Duration::from_hours(1);
        for (lifetime, lives) in [(None, TTL), (Some(hour), hour), (Some(TTL * 9), TTL)] {
            let key = Minted::new().unwrap().key;
            let mut requests = Requests::new(TTL);
            let asked = request(key, "alice", 0).map(|own| Request { lifetime, ..own });
            requests.add("1".into(), asked);
            let (entries, _) = requests.entries(at(0));
            assert_eq!(entries[&key].expires, at(0) + lives);
            assert_eq!(entries[&key].user.expires, Some(at(0) + lives));
            // The groups stay as the API server wrote them.
            assert_eq!(entries[&key].user.groups, user("alice").groups);
        }
    }

    #[test]
    fn a_denied_request_is_no_ticket_and_neither_is_one_that_cannot_be_read() {
        let key = Minted::new().unwrap().key;
        let mut requests = Requests::new(TTL);
        requests.add("1".into(), request(key, "alice", 0));
        requests.add("2".into(), None);
        assert_eq!((users(&mut requests).len(), requests.entries(at(0)).1), (1, 1));
        let denied = request(key, "alice", 0).map(|own| Request { is_denied: true, ..own });
        requests.add("1".into(), denied);
        assert_eq!((users(&mut requests).len(), requests.entries(at(0)).1), (0, 2));
    }

    #[test]
    fn a_flood_of_one_user_takes_no_place_from_others_and_all_is_bounded() {
        let mut requests = Requests::new(TTL);
        let keys: Vec<_> = (0..MOST_OF_ONE + 10).map(|_| Minted::new().unwrap().key).collect();
        for (index, key) in keys.iter().enumerate() {
            requests.add(format!("m{index}").into(), request(*key, "mallory", 0));
        }
        requests.add("a".into(), request(Minted::new().unwrap().key, "alice", 9));
        let (entries, faults) = requests.entries(at(100));
        assert_eq!((entries.len(), faults), (MOST_OF_ONE + 1, 10));
        // Of many users.
        for index in 0..MOST_KNOWN {
            let own = request(Minted::new().unwrap().key, &format!("u{index}"), 1);
            requests.add(format!("u{index}").into(), own);
        }
        assert_eq!(requests.entries(at(100)).0.len(), MOST);
        assert_eq!(requests.known.len(), MOST_KNOWN.min(requests.bytes / 1000));
        let ids: Vec<_> = requests.known.keys().cloned().collect();
        for id in ids {
            requests.remove(&id);
        }
        assert_eq!((requests.bytes, requests.of_user.len()), (0, 0));
        let large = request(keys[0], "alice", 0).map(|own| Request {
            size: MOST_BYTES + 1,
            ..own
        });
        requests.add("large".into(), large);
        assert!(requests.known.is_empty());
    }
}
