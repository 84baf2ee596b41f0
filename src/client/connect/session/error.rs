//! Why a session has no connection, and why it is over: each in a sentence for the user.

use anyhow::anyhow;

use crate::client::error::ClientError;
use crate::protocol::resume::driver::Unlinked;
use crate::protocol::resume::exchange::opening::Failure;
use crate::protocol::resume::frame::Violation;
use crate::protocol::resume::reason::{End, Going};

impl From<Failure> for ClientError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::OtherAnchor => lost("the anchor beside the SSH server was restarted"),
            Failure::NoAnchor => lost("there is no anchor beside the SSH server any more"),
            Failure::Ended(end) => ended(end),
            // Such as a captive portal.
            Failure::Unproved | Failure::Fault => Self::WithPauses(anyhow!(failure)),
            Failure::Crypto(error) => Self::WithPauses(anyhow!(error).context("cannot prove the session")),
        }
    }
}

impl From<Unlinked> for ClientError {
    fn from(unlinked: Unlinked) -> Self {
        match unlinked {
            Unlinked::Failed(error) => error.into(),
            Unlinked::Closed => Self::WithPauses(anyhow!("the connection was closed")),
            Unlinked::Silent => Self::Moved("nothing came from the anchor for too long"),
            Unlinked::Going(Going::Displaced) => lost("another process has its keys, and carries it"),
            Unlinked::Going(Going::Other(_)) => {
                Self::Soon(anyhow!("the anchor, or a proxy on the way, closes the connection"))
            }
            Unlinked::Refused(failure) => failure.into(),
        }
    }
}

/// No answer came in the time of an exchange.
pub(super) fn unanswered() -> ClientError {
    ClientError::WithPauses(anyhow!("the anchor did not answer in time"))
}

/// The anchor has broken the protocol within the session.
pub(super) fn violated(violation: Violation) -> ClientError {
    ClientError::Never(anyhow!(violation).context("the session is lost: the anchor has broken the protocol"))
}

/// The anchor has ended the session.
pub(super) fn ended(end: End) -> ClientError {
    match end {
        End::Done => over("the session is over"),
        End::Closed => lost("the anchor says that ssh has left"),
        End::Reset => over("the SSH server has reset its connection to the anchor: bytes may be missing"),
        End::Unreachable => over("the anchor cannot reach the SSH server"),
        End::Gone => lost("the anchor does not have it any more"),
        End::Stopping => lost("the anchor beside the SSH server was stopped"),
        End::Expired => lost("it was without a connection for longer than the anchor keeps it"),
        End::Memory => lost("the anchor needed its memory for others"),
        End::Full => over("the anchor carries as many sessions as it may"),
        End::Malformed => lost("the anchor has received what this version of connect did not send"),
        End::Lost => lost("bytes would be missing"),
        End::Version => over("the anchor does not speak this version of the protocol"),
        End::Unknown(code) => over(&format!("the anchor has ended the session (code {code})")),
    }
}

fn lost(why: &str) -> ClientError {
    over(&format!("the session is lost: {why}"))
}

fn over(sentence: &str) -> ClientError {
    ClientError::Never(anyhow!("{sentence}"))
}
