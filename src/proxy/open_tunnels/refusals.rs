//! The refusals of the last hour, by reason and minute, for operators: what they ask for began before they asked.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::time::Instant;

/// The refusals of the last hour. Each reason takes 300 bytes, and there are as many as the program knows.
#[derive(Debug)]
pub struct Refusals {
    began: Instant,
    reasons: Mutex<BTreeMap<&'static str, Counted>>,
}

/// Refusals for one reason.
#[derive(Clone, Copy, Debug)]
struct Counted {
    /// By minute since the beginning, modulo an hour.
    minutes: [u32; MINUTES],
    /// The minute of the last one.
    minute: u64,
    last: SystemTime,
}

/// What is known of one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frequency {
    /// The reason, as in the access log.
    pub reason: &'static str,
    /// The last one.
    pub last: SystemTime,
    /// Refusals of each minute, the oldest first.
    pub minutes: [u32; MINUTES],
}

impl Default for Refusals {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            reasons: Mutex::default(),
        }
    }
}

impl Refusals {
    /// Counts one.
    pub(crate) fn count(&self, reason: &'static str) {
        let minute = self.minute();
        let mut reasons = self.reasons.lock();
        let counted = reasons.entry(reason).or_insert(Counted {
            minutes: [0; MINUTES],
            minute,
            last: SystemTime::now(),
        });
        counted.forget_until(minute);
        counted.last = SystemTime::now();
        if let Some(count) = counted.minutes.get_mut(place(minute)) {
            *count = count.saturating_add(1);
        }
    }

    /// The reasons of this hour.
    pub fn all(&self) -> Vec<Frequency> {
        let minute = self.minute();
        let reasons = self.reasons.lock();
        let known = reasons.iter().map(|(reason, counted)| {
            let mut counted = *counted;
            counted.forget_until(minute);
            // The minute that is not over comes last.
            counted.minutes.rotate_left(place(minute + 1));
            Frequency {
                reason,
                last: counted.last,
                minutes: counted.minutes,
            }
        });
        let is_recent = |known: &Frequency| known.minutes.iter().any(|count| *count > 0);
        known.filter(is_recent).collect()
    }

    fn minute(&self) -> u64 {
        self.began.elapsed().as_secs() / MINUTE.as_secs()
    }
}

impl Counted {
    /// The minutes in between had none, and still hold those of an hour before.
    fn forget_until(&mut self, minute: u64) {
        let passed = minute.saturating_sub(self.minute).min(MINUTES as u64);
        for ago in 0..passed {
            if let Some(count) = self.minutes.get_mut(place(minute - ago)) {
                *count = 0;
            }
        }
        self.minute = self.minute.max(minute);
    }
}

/// The place of a minute in the ring of an hour.
fn place(minute: u64) -> usize {
    usize::try_from(minute % MINUTES as u64).unwrap_or_default()
}

const MINUTES: usize = 60;
const MINUTE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn refusals_are_counted_by_reason_for_an_hour() {
        let refusals = Refusals::default();
        let told = || -> Vec<_> {
            let all = refusals.all().into_iter();
            all.map(|known| (known.reason, known.minutes.iter().sum::<u32>()))
                .collect()
        };
        assert_eq!(told(), []);
        refusals.count("not_allowed");
        advance(MINUTE).await;
        refusals.count("not_allowed");
        refusals.count("target_full");
        assert_eq!(told(), [("not_allowed", 2), ("target_full", 1)]);
        let minutes = refusals.all()[0].minutes;
        assert_eq!((minutes[58], minutes[59]), (1, 1));
        // An hour after the first one: in its place of the ring.
        advance(59 * MINUTE).await;
        refusals.count("target_full");
        assert_eq!(told(), [("not_allowed", 1), ("target_full", 2)]);
        let minutes = refusals.all()[1].minutes;
        assert_eq!((minutes[0], minutes[59]), (1, 1));
        advance(MINUTE).await;
        assert_eq!(told(), [("target_full", 1)]);
        advance(100 * MINUTE).await;
        assert_eq!(told(), []);
    }
}
