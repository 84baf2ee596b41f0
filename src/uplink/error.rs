//! The failure of a tunnel or of a registration: a sentence for the user, the retry, and the exit code.

use std::fmt;
use std::io;
use std::time::Duration;

use anyhow::anyhow;

use crate::base::authority::AuthorityError;

/// The failure of a tunnel, which did not open or did not close gracefully, or of an anchor's registration.
///
/// `Moved`, `Never`, `WithBackoff` and `Immediately` hold their text. `Display` does not print the cause: see `source`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// The target is not `host:port`: an error of usage.
    #[error("the target is not HOST:PORT")]
    Target(#[source] AuthorityError),
    /// A credential would cross the network in clear: an error of usage.
    #[error(
        "cannot log in to the proxy: each host on the way to an http:// proxy can read and use a credential: use https://, \
         or --allow-cleartext where the way is encrypted otherwise"
    )]
    Cleartext,
    /// The proxy's answer is not 2xx.
    #[error("{0}")]
    Refused(Refusal),
    /// The connection to the proxy was reset, or timed out. Bytes may be missing.
    #[error("the connection to the proxy was lost")]
    Lost(#[source] io::Error),
    /// The target, or something in between, has closed the tunnel without a byte.
    #[error("the target{}", UNIDENTIFIED)]
    Unidentified,
    /// A session was detached, and needs another connection at once.
    #[error("{0}")]
    Moved(&'static str),
    /// The proxy, or what answers instead, does not support registrations of anchors.
    #[error("the proxy takes no anchors")]
    NoAnchors,
    /// Another attempt cannot succeed, or the user's permission is revoked.
    #[error(transparent)]
    Never(anyhow::Error),
    /// A proxy, or something instead of it, has answered, so each attempt costs it work. Or a local setting, such as a
    /// file, cannot be used for now.
    #[error(transparent)]
    WithBackoff(anyhow::Error),
    /// No proxy was reached, or the connection was only closed, as by a load balancer without a proxy.
    #[error(transparent)]
    Immediately(anyhow::Error),
}

/// The end of the sentence for [`ClientError::Unidentified`], after the name of the target.
pub(crate) const UNIDENTIFIED: &str = " closed the connection before its SSH identification";

/// An answer of the proxy other than 2xx.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    /// The status code.
    pub(crate) status: u16,
    /// The pause before a retry; `None` if the proxy sends none.
    pub(crate) retry_after: Option<Duration>,
    /// How long the target has left to start, if the proxy has started it.
    pub(crate) starting: Option<Duration>,
    /// The details of `Proxy-Status`, the first line of the body or the reason phrase, without control characters. It may be empty.
    pub(crate) reason: String,
}

impl Refusal {
    /// Returns the reason, and when to retry.
    pub(crate) fn phrase(&self) -> String {
        match self.retry_after {
            Some(pause) => format!("{} (retry after {}s)", self.reason, pause.as_secs()),
            None => self.reason.clone(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colon = if self.reason.is_empty() { "" } else { ": " };
        write!(f, "the proxy answered {}{colon}{}", self.status, self.phrase())
    }
}

/// The close of a tunnel by the proxy, with its reason. A read of the tunnel fails with it.
#[derive(Debug, thiserror::Error)]
#[error("{sentence}")]
pub(crate) struct EndNoticeError {
    /// The reason.
    pub(crate) sentence: String,
    /// True if the session in the tunnel is over, too.
    pub(crate) is_final: bool,
}

/// The failure of a connection to the proxy, or the end that the proxy has announced.
impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        match error.downcast::<EndNoticeError>() {
            Ok(ended) if ended.is_final => Self::Never(ended.into()),
            Ok(ended) => Self::Immediately(ended.into()),
            Err(error) => Self::Lost(error),
        }
    }
}

/// The prospects of another attempt to connect, and its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// As for [`ClientError::Never`].
    Never,
    /// As for [`ClientError::WithBackoff`].
    WithBackoff,
    /// As for [`ClientError::Immediately`].
    Immediately,
}

impl ClientError {
    /// Returns the error for an answer that is not HTTP.
    pub(crate) fn no_http() -> Self {
        Self::WithBackoff(anyhow!(
            "the proxy's answer is not HTTP: are the scheme, the address and the port of its URL right?"
        ))
    }

    /// Returns whether to retry, and how soon. A failure is retried if it may be due to a rollout, or to the current
    /// network, such as one with a captive portal.
    pub(crate) fn retry(&self) -> Retry {
        match self {
            // 408, 425 and 429 ask for a retry. A 400 is retried, too: the network may have truncated the request.
            Self::Refused(Refusal { status, .. })
                if (400..500).contains(status) && !matches!(status, 400 | 408 | 425 | 429) =>
            {
                Retry::Never
            }
            Self::Target(_) | Self::Never(_) => Retry::Never,
            // A resolver may temporarily point `localhost` elsewhere.
            Self::Cleartext | Self::Refused(_) | Self::NoAnchors | Self::WithBackoff(_) => Retry::WithBackoff,
            Self::Lost(_) | Self::Unidentified | Self::Moved(_) | Self::Immediately(_) => Retry::Immediately,
        }
    }

    /// Returns the exit code of the process: 2 for an error of usage, else 1.
    pub(crate) fn exit_code(&self) -> u8 {
        if matches!(self, Self::Target(_) | Self::Cleartext) {
            2
        } else {
            1
        }
    }
}
