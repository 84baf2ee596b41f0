//! The failures of requests to the API server.

use std::error::Error;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::HeaderValue;

use crate::base::text::{chain, excerpt};

/// A failure of a request to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// There is no usable kubeconfig or service account.
    Credentials,
    /// The server cannot be reached, or its certificate is not valid.
    Connect,
    /// The server did not answer in time.
    Timeout,
    /// A watch neither sent data nor ended in time.
    Silent,
    /// An answer ended in the middle.
    Cut,
    /// An answer, or an object in it, cannot be decoded.
    Malformed,
    /// 401.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 410: the resource version or the continue token is too old.
    Expired,
    /// 429.
    Throttled,
    /// Any other 4xx.
    Refused,
    /// 5xx, or any status but 2xx and 4xx.
    Server,
}

impl Failure {
    /// Every failure, for metrics that start at 0.
    pub(crate) const ALL: [Self; 12] = [
        Self::Credentials,
        Self::Connect,
        Self::Timeout,
        Self::Silent,
        Self::Cut,
        Self::Malformed,
        Self::Unauthorized,
        Self::Forbidden,
        Self::Expired,
        Self::Throttled,
        Self::Refused,
        Self::Server,
    ];

    /// Returns the value of the metric label `kind`.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Credentials => "credentials",
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Silent => "silent",
            Self::Cut => "cut",
            Self::Malformed => "malformed",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::Expired => "expired",
            Self::Throttled => "throttled",
            Self::Refused => "refused",
            Self::Server => "server",
        }
    }

    /// Returns whether no complete answer came, so that a new client may succeed.
    pub(crate) fn is_of_connection(self) -> bool {
        matches!(
            self,
            Self::Credentials | Self::Connect | Self::Timeout | Self::Silent | Self::Cut
        )
    }

    /// Returns the failure of a status code; `None` for a success.
    pub(crate) fn from_status(code: u16) -> Option<Self> {
        match code {
            200..=299 => None,
            401 => Some(Self::Unauthorized),
            403 => Some(Self::Forbidden),
            410 => Some(Self::Expired),
            429 => Some(Self::Throttled),
            400..=499 => Some(Self::Refused),
            _ => Some(Self::Server),
        }
    }
}

/// A failure with its reason for a log line.
#[derive(Debug)]
pub(crate) struct ApiError {
    /// The failure.
    pub(crate) failure: Failure,
    /// The reason.
    pub(crate) reason: String,
    /// The status of an unsuccessful answer; `None` if unknown.
    pub(crate) status: Option<StatusCode>,
    /// The wait that the server asks for, at most 30 s, if any.
    pub(crate) retry_after: Option<Duration>,
}

impl ApiError {
    /// Creates a failure with that reason.
    pub(crate) fn new(failure: Failure, reason: impl Into<String>) -> Self {
        Self {
            failure,
            reason: reason.into(),
            status: None,
            retry_after: None,
        }
    }

    /// Sets the wait from the header `Retry-After`, if that is a number of seconds.
    pub(crate) fn with_retry_after(self, header: Option<&HeaderValue>) -> Self {
        let seconds = header.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let retry_after = seconds.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER));
        Self { retry_after, ..self }
    }

    /// Creates a failure whose reason is `error` with all its causes.
    pub(crate) fn caused(failure: Failure, error: &(dyn Error + 'static)) -> Self {
        Self::new(failure, chain(error))
    }

    /// Creates the failure of an unsuccessful answer, with the beginning of its body as the reason.
    pub(crate) fn answered(failure: Failure, status: StatusCode, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body.get(..MAX_READ).unwrap_or(body));
        Self {
            status: Some(status),
            ..Self::new(failure, format!("{status}: {}", excerpt(text.trim(), MAX_SHOWN)))
        }
    }
}

impl From<serde_json::Error> for ApiError {
    fn from(error: serde_json::Error) -> Self {
        Self::caused(Failure::Malformed, &error)
    }
}

/// The longest wait that a server may ask for: the allowlist ages during it.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);
/// Characters of an answer's body in a log line, and the bytes of it that are read.
const MAX_SHOWN: usize = 300;
const MAX_READ: usize = 2000;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_failure_has_a_label_of_its_own() {
        let labels: HashSet<_> = Failure::ALL.map(Failure::label).into();
        assert_eq!(labels.len(), Failure::ALL.len());
    }

    #[test]
    fn each_status_code_has_its_failure() {
        for (code, failure) in [
            (200, None),
            (401, Some(Failure::Unauthorized)),
            (403, Some(Failure::Forbidden)),
            (404, Some(Failure::Refused)),
            (410, Some(Failure::Expired)),
            (429, Some(Failure::Throttled)),
            (500, Some(Failure::Server)),
            (503, Some(Failure::Server)),
        ] {
            assert_eq!(Failure::from_status(code), failure, "{code}");
        }
    }

    #[test]
    fn a_wait_that_the_server_asks_for_is_read_and_bounded() {
        for (header, expected) in [
            (None, None),
            (Some("1"), Some(1)),
            (Some(" 29 "), Some(29)),
            (Some("31536000"), Some(30)),
            // The form with a date (RFC 9110 section 10.2.3) is none of the API server's.
            (Some("Sun, 06 Nov 1994 08:49:37 GMT"), None),
            (Some("-1"), None),
            (Some(""), None),
        ] {
            let header = header.map(HeaderValue::from_static);
            let error = ApiError::new(Failure::Throttled, "").with_retry_after(header.as_ref());
            assert_eq!(error.retry_after, expected.map(Duration::from_secs), "{header:?}");
        }
    }
}
