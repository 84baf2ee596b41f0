//! The time that all steps of a login have together.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{ClientError, Step};

/// The time by which all steps must be completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    pub(super) at: Instant,
    pub(super) timeout: Duration,
}

impl Deadline {
    pub(super) fn after(timeout: Duration) -> Self {
        let now = Instant::now();
        Self {
            // A timeout beyond the range of the clock.
            at: now.checked_add(timeout).unwrap_or(now + LONGEST_TIMEOUT),
            timeout,
        }
    }

    pub(super) fn remaining(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    pub(super) async fn bound<T>(
        self,
        step: Step,
        work: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        match timeout_at(self.at, work).await {
            Ok(done) => done,
            Err(_) => Err(ClientError::Deadline {
                step,
                timeout: self.timeout,
            }),
        }
    }
}

/// A year.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(86_400 * 365);
