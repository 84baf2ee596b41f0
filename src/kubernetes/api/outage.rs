//! An outage of the API server as one source sees it: when it is logged, and when 403s mean a missing permission.

use std::time::Duration;

use tokio::time::Instant;

use super::failure::Failure;

/// The current outage of a source, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    /// Its beginning; `None` without an outage.
    started: Option<Instant>,
    /// The time and the failure of the last warning, also about an earlier outage; `None` before the first.
    warned: Option<(Instant, Failure)>,
    /// True if a warning was due in this outage.
    is_warned: bool,
}

impl Outage {
    /// Notes a failure after `failures` others in a row. Returns how long the outage has lasted if a warning is due.
    ///
    /// The first warning is due at once, but for an interrupted watch only at the next failure. Each other warning is due
    /// a minute after the last one, or 5 s after it if the failure differs: outages in short order do not fill the log.
    pub(crate) fn failed(&mut self, failure: Failure, failures: u32, now: Instant) -> Option<Duration> {
        let since = *self.started.get_or_insert(now);
        let is_alone = failures == 0 && matches!(failure, Failure::Cut | Failure::Silent | Failure::Expired);
        let is_soon = self.warned.is_some_and(|(warned, last)| {
            let pause = if last == failure { WARN_AGAIN } else { WARN_OF_ANOTHER };
            now < warned + pause
        });
        let is_due = !is_soon && (self.is_warned || !is_alone);
        is_due.then(|| {
            (self.warned, self.is_warned) = (Some((now, failure)), true);
            now.duration_since(since)
        })
    }

    /// Ends the outage, and returns how long it has lasted; `None` if no warning was due.
    pub(crate) fn end(&mut self, now: Instant) -> Option<Duration> {
        let is_warned = std::mem::take(&mut self.is_warned);
        let started = self.started.take().filter(|_| is_warned);
        started.map(|since| now.duration_since(since))
    }
}

/// The consecutive 403s of one source, with no other failure between them.
#[derive(Debug, Default)]
pub(crate) struct ForbiddenStreak {
    /// The first of them; `None` without any.
    started: Option<Instant>,
}

impl ForbiddenStreak {
    /// Notes a failure. Only repeated 403s show that a permission is missing.
    pub(crate) fn failed(&mut self, failure: Failure, now: Instant) {
        self.started = (failure == Failure::Forbidden).then(|| self.started.unwrap_or(now));
    }

    /// Returns whether they have lasted for [`LASTING`].
    pub(crate) fn are_lasting(&self, now: Instant) -> bool {
        self.started.is_some_and(|since| now >= since + LASTING)
    }
}

/// An API server that starts, or a Role that is replaced, causes 403s for a shorter time.
const LASTING: Duration = Duration::from_secs(10);
/// The interval between warnings of one failure.
const WARN_AGAIN: Duration = Duration::from_secs(60);
/// The shortest interval between warnings: a server that alternates between two failures must not fill the log.
const WARN_OF_ANOTHER: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the seconds of the warnings, of a failure each second.
    fn warnings(failures: &[Failure]) -> Vec<u64> {
        let start = Instant::now();
        let mut outage = Outage::default();
        let warned = (0..).zip(failures).filter_map(|(second, failure)| {
            let now = start + Duration::from_secs(second);
            let lasted = outage.failed(*failure, u32::try_from(second).unwrap(), now)?;
            assert_eq!(lasted, Duration::from_secs(second));
            Some(second)
        });
        warned.collect()
    }

    #[test]
    fn a_warning_names_the_last_failure_and_not_the_first() {
        let mut failures = vec![Failure::Connect; 10];
        failures.extend(vec![Failure::Forbidden; 65]);
        assert_eq!(warnings(&failures), [0, 10, 70]);
    }

    #[test]
    fn failures_by_turns_are_warned_of_at_most_every_five_seconds() {
        let by_turns: Vec<_> = [Failure::Connect, Failure::Server].repeat(6);
        assert_eq!(warnings(&by_turns), [0, 5, 10]);
    }

    #[test]
    fn a_right_is_missing_after_ten_seconds_of_nothing_but_403() {
        let (mut refusals, start) = (ForbiddenStreak::default(), Instant::now());
        let mut are_lasting = |failure, second| {
            let now = start + Duration::from_secs(second);
            refusals.failed(failure, now);
            refusals.are_lasting(now)
        };
        // As a server that is killed and comes back.
        for second in 0..20 {
            assert!(!are_lasting(Failure::Connect, second));
        }
        assert!(!are_lasting(Failure::Forbidden, 20));
        assert!(!are_lasting(Failure::Forbidden, 29));
        assert!(are_lasting(Failure::Forbidden, 30));
        assert!(!are_lasting(Failure::Server, 31));
        assert!(!are_lasting(Failure::Forbidden, 40));
    }

    #[test]
    fn a_single_interruption_is_not_worth_a_line() {
        let mut outage = Outage::default();
        let now = Instant::now();
        assert_eq!(outage.failed(Failure::Cut, 0, now), None);
        assert_eq!(outage.end(now), None);
        assert_eq!(outage.failed(Failure::Connect, 0, now), Some(Duration::ZERO));
        let later = now + Duration::from_secs(3);
        assert_eq!(outage.end(later), Some(Duration::from_secs(3)));
        assert_eq!(outage.end(later), None);
        // Another outage of this kind within a minute of the warning.
        assert_eq!(outage.failed(Failure::Connect, 0, later), None);
        assert_eq!(outage.end(later), None);
        let later = now + WARN_AGAIN;
        assert_eq!(outage.failed(Failure::Connect, 0, later), Some(Duration::ZERO));
        assert_eq!(outage.end(later), Some(Duration::ZERO));
    }
}
