//! Sentences for the user: why a session has no connection, and why it is over.

use anyhow::anyhow;

use crate::protocol::resume::driver::DetachCause;
use crate::protocol::resume::frame::ProtocolError;
use crate::protocol::resume::handshake::client_handshake::HandshakeError;
use crate::protocol::resume::reason::{DetachReason, EndReason};
use crate::uplink::error::ClientError;

impl From<HandshakeError> for ClientError {
    fn from(failure: HandshakeError) -> Self {
        match failure {
            HandshakeError::OtherAnchor => lost("the anchor beside the SSH server was restarted"),
            HandshakeError::NoAnchor => lost("there is no anchor beside the SSH server any more"),
            HandshakeError::Ended(end) => ended(end),
            // For example a captive portal.
            HandshakeError::Unproved | HandshakeError::Fault => Self::WithBackoff(anyhow!(failure)),
            HandshakeError::Crypto(error) => Self::WithBackoff(anyhow!(error).context("cannot prove the session")),
        }
    }
}

impl From<DetachCause> for ClientError {
    fn from(cause: DetachCause) -> Self {
        match cause {
            DetachCause::Failed(error) => error.into(),
            DetachCause::Closed => Self::WithBackoff(anyhow!("the connection was closed")),
            DetachCause::Silent => Self::Moved("nothing came from the anchor for too long"),
            DetachCause::ByPeer(DetachReason::Displaced) => lost("another process has its keys, and carries it"),
            DetachCause::ByPeer(DetachReason::Other(_)) => {
                Self::Immediately(anyhow!("the anchor, or a proxy on the way, closes the connection"))
            }
            DetachCause::Refused(failure) => failure.into(),
        }
    }
}

/// Returns the error of a handshake that timed out.
pub(super) fn unanswered() -> ClientError {
    ClientError::WithBackoff(anyhow!("the anchor did not answer in time"))
}

/// Returns the error of an anchor that has violated the protocol.
pub(super) fn violated(violation: ProtocolError) -> ClientError {
    ClientError::Never(anyhow!(violation).context("the session is lost: the anchor has broken the protocol"))
}

/// Returns the error of a session that the anchor has ended.
pub(super) fn ended(end: EndReason) -> ClientError {
    match end {
        EndReason::Completed => over("the session is over"),
        EndReason::ProgramExited => lost("the anchor says that ssh has left"),
        EndReason::Reset => over("the SSH server has reset its connection to the anchor: bytes may be missing"),
        EndReason::Unreachable => over("the anchor cannot reach the SSH server"),
        EndReason::NoSuchSession => lost("the anchor does not have it any more"),
        EndReason::Stopping => lost("the anchor beside the SSH server was stopped"),
        EndReason::Expired => lost("it was without a connection for longer than the anchor keeps it"),
        EndReason::Memory => lost("the anchor needed its memory for others"),
        EndReason::TooManySessions => over("the anchor carries as many sessions as it may"),
        EndReason::Malformed => lost("the anchor has received what this version of connect did not send"),
        EndReason::OutOfSync => lost("bytes would be missing"),
        EndReason::Version => over("the anchor does not speak this version of the protocol"),
        EndReason::Unknown(code) => over(&format!("the anchor has ended the session (code {code})")),
    }
}

fn lost(why: &str) -> ClientError {
    over(&format!("the session is lost: {why}"))
}

fn over(sentence: &str) -> ClientError {
    ClientError::Never(anyhow!("{sentence}"))
}
