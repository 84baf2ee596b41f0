//! Spaces events out: so many a second, and some at once after a pause.

use std::num::NonZeroU32;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How often something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// So often in the long run.
    pub per_second: NonZeroU32,
    /// So often at once.
    pub burst: NonZeroU32,
}

/// How one has kept to a tempo: the virtual scheduling of ITU-T I.371, one instant instead of a bucket and a clock.
#[derive(Debug)]
pub struct Gcra {
    /// When the next event would be due, had all of them come evenly.
    due: Mutex<Instant>,
}

impl Gcra {
    /// Nothing has happened before `now`.
    pub fn new(now: Instant) -> Self {
        Self { due: Mutex::new(now) }
    }

    /// Whether it may happen now, which is counted if it may.
    pub fn keeps(&self, tempo: Quota, now: Instant) -> bool {
        let interval = Duration::from_secs(1) / tempo.per_second.get();
        let ahead = interval.saturating_mul(tempo.burst.get() - 1);
        let mut due = self.due.lock();
        let may = due.saturating_duration_since(now) <= ahead;
        if may {
            *due = (*due).max(now) + interval;
        }
        may
    }

    /// When it is as if nothing had ever happened.
    pub fn forgotten(&self) -> Instant {
        *self.due.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tempo(per_second: u32, burst: u32) -> Quota {
        Quota {
            per_second: NonZeroU32::new(per_second).unwrap(),
            burst: NonZeroU32::new(burst).unwrap(),
        }
    }

    #[test]
    fn a_burst_is_exact_and_comes_back_with_time() {
        let start = Instant::now();
        let (pace, tempo) = (Gcra::new(start), tempo(10, 5));
        let passed = |now| (0..100).filter(|_| pace.keeps(tempo, now)).count();
        assert_eq!(passed(start), 5);
        assert_eq!(passed(start + Duration::from_millis(99)), 0);
        assert_eq!(passed(start + Duration::from_millis(100)), 1);
        assert_eq!(passed(start + Duration::from_millis(400)), 3);
        assert_eq!(passed(start + Duration::from_secs(3600)), 5);
    }

    #[test]
    fn in_the_long_run_it_is_the_rate() {
        let start = Instant::now();
        let (pace, tempo) = (Gcra::new(start), tempo(50, 200));
        let passed = (0..10_000)
            .filter(|&millis| pace.keeps(tempo, start + Duration::from_millis(millis)))
            .count();
        assert_eq!(passed, 200 + 50 * 10 - 1);
    }

    #[test]
    fn who_is_refused_owes_nothing_for_it() {
        let start = Instant::now();
        let (pace, tempo) = (Gcra::new(start), tempo(1, 1));
        assert!(pace.keeps(tempo, start));
        for _ in 0..100 {
            assert!(!pace.keeps(tempo, start));
        }
        assert_eq!(pace.forgotten(), start + Duration::from_secs(1));
    }
}
