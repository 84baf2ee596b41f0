//! The signs of an API server that answers nothing.

use std::time::Duration;

use tokio::time::Instant;

/// The last answer to any review, and the last review of a right that has had none since it began, or any review for which
/// there was no connection. Other reviews of tokens are no sign: any client may send a token on which the API server hangs.
#[derive(Debug, Default)]
pub(super) struct OutageSigns {
    answered: Option<Instant>,
    unanswered: Option<Instant>,
}

impl OutageSigns {
    /// Notes an answer.
    pub(super) fn answered(&mut self) {
        (self.answered, self.unanswered) = (Some(Instant::now()), None);
    }

    /// Notes a review without an answer, unless another one was answered since it has begun.
    pub(super) fn unanswered(&mut self, begun: Instant) {
        if self.answered.is_none_or(|answered| answered < begun) {
            self.unanswered = Some(Instant::now());
        }
    }

    /// Returns whether a review has just been without an answer, and none was answered since.
    pub(super) fn are_recent(&self) -> bool {
        self.unanswered.is_some_and(|at| at.elapsed() < RECENT)
    }
}

/// As long as an answer is fresh, so that an outage that has just ended lets no approval count for longer.
const RECENT: Duration = Duration::from_secs(10);
