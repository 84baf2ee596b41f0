//! What the driver of a session tells its caller.

use std::io;

use crate::protocol::resume::exchange::opening::{Failure, Secrets};
use crate::protocol::resume::reason::{End, Going};

/// What the caller has to decide on.
#[derive(Debug)]
pub enum Event {
    /// The connection carries the session no more, and is detached. It is to be dropped.
    Unlinked(Unlinked),
    /// The anchor has answered the hello of a new session: it can be resumed from now on.
    Confirmed(Secrets),
    /// The program's bytes cannot be read. The session goes on until the caller ends it.
    SourceFailed(io::Error),
    /// The program takes no more bytes. The session goes on until the caller ends it.
    SinkFailed(io::Error),
    /// Both sides have said that the session is over, and all that was received has been passed on. The end is that of
    /// the other side, or [`End::Malformed`] if the other side broke the protocol.
    Over(End),
}

/// Why a connection carries a session no more.
#[derive(Debug)]
pub enum Unlinked {
    /// The other side has closed it.
    Closed,
    /// It has failed.
    Failed(io::Error),
    /// Nothing came for too long.
    Silent,
    /// The other side drops it.
    Going(Going),
    /// The exchange of a new session has failed.
    Refused(Failure),
}
