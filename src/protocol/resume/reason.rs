//! Why a session is over, and why a connection is dropped: the codes of END and GOING.

/// The reason why a connection is dropped while its session goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetachReason {
    /// Another connection carries the session already.
    Displaced,
    /// Any other code: a new connection may carry the session.
    Other(u8),
}

/// The reason why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// Both streams have ended, and all has been passed on.
    Completed,
    /// The sender's program is gone, for example an interrupted ssh.
    ProgramExited,
    /// The sender's end of the streams was reset. Bytes may be missing.
    Reset,
    /// The target could not be reached.
    Unreachable,
    /// There is no such session, or the client has not proved it. The two cases look the same.
    NoSuchSession,
    /// The anchor's process is shutting down.
    Stopping,
    /// No connection has carried the session for too long.
    Expired,
    /// The anchor needs the session's memory.
    Memory,
    /// The anchor has reached its maximum number of sessions.
    TooManySessions,
    /// A frame or a key was invalid.
    Malformed,
    /// The two sides do not agree on what was sent: bytes would be missing.
    OutOfSync,
    /// The client's hello has a version that the anchor does not know, or is malformed.
    Version,
    /// A code that this version does not know.
    Unknown(u8),
}

/// The end that a side has decided on.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalEnd {
    pub(super) end: EndReason,
    /// True if it waits until all bytes before it are sent.
    pub(super) is_orderly: bool,
}

impl DetachReason {
    /// Returns its code in a frame.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Displaced => DISPLACED,
            Self::Other(code) => code,
        }
    }
}

impl From<u8> for DetachReason {
    fn from(code: u8) -> Self {
        match code {
            DISPLACED => Self::Displaced,
            code => Self::Other(code),
        }
    }
}

impl EndReason {
    /// Returns its word in docs/resume.md, for logs and metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Completed => "done",
            Self::ProgramExited => "closed",
            Self::Reset => "reset",
            Self::Unreachable => "unreachable",
            Self::NoSuchSession => "gone",
            Self::Stopping => "stopping",
            Self::Expired => "expired",
            Self::Memory => "memory",
            Self::TooManySessions => "full",
            Self::Malformed => "malformed",
            Self::OutOfSync => "lost",
            Self::Version => "version",
            Self::Unknown(_) => "unknown",
        }
    }

    /// Iterates over all that this version knows, by their codes.
    pub fn known() -> impl Iterator<Item = Self> {
        ENDS.into_iter()
    }

    /// Returns its code in a frame.
    pub(super) fn code(self) -> u8 {
        if let Self::Unknown(code) = self {
            return code;
        }
        let known = ENDS.iter().position(|end| *end == self);
        known.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
    }
}

impl From<u8> for EndReason {
    fn from(code: u8) -> Self {
        ENDS.get(usize::from(code)).copied().unwrap_or(Self::Unknown(code))
    }
}

const DISPLACED: u8 = 1;
/// The known reasons, by their codes.
const ENDS: [EndReason; 12] = [
    EndReason::Completed,
    EndReason::ProgramExited,
    EndReason::Reset,
    EndReason::Unreachable,
    EndReason::NoSuchSession,
    EndReason::Stopping,
    EndReason::Expired,
    EndReason::Memory,
    EndReason::TooManySessions,
    EndReason::Malformed,
    EndReason::OutOfSync,
    EndReason::Version,
];
