//! The outcome of a connection or request: exactly one each, with its status, its label and the side that ended it.

use std::fmt;

pub use self::malformed::Malformed;
pub use self::refusal::Refusal;
pub use self::refusal_reason::{RefusalReason, refusal_of};
pub use self::side::Side;

mod malformed;
mod refusal;
mod refusal_reason;
mod side;

/// The outcome of a connection or request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The end before a tunnel was established.
    Refused(RefusalReason),
    /// The end of a tunnel.
    TunnelClosed(Close),
}

impl Outcome {
    /// Returns the status code of the answer. For a client that got no answer it is a code for logs only.
    pub fn status(self) -> u16 {
        match self {
            Self::Refused(refusal) => refusal.status(),
            Self::TunnelClosed(_) => 200,
        }
    }

    /// Returns the value of the label `reason` and of the log field `reason`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Refused(refusal) => refusal.label(),
            Self::TunnelClosed(close) => close.reason.label(),
        }
    }

    /// Returns the side that ended it.
    pub fn by(self) -> Side {
        match self {
            Self::Refused(refusal) => refusal.by(),
            Self::TunnelClosed(close) => close.by,
        }
    }
}

/// The end of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close {
    /// The side that ended it; for `eof` the side that finished first.
    pub by: Side,
    /// The reason.
    pub reason: CloseReason,
}

/// A sentence for operators.
impl fmt::Display for Close {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = self.by.label();
        match self.reason {
            CloseReason::Eof => write!(f, "the {side} closed the connection"),
            CloseReason::Idle => f.write_str("the connection was idle for too long"),
            CloseReason::Reset => write!(f, "the {side} reset the connection"),
            CloseReason::Truncated => write!(f, "the connection of the {side} ended within a TLS record"),
            CloseReason::Corrupted => write!(f, "the {side} sent a broken TLS record or WebSocket frame"),
            CloseReason::Lifetime => f.write_str("the longest time for a connection is over"),
            CloseReason::Drained => f.write_str("the proxy was shutting down"),
            CloseReason::ResumedElsewhere => f.write_str("the session moved, as the proxy was shutting down"),
            CloseReason::TargetRemoved => f.write_str("the target has left the allowlist"),
            CloseReason::AccessRevoked => f.write_str("the user may no longer ssh to the target"),
            CloseReason::Expired => f.write_str("the credentials have expired"),
            CloseReason::ClosedByOperator => f.write_str("an operator ended the connection"),
            CloseReason::NotSsh => write!(f, "the {side} has sent no SSH identification"),
            CloseReason::Vanished => write!(f, "the {side} no longer answers"),
            CloseReason::Io => write!(f, "the connection of the {side} failed"),
            CloseReason::Panic => f.write_str("internal error"),
        }
    }
}

/// The reason for the end of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// Both sides finished, or one side of a resumable tunnel. After an end of stream an HTTP/2 client may
    /// cancel its stream instead.
    Eof,
    /// No minute was active during the idle timeout; or, after one side had finished, no byte moved during the
    /// half-closed timeout.
    Idle,
    /// A side reset its connection, or ended a WebSocket without a close frame. The reset was passed on, unless the side had
    /// finished before.
    Reset,
    /// A side's connection ended in the middle of a TLS record, which is not an orderly end: the other side was reset.
    Truncated,
    /// A side sent a TLS record that cannot be decrypted, or a record or WebSocket frame that breaks the protocol. That side
    /// was sent an alert or a close frame, and the other side was reset.
    Corrupted,
    /// The tunnel reached its longest lifetime.
    Lifetime,
    /// The deadline of a drain passed, or a second signal came.
    Drained,
    /// A drain ended a resumable tunnel, whose session goes on through another tunnel.
    ResumedElsewhere,
    /// The target was removed from the allowlist.
    TargetRemoved,
    /// The user may no longer reach the target, or no longer exists.
    AccessRevoked,
    /// The credential that opened the tunnel has expired.
    Expired,
    /// An operator ended the tunnel, or earlier the session that it carries.
    ClosedByOperator,
    /// A side did not send an SSH identification first, or in time. The wrong bytes were not passed on.
    NotSsh,
    /// A side no longer answered: its host, or the path to it, has failed.
    Vanished,
    /// Another socket error.
    Io,
    /// A bug of the proxy: the tunnel's task panicked or was dropped.
    Panic,
}

impl CloseReason {
    /// Every reason, for metrics with the value 0.
    pub const ALL: [Self; 16] = [
        Self::Eof,
        Self::Idle,
        Self::Reset,
        Self::Truncated,
        Self::Corrupted,
        Self::Lifetime,
        Self::Drained,
        Self::ResumedElsewhere,
        Self::TargetRemoved,
        Self::AccessRevoked,
        Self::Expired,
        Self::ClosedByOperator,
        Self::NotSsh,
        Self::Vanished,
        Self::Io,
        Self::Panic,
    ];

    /// Returns the value of the label `reason`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Eof => "eof",
            Self::Idle => "idle",
            Self::Reset => "reset",
            Self::Truncated => "truncated",
            Self::Corrupted => "corrupted",
            Self::Lifetime => "lifetime",
            Self::Drained => "drained",
            Self::ResumedElsewhere => "resumed_elsewhere",
            Self::TargetRemoved => "target_removed",
            Self::AccessRevoked => "access_revoked",
            Self::Expired => "expired",
            Self::ClosedByOperator => "closed_by_operator",
            Self::NotSsh => "not_ssh",
            Self::Vanished => "vanished",
            Self::Io => "io",
            Self::Panic => "panic",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} by {}", self.status(), self.reason(), self.by().label())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_unique_lower_case_words() {
        let mut labels: Vec<_> = RefusalReason::ALL.iter().map(|refusal| refusal.label()).collect();
        labels.extend(CloseReason::ALL.map(CloseReason::label));
        for label in &labels {
            assert!(
                label.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
                "{label}"
            );
        }
        labels.sort_unstable();
        let count = labels.len();
        labels.dedup();
        assert_eq!(labels.len(), count);
    }

    #[test]
    fn a_status_line_is_ascii_and_fits_a_terminal_of_80_columns() {
        for refusal in RefusalReason::ALL {
            let line = format!("HTTP/1.1 {} {}", refusal.status(), refusal.phrase());
            let is_printable = line.bytes().all(|byte| (b' '..=b'~').contains(&byte));
            assert!(line.len() <= 80 && is_printable, "{line}");
        }
    }

    #[test]
    fn an_outcome_names_status_reason_and_side() {
        let refused = Outcome::Refused(RefusalReason::TargetRefused);
        assert_eq!(refused.to_string(), "502 target_refused by target");
        let closed = Outcome::TunnelClosed(Close {
            by: Side::Client,
            reason: CloseReason::Eof,
        });
        assert_eq!(closed.to_string(), "200 eof by client");
    }
}
