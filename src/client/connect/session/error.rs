//! Why a session has no connection, and why it is over: each in a sentence for the user.

use std::time::Duration;

use crate::client::ClientError;
use crate::protocol::resume::driver::Unlinked;
use crate::protocol::resume::exchange::opening::Failure;
use crate::protocol::resume::frame::Violation;
use crate::protocol::resume::keys::CryptoError;
use crate::protocol::resume::reason::{End, Going};

/// The reason for which a session has no connection, or is over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The anchor has closed the connection, or something on the way.
    #[error("the connection was closed")]
    Closed,
    /// The path is dead.
    #[error("nothing came from the anchor for too long")]
    Silent,
    /// The path or the anchor asks for another connection.
    #[error("the anchor, or a proxy on the way, closes the connection")]
    Going,
    /// The host was asleep.
    #[error("this host was asleep")]
    Slept,
    /// Another path leads to the proxy than that of the connection.
    #[error("the network of this host has changed")]
    Moved,
    /// No answer in the time of an exchange.
    #[error("the anchor did not answer in time")]
    Unanswered,
    /// The other side has not proved the session, such as a captive portal.
    #[error("the other side is not the anchor of the session")]
    Unproved,
    /// What came in the exchange is not of the protocol.
    #[error("the other side has broken off the protocol")]
    Fault,
    /// The crypto library has failed.
    #[error("cannot prove the session")]
    Crypto(#[from] CryptoError),
    /// The anchor's process is another one.
    #[error("the session is lost: the anchor beside the SSH server was restarted")]
    OtherAnchor,
    /// An SSH server has answered.
    #[error("the session is lost: there is no anchor beside the SSH server any more")]
    NoAnchor,
    /// Another connection of the session has displaced this one.
    #[error("the session is lost: another process has its keys, and carries it")]
    Displaced,
    /// The anchor has broken the protocol within the session.
    #[error("the session is lost: the anchor has broken the protocol")]
    Violated(#[source] Violation),
    /// The anchor has ended it.
    #[error("{}", sentence(*.0))]
    Ended(End),
    /// No connection for as long as the session waits for one.
    #[error("the session is lost: it had no connection for {} s: {reason}", outage.as_secs())]
    Grace {
        /// For how long.
        outage: Duration,
        /// The last reason.
        reason: String,
    },
    /// The anchor has begun no session in that time.
    #[error("no session has begun within {} s: {reason}", outage.as_secs())]
    Unbegun {
        /// For how long.
        outage: Duration,
        /// The last reason.
        reason: String,
    },
}

impl SessionError {
    /// Whether the session can go on by another connection, and what the next attempt costs.
    pub(in crate::client) fn retry(&self) -> Retry {
        match self {
            Self::Slept | Self::Moved | Self::Silent | Self::Going => Retry::Soon,
            Self::Closed | Self::Unanswered | Self::Unproved | Self::Fault | Self::Crypto(_) => Retry::WithPauses,
            Self::OtherAnchor
            | Self::NoAnchor
            | Self::Displaced
            | Self::Violated(_)
            | Self::Ended(_)
            | Self::Grace { .. }
            | Self::Unbegun { .. } => Retry::Never,
        }
    }
}

impl From<Failure> for SessionError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::OtherAnchor => Self::OtherAnchor,
            Failure::NoAnchor => Self::NoAnchor,
            Failure::Ended(end) => Self::Ended(end),
            Failure::Unproved => Self::Unproved,
            Failure::Fault => Self::Fault,
            Failure::Crypto(error) => Self::Crypto(error),
        }
    }
}

impl From<Unlinked> for ClientError {
    fn from(unlinked: Unlinked) -> Self {
        Self::Session(match unlinked {
            Unlinked::Failed(error) => return Self::Lost(error),
            Unlinked::Closed => SessionError::Closed,
            Unlinked::Silent => SessionError::Silent,
            Unlinked::Going(Going::Displaced) => SessionError::Displaced,
            Unlinked::Going(Going::Other(_)) => SessionError::Going,
            Unlinked::Refused(failure) => failure.into(),
        })
    }
}

/// Whether another attempt to connect may succeed, and what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Retry {
    /// None will, or the user's right is gone.
    Never,
    /// A proxy has answered, or what is in its place: each attempt costs it something.
    WithPauses,
    /// No proxy was reached, or it has only ended a connection, as does a balancer without a proxy behind it.
    Soon,
}

impl ClientError {
    /// What the failure says of the next attempt. What may be the network of the moment, such as a captive portal with its
    /// certificate, or a rollout, is tried again.
    pub(in crate::client) fn retry(&self) -> Retry {
        match self {
            Self::Session(error) => error.retry(),
            // 408, 425 and 429 ask for another request; a captive portal redirects. The request was good before, so a 400 is that of
            // one which the network has cut off.
            Self::Refused { status, .. } if (400..500).contains(status) && !matches!(status, 400 | 408 | 425 | 429) => {
                Retry::Never
            }
            Self::CredentialsRequired { .. }
            | Self::NotProxy { .. }
            | Self::CertificateRequired(_)
            | Self::CertificateRefused(_)
            | Self::Target(_)
            | Self::TlsName { .. }
            | Self::TlsSetup(_)
            | Self::Runtime(_)
            | Self::Input(_)
            | Self::Output(_) => Retry::Never,
            // As far away as the proxy behind it, which this one may not lead to at the moment.
            Self::Forward { source, .. } => match source.retry() {
                Retry::Soon => Retry::Soon,
                Retry::Never | Retry::WithPauses => Retry::WithPauses,
            },
            // Files may be replaced at the moment, and what gives credentials may need the network.
            Self::Ca { .. }
            | Self::Identity(_)
            | Self::NoSystemRoots(_)
            | Self::Credentials(_)
            | Self::Refused { .. }
            | Self::ProxyCertificate(_)
            | Self::LongAnswer
            | Self::EndlessAnswer
            | Self::NotHttp => Retry::WithPauses,
            Self::Lookup { .. }
            | Self::Connect { .. }
            | Self::Tls(_)
            | Self::Deadline { .. }
            | Self::NoAnswer
            | Self::TruncatedAnswer
            | Self::Lost(_)
            | Self::Unidentified
            | Self::Reset(_)
            | Self::Ended(_) => Retry::Soon,
        }
    }
}

fn sentence(end: End) -> String {
    let text = match end {
        End::Done => "the session is over",
        End::Closed => "the session is lost: the anchor says that ssh has left",
        End::Reset => "the SSH server has reset its connection to the anchor: bytes may be missing",
        End::Unreachable => "the anchor cannot reach the SSH server",
        End::Gone => "the session is lost: the anchor does not have it any more",
        End::Stopping => "the session is lost: the anchor beside the SSH server was stopped",
        End::Expired => "the session is lost: it was without a connection for longer than the anchor keeps it",
        End::Memory => "the session is lost: the anchor needed its memory for others",
        End::Full => "the anchor carries as many sessions as it may",
        End::Malformed => "the session is lost: the anchor has received what this version of connect did not send",
        End::Lost => "the session is lost: bytes would be missing",
        End::Version => "the anchor does not speak this version of the protocol",
        End::Unknown(code) => return format!("the anchor has ended the session (code {code})"),
    };
    text.to_owned()
}
