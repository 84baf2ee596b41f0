//! How a session leaves its tunnel, or what it does without one.

use crate::client::ClientError;
use crate::protocol::resume::reason::End;

/// How a session has left its tunnel for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::client) enum Left {
    /// Both sides have said that it is over.
    Over(End),
    /// The time to say so is over.
    Unheard,
}

/// Why work done while disconnected was interrupted.
pub(super) enum Interruption {
    Left(Left),
    Failed(ClientError),
}

impl Interruption {
    pub(super) fn into_result(self) -> Result<Left, ClientError> {
        match self {
            Self::Left(left) => Ok(left),
            Self::Failed(error) => Err(error),
        }
    }
}
