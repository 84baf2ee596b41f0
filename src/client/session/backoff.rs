//! The pauses between attempts to reconnect.

use std::time::Duration;

use aws_lc_rs::rand;

use crate::client::ClientError;

/// Pauses that grow up to ten seconds, each a little shorter or longer by chance: the clients of a proxy that restarts do
/// not come back in step.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    attempts: usize,
    /// What the proxy has asked for.
    least: Duration,
}

impl Backoff {
    /// The pause in front of the next attempt. There is none in front of the first one.
    pub(super) fn pause(&mut self) -> Duration {
        let pause = PAUSES.get(self.attempts).copied().unwrap_or(LONGEST);
        self.attempts += 1;
        let mut chance = [0];
        // Without random bytes the pause is the shortest.
        rand::fill(&mut chance).unwrap_or_default();
        let [chance] = chance;
        let pause = pause * (192 + u32::from(chance) / 2) / 256;
        pause.max(std::mem::take(&mut self.least))
    }

    /// Heeds what a refusal says of the next request, within bounds.
    pub(super) fn heed(&mut self, error: &ClientError) {
        if let ClientError::Refused {
            retry_after: Some(after),
            ..
        } = error
        {
            self.least = (*after).min(LONGEST_ASKED);
        }
    }

    /// Begins anew.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

const PAUSES: [Duration; 7] = [
    Duration::ZERO,
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
];
const LONGEST: Duration = Duration::from_secs(10);
/// The longest pause that a proxy can ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_ten_seconds_and_vary_by_a_quarter() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.pause(), Duration::ZERO);
        for expected in [200, 500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000] {
            let pause = backoff.pause().as_millis();
            assert!(
                (expected * 3 / 4..=expected * 5 / 4).contains(&pause),
                "{pause} for {expected}"
            );
        }
        backoff.reset();
        assert_eq!(backoff.pause(), Duration::ZERO);
        for (asked, pause) in [(30, 30), (90, 60), (u64::MAX, 60)] {
            backoff.heed(&ClientError::Refused {
                status: 503,
                retry_after: Some(Duration::from_secs(asked)),
                reason: String::new(),
            });
            assert_eq!(backoff.pause(), Duration::from_secs(pause));
            backoff.reset();
            assert_eq!(backoff.pause(), Duration::ZERO);
        }
    }
}
