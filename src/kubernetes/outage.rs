//! An outage of the API server as one source sees it, and when the log is told about it.

use std::time::Duration;

use tokio::time::Instant;

use super::failure::Failure;

/// The current outage of a source, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    /// Its beginning.
    since: Option<Instant>,
    /// The last warning about it, and the failure that it named.
    warned: Option<(Instant, Failure)>,
}

impl Outage {
    /// Takes note of a failure after that many others in a row, and returns for how long the outage has lasted if a warning is
    /// due: once it is more than a single interruption, then once a minute, and as soon as it fails for another reason.
    pub(crate) fn failed(&mut self, failure: Failure, failures: u32, now: Instant) -> Option<Duration> {
        let since = *self.since.get_or_insert(now);
        let is_due = match self.warned {
            None => failures > 0 || !matches!(failure, Failure::Cut | Failure::Silent | Failure::Expired),
            Some((warned, last)) => {
                let pause = if last == failure { WARN_AGAIN } else { WARN_OF_ANOTHER };
                now >= warned + pause
            }
        };
        is_due.then(|| {
            self.warned = Some((now, failure));
            now.duration_since(since)
        })
    }

    /// Ends the outage, and returns how long it has lasted if the log knows of it.
    pub(crate) fn end(&mut self, now: Instant) -> Option<Duration> {
        let Self { since, warned } = std::mem::take(self);
        warned.and(since).map(|since| now.duration_since(since))
    }
}

/// The interval between warnings of one failure.
const WARN_AGAIN: Duration = Duration::from_secs(60);
/// The shortest interval between warnings: a server that fails in two ways by turns fills no log.
const WARN_OF_ANOTHER: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds of the warnings, of a failure each second.
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
    fn a_single_interruption_is_not_worth_a_line() {
        let mut outage = Outage::default();
        let now = Instant::now();
        assert_eq!(outage.failed(Failure::Cut, 0, now), None);
        assert_eq!(outage.end(now), None);
        assert_eq!(outage.failed(Failure::Connect, 0, now), Some(Duration::ZERO));
        let later = now + Duration::from_secs(3);
        assert_eq!(outage.end(later), Some(Duration::from_secs(3)));
        assert_eq!(outage.end(later), None);
    }
}
