//! Random numbers, and the pauses between attempts, which vary at random: those who have failed together do not come back
//! together.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Returns a random number, from the standard library's only source of them.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// Returns a random part of a duration: `least` of it, and up to `spread` more.
pub(crate) fn random_part(duration: Duration, least: f64, spread: f64) -> Duration {
    let chance = f64::from(u32::try_from(random() >> 32).unwrap_or_default()) / f64::from(u32::MAX);
    duration.mul_f64(least + spread * chance)
}

/// Returns between half of a pause and all of it.
pub(crate) fn jittered(pause: Duration) -> Duration {
    random_part(pause, 0.5, 0.5)
}

/// Pauses that double after each failure in a row, up to the longest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    /// The pause after the first failure.
    pub(crate) first: Duration,
    /// The longest pause.
    pub(crate) max: Duration,
}

impl Backoff {
    /// Returns the pause after a failure that follows `failures` others in a row.
    pub(crate) fn after(self, failures: u32) -> Duration {
        self.first.saturating_mul(2_u32.saturating_pow(failures)).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_grows_to_its_longest() {
        let [first, max] = [100, 1_000].map(Duration::from_millis);
        let backoff = Backoff { first, max };
        assert_eq!(
            [0, 1, 2].map(|failures| backoff.after(failures)),
            [1, 2, 4].map(|times| first * times)
        );
        for failures in [4, 10, 1000, u32::MAX] {
            assert_eq!(backoff.after(failures), max);
        }
    }

    #[test]
    fn a_random_part_is_within_its_bounds_and_not_the_same_each_time() {
        let second = Duration::from_secs(1);
        let parts: Vec<_> = (0..100).map(|_| random_part(second, 0.8, 0.4)).collect();
        assert!(
            parts.iter().all(|part| (0.8..=1.2).contains(&part.as_secs_f64())),
            "{parts:?}"
        );
        assert!(parts.iter().any(|part| *part != parts[0]));
        assert!((second / 2..=second).contains(&jittered(second)));
    }
}
