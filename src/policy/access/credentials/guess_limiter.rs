//! Bounds the wrong guesses at passwords and tickets: those of each client network, and those at each user's name.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use crate::tunnel::limits::event_rate::{EventCount, EventRate};

/// The wrong guesses for each key. Keys and guesses are kept as keyed hashes.
#[derive(Debug, Default)]
pub(in crate::policy::access) struct GuessLimiter {
    states: HashMap<u64, GuessState>,
    hasher: RandomState,
}

#[derive(Debug)]
struct GuessState {
    count: EventCount,
    /// The hashes of the latest wrong guesses. A repeated one does not count: a client with an old password locks no other out.
    recent: VecDeque<u64>,
}

impl GuessLimiter {
    /// Returns whether a further guess for this key may be checked.
    pub(in crate::policy::access) fn allows(&self, key: impl Hash) -> bool {
        self.count(key).is_none_or(|count| count.wait(RATE).is_zero())
    }

    /// Returns whether the wrong guesses for this key are so long ago that they no longer count.
    pub(in crate::policy::access) fn is_clear(&self, key: impl Hash) -> bool {
        self.count(key).is_none_or(EventCount::is_clear)
    }

    fn count(&self, key: impl Hash) -> Option<EventCount> {
        self.states.get(&self.hasher.hash_one(key)).map(|state| state.count)
    }

    /// Counts a wrong guess, and returns whether it was a new one: a repeated one does not count.
    pub(in crate::policy::access) fn record_wrong(&mut self, key: impl Hash, guess: impl Hash) -> bool {
        let [key, guess] = [self.hasher.hash_one(key), self.hasher.hash_one(guess)];
        let states = &mut self.states;
        if states.len() >= MAX_KEYS && !states.contains_key(&key) {
            let mut by_count: Vec<_> = states.iter().map(|(key, state)| (state.count, *key)).collect();
            by_count.select_nth_unstable(EVICTED);
            for (_, evicted) in by_count.iter().take(EVICTED) {
                states.remove(evicted);
            }
        }
        let state = states.entry(key).or_insert_with(|| GuessState {
            count: EventCount::new(),
            recent: VecDeque::with_capacity(MAX_RECENT),
        });
        if state.recent.contains(&guess) {
            return false;
        }
        state.recent.truncate(MAX_RECENT - 1);
        state.recent.push_front(guess);
        state.count.add(RATE);
        true
    }
}

/// The wrong guesses for one key: 3 million a year. The burst is enough for an office whose passwords were all changed, or
/// whose tickets were all revoked.
pub(in crate::policy::access) const RATE: EventRate = EventRate {
    interval: Duration::from_secs(10),
    burst: 100,
};
/// The keys that are remembered: about 1 MiB.
const MAX_KEYS: usize = 8192;
/// The keys that are evicted together when there are too many: those that are clear, or will be first. One pass over
/// all keys finds all of them.
const EVICTED: usize = MAX_KEYS / 8;
const MAX_RECENT: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const EACH: Duration = RATE.interval;
    const BURST: u32 = RATE.burst;

    #[tokio::test(start_paused = true)]
    async fn a_key_has_a_hundred_wrong_guesses_at_once_and_one_in_ten_seconds_and_others_as_many() {
        let mut limiter = GuessLimiter::default();
        assert!(limiter.is_clear(1));
        for guess in 0..BURST {
            assert!(limiter.allows(1));
            limiter.record_wrong(1, guess);
            assert!(!limiter.is_clear(1));
        }
        assert!(limiter.allows(2) && limiter.is_clear(2));
        tokio::time::advance(EACH - Duration::from_millis(1)).await;
        assert!(!limiter.allows(1));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(limiter.allows(1));
        limiter.record_wrong(1, BURST);
        assert!(!limiter.allows(1));
        tokio::time::advance(EACH * BURST).await;
        assert!(limiter.is_clear(1));
    }

    #[tokio::test(start_paused = true)]
    async fn guesses_that_are_repeated_count_once() {
        let mut limiter = GuessLimiter::default();
        for number in 0..10 * BURST {
            limiter.record_wrong(1, number % 8);
        }
        tokio::time::advance(8 * EACH).await;
        assert!(limiter.is_clear(1));
    }

    #[tokio::test(start_paused = true)]
    async fn the_keys_are_bounded_and_the_one_with_most_wrong_guesses_stays() {
        let mut limiter = GuessLimiter::default();
        for guess in 0..BURST {
            limiter.record_wrong(0, guess);
        }
        let mut scans = 0;
        for key in 1..20_000 {
            let before = limiter.states.len();
            limiter.record_wrong(key, 0);
            let len = limiter.states.len();
            assert!(len <= MAX_KEYS);
            scans += usize::from(len <= before);
        }
        assert!(scans < 20, "{scans}: a full table is scanned for each key");
        assert!(!limiter.allows(0));
    }
}
