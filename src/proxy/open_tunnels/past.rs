//! The past hour, for operators who come after an incident: lists bounded in age, number and memory, and the tunnels that
//! have ended.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::open_tunnel::{OpenTunnel, Start};
use crate::policy::allowlist::TargetId;
use crate::proxy::record::Id;
use crate::tunnel::direction::Both;
use crate::tunnel::outcome::Close;

/// An entry of a list of the past hour.
pub trait Entry {
    /// Returns how long ago its last event was.
    fn age(&self) -> Duration;
    /// Returns the time of its last event.
    fn time(&self) -> SystemTime;
    /// Returns the bytes of memory that it takes.
    fn bytes(&self) -> usize;
}

/// The latest entries of one hour, the latest last: at most [`MAX_ENTRIES`], and so many bytes.
#[derive(Debug)]
pub(super) struct PastHour<T> {
    entries: VecDeque<Arc<T>>,
    bytes: usize,
    max_bytes: usize,
    complete_since: SystemTime,
}

/// The entries of the past hour, and since when none is missing.
#[derive(Debug)]
pub struct Listing<T> {
    /// The entries.
    pub entries: Vec<Arc<T>>,
    /// The time from which on every event is in the entries.
    pub complete_since: SystemTime,
}

impl<T: Entry> PastHour<T> {
    /// Creates an empty list that takes at most `max_bytes`.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
            max_bytes,
            complete_since: SystemTime::now(),
        }
    }

    /// Adds an entry. Beyond a bound the oldest are dropped.
    pub(super) fn push(&mut self, entry: T) {
        self.bytes += entry.bytes();
        self.entries.push_back(Arc::new(entry));
        while self.entries.len() > MAX_ENTRIES || self.bytes > self.max_bytes {
            let Some(oldest) = self.entries.pop_front() else { break };
            self.bytes -= oldest.bytes();
            self.complete_since = self.complete_since.max(oldest.time());
        }
    }

    /// Returns the last `count` entries, the latest first.
    pub(super) fn latest(&mut self, count: usize) -> impl Iterator<Item = &mut Arc<T>> {
        self.entries.iter_mut().rev().take(count)
    }

    /// Drops the entries of more than an hour ago.
    pub(super) fn expire(&mut self) {
        let bytes = &mut self.bytes;
        self.entries.retain(|entry| {
            let is_recent = entry.age() < HOUR;
            if !is_recent {
                *bytes -= entry.bytes();
            }
            is_recent
        });
    }

    /// Returns the entries of the last hour.
    pub(super) fn list(&mut self) -> Listing<T> {
        self.expire();
        Listing {
            entries: self.entries.iter().cloned().collect(),
            complete_since: self.complete_since.max(SystemTime::now() - HOUR),
        }
    }
}

/// Returns the beginning of a text, for an entry.
pub(super) fn beginning(text: &str, max_characters: usize) -> Box<str> {
    text.chars().take(max_characters).collect()
}

/// A tunnel that has ended.
#[derive(Debug)]
pub struct EndedTunnel {
    /// Its id.
    pub id: Id,
    /// The client.
    pub client: IpAddr,
    /// The beginning of the user's name; empty if there is none.
    pub user: Box<str>,
    /// The target.
    pub target: Option<TargetId>,
    /// The node of the target's address; empty if it is not known.
    pub node: Box<str>,
    /// True if the session in it could go on in another tunnel.
    pub is_resumable: bool,
    /// When it was established.
    pub start: Start,
    /// When it ended.
    pub end: Instant,
    /// The bytes that it has relayed.
    pub bytes: Both<u64>,
    /// Its end.
    pub close: Close,
    /// The reason of the operator that has ended it; empty if none has.
    pub operator: Box<str>,
}

impl EndedTunnel {
    fn new(tunnel: &OpenTunnel, close: Close) -> Self {
        let info = &tunnel.info;
        Self {
            id: info.id,
            client: info.client.ip(),
            user: beginning(info.user_name(), MAX_NAME),
            target: info.target.as_ref().map(|target| target.id().clone()),
            node: info.node.clone(),
            is_resumable: tunnel.guard.is_resumable(),
            start: tunnel.start,
            end: Instant::now(),
            bytes: Both::from_fn(|direction| tunnel.meter.bytes(direction)),
            close,
            operator: tunnel.close_reason().unwrap_or_default().into(),
        }
    }
}

impl Entry for EndedTunnel {
    fn age(&self) -> Duration {
        self.end.elapsed()
    }

    fn time(&self) -> SystemTime {
        self.start.to_system_time(self.end)
    }

    fn bytes(&self) -> usize {
        let texts = self.user.len() + self.node.len() + self.operator.len();
        size_of::<Self>() + texts + bytes_of_target(self.target.as_ref())
    }
}

/// Returns the bytes of the names of a target.
pub(super) fn bytes_of_target(target: Option<&TargetId>) -> usize {
    target.map_or(0, |id| id.namespace.len() + id.service.len())
}

/// The tunnels that have ended in the last hour.
#[derive(Debug)]
pub struct EndedTunnels(Mutex<PastHour<EndedTunnel>>);

impl Default for EndedTunnels {
    fn default() -> Self {
        Self(Mutex::new(PastHour::new(MAX_BYTES)))
    }
}

impl EndedTunnels {
    /// Notes the end of a tunnel.
    pub(super) fn note(&self, tunnel: &OpenTunnel, close: Close) {
        // Built before the lock, which the ends of all tunnels share.
        let ended = EndedTunnel::new(tunnel, close);
        self.0.lock().push(ended);
    }

    /// Drops those that ended more than an hour ago.
    pub(super) fn expire(&self) {
        self.0.lock().expire();
    }

    /// Returns them, the latest last.
    pub fn list(&self) -> Listing<EndedTunnel> {
        self.0.lock().list()
    }
}

const HOUR: Duration = Duration::from_hours(1);
/// The maximum number of entries of one list.
const MAX_ENTRIES: usize = 1000;
/// Bytes of ended tunnels: with those of [refusals](super::refusals) less than 1 MiB.
const MAX_BYTES: usize = 400 << 10;
/// Characters of a user's name.
pub(super) const MAX_NAME: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    struct Sized(Start, usize);

    impl Entry for Sized {
        fn age(&self) -> Duration {
            self.0.established.elapsed()
        }

        fn time(&self) -> SystemTime {
            self.0.started
        }

        fn bytes(&self) -> usize {
            self.1
        }
    }

    fn sizes(past: &mut PastHour<Sized>) -> Vec<usize> {
        past.list().entries.iter().map(|entry| entry.1).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn entries_are_of_an_hour_and_bounded_in_number_and_memory() {
        let mut past = PastHour::new(10_000);
        let since = past.list().complete_since;
        past.push(Sized(Start::now(), 7000));
        tokio::time::advance(HOUR / 2).await;
        past.push(Sized(Start::now(), 3000));
        assert_eq!(sizes(&mut past), [7000, 3000]);
        assert_eq!(past.list().complete_since, since);
        tokio::time::advance(HOUR / 2).await;
        assert_eq!((sizes(&mut past), past.bytes), (vec![3000], 3000));
        let dropped = Start::now();
        past.push(Sized(dropped, 6000));
        past.push(Sized(Start::now(), 5000));
        assert_eq!((sizes(&mut past), past.bytes), (vec![5000], 5000));
        assert_eq!(past.list().complete_since, dropped.started);
        for _ in 0..MAX_ENTRIES + 5 {
            past.push(Sized(Start::now(), 1));
        }
        assert_eq!((sizes(&mut past), past.bytes), (vec![1; MAX_ENTRIES], MAX_ENTRIES));
        past.push(Sized(Start::now(), 10_001));
        assert_eq!((sizes(&mut past), past.bytes), (vec![], 0));
    }
}
