//! Bounds the connections whose request is not complete, or that were refused and are still open. Beyond the bound, one
//! is evicted: first those that are refused anyway, then the oldest.
//!
//! The newest is not refused instead: a few hundred connections that trickle their bytes would keep all others out. An
//! honest client's request is complete after a round trip, so the oldest is the least likely to be an honest client's.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The unfinished connections of the process, or of one client.
#[derive(Debug)]
pub struct UnfinishedSet {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` for any number.
    max: Option<NonZeroU32>,
    /// The connections in the order of eviction, each with its notification.
    waiting: BTreeMap<EvictionKey, Arc<Notify>>,
}

/// A connection's position in the order of evictions: by its class, then by its age. A request keeps its number until
/// it is answered and closed, so that further bytes do not make it younger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EvictionKey {
    /// The eviction class of the connection.
    pub class: EvictionClass,
    /// The number of the connection, request or idle wait, drawn at its beginning: the lowest number is the oldest.
    pub number: u64,
}

/// The outcome that a connection waits for, in the order of eviction. A connection never evicts one of a later class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvictionClass {
    /// It has been refused, and may still read the answer.
    Refused,
    /// It will be refused once its protocol is known: for the connect rate, or because its certificate is no longer valid.
    ToBeRefused,
    /// It may yet become a login over SSH, once the client has done its part of the key exchange.
    KeyExchange,
    /// It may yet become a tunnel.
    Eligible,
}

impl UnfinishedSet {
    /// Creates an empty set that holds at most `max` connections; `None` for any number.
    pub fn new(max: Option<NonZeroU32>) -> Self {
        let state = State {
            max,
            waiting: BTreeMap::new(),
        };
        Self {
            state: Mutex::new(state),
        }
    }

    /// Changes the bound, and evicts the connections that exceed it.
    pub fn set(&self, max: Option<NonZeroU32>) {
        let mut state = self.state.lock();
        state.max = max;
        state.evict();
    }

    /// Returns the number of connections in the set.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().waiting.len()
    }
}

impl State {
    fn evict(&mut self) {
        let Some(max) = self.max else { return };
        while self.waiting.len() > usize::try_from(max.get()).unwrap_or(usize::MAX) {
            let Some((_, lowest)) = self.waiting.pop_first() else {
                return;
            };
            lowest.notify_one();
        }
    }
}

/// A connection's membership in several sets; dropping it leaves them.
#[derive(Debug)]
#[must_use = "dropping it leaves the sets"]
pub struct UnfinishedGuard<'a> {
    sets: [Option<&'a UnfinishedSet>; 2],
    key: EvictionKey,
    eviction: Arc<Notify>,
}

impl<'a> UnfinishedGuard<'a> {
    /// Joins the sets. Each of them that is full evicts the first connection in the order, which may be this one.
    pub fn join(sets: [Option<&'a UnfinishedSet>; 2], key: EvictionKey) -> Self {
        let eviction = Arc::new(Notify::new());
        for set in sets.iter().flatten() {
            let mut state = set.state.lock();
            state.waiting.insert(key, Arc::clone(&eviction));
            state.evict();
        }
        Self { sets, key, eviction }
    }

    /// Completes, once, when one of the sets has evicted this connection.
    pub async fn evicted(&self) {
        self.eviction.notified().await;
    }
}

impl Drop for UnfinishedGuard<'_> {
    fn drop(&mut self) {
        for set in self.sets.iter().flatten() {
            set.state.lock().waiting.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    fn welcome(number: u64) -> EvictionKey {
        let class = EvictionClass::Eligible;
        EvictionKey { class, number }
    }

    fn join(set: &UnfinishedSet, number: u64) -> UnfinishedGuard<'_> {
        UnfinishedGuard::join([Some(set), None], welcome(number))
    }

    fn is_evicted(guard: &UnfinishedGuard<'_>) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        pin!(guard.evicted()).poll(&mut context).is_ready()
    }

    #[test]
    fn the_oldest_connection_is_evicted_first() {
        let set = UnfinishedSet::new(NonZeroU32::new(2));
        let first = join(&set, 1);
        let second = join(&set, 2);
        assert!(!is_evicted(&first));
        let third = join(&set, 3);
        assert!(is_evicted(&first));
        assert_eq!(set.len(), 2);
        drop(first);
        drop(second);
        let _fourth = join(&set, 4);
        assert!(!is_evicted(&third));
        set.set(NonZeroU32::new(1));
        assert!(is_evicted(&third));
        set.set(None);
        let _more: Vec<_> = (5..15).map(|number| join(&set, number)).collect();
        assert_eq!(set.len(), 11);
    }

    #[test]
    fn a_connection_that_joins_again_is_as_old_as_before() {
        let set = UnfinishedSet::new(NonZeroU32::new(2));
        let older = join(&set, 1);
        let younger = join(&set, 2);
        drop(older);
        let older = join(&set, 1);
        let _newest = join(&set, 3);
        assert!(is_evicted(&older) && !is_evicted(&younger));
        // Evicted from a set that was full of younger ones at once, were it to try a third time.
        drop(older);
        assert!(is_evicted(&join(&set, 1)));
        assert_eq!(set.len(), 2);
    }

    #[test]
    fn a_connection_that_will_be_refused_evicts_only_its_like() {
        let set = UnfinishedSet::new(NonZeroU32::new(3));
        let [first, second] = [1, 2].map(|number| join(&set, number));
        let refusable = |number| {
            let class = EvictionClass::ToBeRefused;
            UnfinishedGuard::join([Some(&set), None], EvictionKey { class, number })
        };
        let third = refusable(3);
        let fourth = refusable(4);
        assert!(is_evicted(&third) && !is_evicted(&fourth));
        let fifth = join(&set, 5);
        assert!(is_evicted(&fourth));
        assert!(is_evicted(&refusable(6)));
        assert!(![first, second, fifth].iter().any(is_evicted));
    }

    #[test]
    fn a_connection_evicted_from_one_set_leaves_the_other_when_it_is_dropped() {
        let (own, all) = (
            UnfinishedSet::new(NonZeroU32::new(1)),
            UnfinishedSet::new(NonZeroU32::new(9)),
        );
        let first = UnfinishedGuard::join([Some(&own), Some(&all)], welcome(1));
        let second = UnfinishedGuard::join([Some(&own), Some(&all)], welcome(2));
        assert!(is_evicted(&first) && !is_evicted(&second));
        assert_eq!((own.len(), all.len()), (1, 2));
        drop(first);
        drop(second);
        assert_eq!((own.len(), all.len()), (0, 0));
    }
}
