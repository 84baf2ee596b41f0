//! The pauses between attempts to reconnect.

use std::mem;
use std::time::Duration;

use tokio::time::Instant;

use crate::base::random::{self, random_part};
use crate::uplink::error::{ClientError, Retry};

/// Pauses of less than a second while there is no path, and pauses that grow up to ten seconds when something answers, or
/// when the outage lasts. Each is a little shorter or longer by chance: the clients of a proxy that restarts do not come
/// back in step. docs/resume.md has the reasons of the numbers.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// When the first attempt was made; `None` before it.
    began: Option<Instant>,
    /// When the last attempt was made, or was answered.
    last: Option<Instant>,
    attempts: usize,
    /// The number of pauses of [`GROWING`] so far.
    grown: u32,
    /// True if the last attempt found a proxy, or something instead of it.
    is_answered: bool,
    /// The pause that the proxy has asked for; zero without one.
    least: Duration,
}

impl Backoff {
    /// Returns when to make the next attempt: now for the first one. A pause counts from the start of the previous
    /// attempt, or from its answer.
    pub(super) fn next(&mut self) -> Instant {
        let is_steady = self.is_young() && !self.is_answered;
        let pause = match FIRST.get(self.attempts) {
            Some(&pause) => pause,
            None if is_steady => STEADY,
            None => {
                self.grown += 1;
                GROWING.after(self.grown - 1)
            }
        };
        self.attempts += 1;
        // The pause that the proxy has named may get longer by chance, and never shorter.
        let (pause, now) = (
            varied(pause).max(self.least).max(varied(mem::take(&mut self.least))),
            Instant::now(),
        );
        let next = now.max(self.last.map_or(now, |last| last + pause));
        self.last = Some(next);
        next
    }

    /// Returns the time for the connection of this attempt. The kernel repeats a SYN after a second: the next attempt comes
    /// before the kernel would wait for longer. Every fourth attempt has twice the time, for a path with a long round trip.
    pub(super) fn timeout(&self) -> Duration {
        match self.attempts % 4 {
            0 => 2 * MIN_ATTEMPT_TIMEOUT,
            _ => MIN_ATTEMPT_TIMEOUT,
        }
    }

    /// Notes the failure of an attempt, and the Retry-After of a refusal, within bounds. The pause counts from the end of an
    /// attempt that has `reached` the proxy, as it cost TLS and a decision.
    pub(super) fn heed(&mut self, error: &ClientError, reached: bool) {
        self.is_answered = error.retry() != Retry::Immediately;
        if self.is_answered || reached {
            self.last = Some(Instant::now());
        }
        if let ClientError::Refused(refusal) = error
            && let Some(after) = refusal.retry_after
        {
            self.least = after.min(MAX_RETRY_AFTER);
        }
    }

    /// Starts over, as after a success.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    fn is_young(&mut self) -> bool {
        self.began.get_or_insert_with(Instant::now).elapsed() < MAX_STEADY
    }
}

/// Returns the pause, by chance a quarter shorter to a quarter longer.
fn varied(pause: Duration) -> Duration {
    random_part(pause, 0.75, 0.5)
}

const FIRST: [Duration; 3] = [Duration::ZERO, Duration::from_millis(200), Duration::from_millis(500)];
/// The steady pause: at most 0.88 s.
const STEADY: Duration = Duration::from_millis(700);
/// The minimum timeout of a connection.
const MIN_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// After this time without a path the pauses grow.
const MAX_STEADY: Duration = Duration::from_secs(5 * 60);
const GROWING: random::Backoff = random::Backoff {
    first: Duration::from_secs(1),
    max: Duration::from_secs(10),
};
/// The maximum pause that a proxy can ask for. Most refusals of a resume are of a cap that still counts the session's
/// previous tunnel. The proxy closes that tunnel soon, once the anchor has dropped it.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uplink::error::Refusal;
    use anyhow::anyhow;

    #[track_caller]
    fn expect(pause: Duration, expected: u128) {
        let pause = pause.as_millis();
        assert!(
            // The clock of the tests is one of milliseconds.
            ((expected * 3 / 4).saturating_sub(1)..=expected * 5 / 4).contains(&pause),
            "{pause} for {expected}"
        );
    }

    /// Returns the pause before the next attempt, which then begins.
    async fn pause(backoff: &mut Backoff) -> Duration {
        let (begun, next) = (Instant::now(), backoff.next());
        tokio::time::sleep_until(next).await;
        next - begun
    }

    fn refused(retry_after: Option<u64>) -> ClientError {
        ClientError::Refused(Refusal {
            status: 503,
            retry_after: retry_after.map(Duration::from_secs),
            starting: None,
            reason: String::new(),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_path_pauses_stay_below_a_second_for_five_minutes_and_then_grow() {
        let mut backoff = Backoff::default();
        let began = Instant::now();
        for expected in [0, 200, 500] {
            expect(pause(&mut backoff).await, expected);
            backoff.heed(&ClientError::Immediately(anyhow!("no answer")), false);
        }
        while began.elapsed() < MAX_STEADY {
            let pause = pause(&mut backoff).await;
            expect(pause, 700);
            assert!(pause < Duration::from_secs(1));
        }
        for expected in [1_000, 2_000, 4_000, 8_000, 10_000, 10_000] {
            expect(pause(&mut backoff).await, expected);
        }
        backoff.reset();
        assert_eq!(pause(&mut backoff).await, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_path_a_syn_goes_out_every_second() {
        let mut backoff = Backoff::default();
        let mut attempts = Vec::new();
        let begun = Instant::now();
        while begun.elapsed() < MAX_STEADY {
            pause(&mut backoff).await;
            // The first SYN, and those that the kernel repeats after 1 and 3 s.
            for syn in [0, 1, 3].map(Duration::from_secs) {
                attempts.extend((syn < backoff.timeout()).then(|| Instant::now() + syn));
            }
            tokio::time::advance(backoff.timeout()).await;
            backoff.heed(&ClientError::Immediately(anyhow!("no answer")), false);
        }
        let max = attempts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        let rare = attempts
            .windows(2)
            .filter(|pair| pair[1] - pair[0] > Duration::from_millis(1_001))
            .count();
        assert_eq!(max, Duration::from_secs(2));
        assert!(rare * 8 <= attempts.len(), "{rare} of {}", attempts.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_proxy_that_answers_is_asked_less_and_less_often() {
        let mut backoff = Backoff::default();
        for expected in [0, 200, 500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000] {
            expect(pause(&mut backoff).await, expected);
            // The pause begins with its answer.
            tokio::time::advance(Duration::from_secs(3)).await;
            backoff.heed(&refused(None), true);
        }
        // Its place is empty.
        backoff.heed(&ClientError::Immediately(anyhow!("no answer")), false);
        expect(pause(&mut backoff).await, 700);
    }

    #[tokio::test(start_paused = true)]
    async fn a_proxy_that_asks_for_time_has_it_up_to_some_seconds() {
        let mut backoff = Backoff::default();
        for (asked, expected) in [(2, 2_000), (30, 4_000), (u64::MAX, 4_000)] {
            backoff.heed(&refused(Some(asked)), true);
            let taken = pause(&mut backoff).await;
            expect(taken, expected);
            assert!(taken.as_millis() >= expected, "{taken:?}");
            backoff.reset();
            assert_eq!(pause(&mut backoff).await, Duration::ZERO);
        }
        // One that goes on asking is asked less and less often, as any other.
        for expected in [4_000, 4_000, 4_000, 4_000, 4_000, 8_000, 10_000] {
            backoff.heed(&refused(Some(30)), true);
            expect(pause(&mut backoff).await, expected);
        }
    }
}
