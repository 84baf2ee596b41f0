//! Why a session is over, and why a connection is dropped: the codes of END and GOING.

/// Why a connection is dropped, while its session goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Going {
    /// Another connection carries the session already.
    Displaced,
    /// Another code: another connection may carry the session.
    Other(u8),
}

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Both streams have ended, and all has been passed on.
    Done,
    /// The sender's program is gone, as an ssh that was interrupted.
    Closed,
    /// The sender's end of the streams was reset. Bytes may be missing.
    Reset,
    /// The target could not be reached.
    Unreachable,
    /// There is no such session, or the client has not proved that it is its own: both look the same.
    Gone,
    /// The anchor's process ends.
    Stopping,
    /// No connection has carried the session for too long.
    Expired,
    /// The anchor needs the memory of the session.
    Memory,
    /// The anchor carries as many sessions as it may.
    Full,
    /// A line or a frame had a fault.
    Malformed,
    /// The two sides do not agree on what was sent: bytes would be missing.
    Lost,
    /// The anchor does not speak this version.
    Version,
    /// A code that this version does not know.
    Unknown(u8),
}

/// The end that a side has decided on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    pub(super) end: End,
    /// Whether it waits until all bytes in front of it were sent.
    pub(super) is_orderly: bool,
}

impl Going {
    /// The code of a frame.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Displaced => DISPLACED,
            Self::Other(code) => code,
        }
    }
}

impl From<u8> for Going {
    fn from(code: u8) -> Self {
        match code {
            DISPLACED => Self::Displaced,
            code => Self::Other(code),
        }
    }
}

impl End {
    /// Its word in docs/resume.md, for logs and metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Closed => "closed",
            Self::Reset => "reset",
            Self::Unreachable => "unreachable",
            Self::Gone => "gone",
            Self::Stopping => "stopping",
            Self::Expired => "expired",
            Self::Memory => "memory",
            Self::Full => "full",
            Self::Malformed => "malformed",
            Self::Lost => "lost",
            Self::Version => "version",
            Self::Unknown(_) => "unknown",
        }
    }

    /// All that this version knows, by their codes.
    pub fn known() -> impl Iterator<Item = Self> {
        ENDS.into_iter()
    }

    /// The code of a frame.
    pub(super) fn code(self) -> u8 {
        if let Self::Unknown(code) = self {
            return code;
        }
        let known = ENDS.iter().position(|end| *end == self);
        known.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
    }
}

impl From<u8> for End {
    fn from(code: u8) -> Self {
        ENDS.get(usize::from(code)).copied().unwrap_or(Self::Unknown(code))
    }
}

const DISPLACED: u8 = 1;
/// By their codes.
const ENDS: [End; 12] = [
    End::Done,
    End::Closed,
    End::Reset,
    End::Unreachable,
    End::Gone,
    End::Stopping,
    End::Expired,
    End::Memory,
    End::Full,
    End::Malformed,
    End::Lost,
    End::Version,
];
