//! The deadline of one request to the proxy, and its steps.

use std::fmt;
use std::time::Duration;

use anyhow::anyhow;
use tokio::time::Instant;

use crate::uplink::error::ClientError;

/// A step on the way to an SSH server. The variants are in the order of the steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// The arguments, the files and the credentials.
    #[default]
    Settings,
    /// The lookup of the proxy's name.
    Lookup,
    /// The TCP connection.
    Connect,
    /// The TLS handshake.
    Tls,
    /// The upgrade to a WebSocket, as far as something else than the proxy answers it.
    WebSocket,
    /// The response head.
    Answer,
    /// The first line of the SSH server.
    Ssh,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Settings => "what is read first",
            Self::Lookup => "the lookup of the proxy's name",
            Self::Connect => "a connection to the proxy",
            Self::Tls => "the TLS handshake with the proxy",
            Self::WebSocket => "the upgrade to a WebSocket",
            Self::Answer => "the proxy's answer",
            Self::Ssh => "the first line of the SSH server",
        })
    }
}

/// The time by which all steps must be completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    pub(crate) timeout: Duration,
}

impl Deadline {
    pub(crate) fn after(timeout: Duration) -> Self {
        let now = Instant::now();
        Self {
            // The timeout may be beyond the range of the clock.
            at: now.checked_add(timeout).unwrap_or(now + MAX_TIMEOUT),
            timeout,
        }
    }

    pub(crate) fn remaining(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    pub(crate) async fn bound<T>(
        self,
        step: Step,
        work: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        match tokio::time::timeout_at(self.at, work).await {
            Ok(done) => done,
            Err(_) => Err(self.exceeded(step)),
        }
    }

    /// Returns the error for a step that was not completed in time.
    pub(crate) fn exceeded(self, step: Step) -> ClientError {
        ClientError::Immediately(anyhow!("{step} took longer than {:?}", self.timeout))
    }
}

/// A year, for a timeout beyond the clock's range.
const MAX_TIMEOUT: Duration = Duration::from_secs(86_400 * 365);
