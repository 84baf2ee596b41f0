//! Limits the rate of connects: a number per second in the long run, and a burst after a pause.

use std::num::NonZeroU32;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A rate of events and a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quota {
    /// Events per second in the long run.
    pub per_second: NonZeroU32,
    /// Events at once, after a pause.
    pub burst: NonZeroU32,
}

/// The generic cell rate algorithm in its virtual scheduling form (ITU-T I.371): one instant is all its state.
#[derive(Debug)]
pub(super) struct Gcra {
    /// The theoretical arrival time of the next event.
    due: Mutex<Instant>,
}

impl Gcra {
    /// The state without any event before `now`.
    pub(super) fn new(now: Instant) -> Self {
        Self { due: Mutex::new(now) }
    }

    /// Whether an event conforms to the quota now. Only an event that conforms is counted.
    pub(super) fn conforms(&self, quota: Quota, now: Instant) -> bool {
        let interval = Duration::from_secs(1) / quota.per_second.get();
        let ahead = interval.saturating_mul(quota.burst.get() - 1);
        let mut due = self.due.lock();
        let conforms = due.saturating_duration_since(now) <= ahead;
        if conforms {
            *due = (*due).max(now) + interval;
        }
        conforms
    }

    /// When the state will be the same as without any event.
    pub(super) fn clear_at(&self) -> Instant {
        *self.due.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(per_second: u32, burst: u32) -> Quota {
        Quota {
            per_second: NonZeroU32::new(per_second).unwrap(),
            burst: NonZeroU32::new(burst).unwrap(),
        }
    }

    #[test]
    fn a_burst_is_exact_and_is_restored_with_time() {
        let start = Instant::now();
        let (gcra, quota) = (Gcra::new(start), quota(10, 5));
        let conforming = |now| (0..100).filter(|_| gcra.conforms(quota, now)).count();
        assert_eq!(conforming(start), 5);
        assert_eq!(conforming(start + Duration::from_millis(99)), 0);
        assert_eq!(conforming(start + Duration::from_millis(100)), 1);
        assert_eq!(conforming(start + Duration::from_millis(400)), 3);
        assert_eq!(conforming(start + Duration::from_secs(3600)), 5);
    }

    #[test]
    fn the_mean_in_the_long_run_is_the_rate() {
        let start = Instant::now();
        let (gcra, quota) = (Gcra::new(start), quota(50, 200));
        let conforming = (0..10_000)
            .filter(|&millis| gcra.conforms(quota, start + Duration::from_millis(millis)))
            .count();
        assert_eq!(conforming, 200 + 50 * 10 - 1);
    }

    #[test]
    fn an_event_that_does_not_conform_is_not_counted() {
        let start = Instant::now();
        let (gcra, quota) = (Gcra::new(start), quota(1, 1));
        assert!(gcra.conforms(quota, start));
        for _ in 0..100 {
            assert!(!gcra.conforms(quota, start));
        }
        assert_eq!(gcra.clear_at(), start + Duration::from_secs(1));
    }
}
