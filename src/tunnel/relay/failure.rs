//! The failure of one transport of a tunnel, which ends it.

use std::io;

use crate::net::transport::StreamCancelled;
use crate::tunnel::outcome::{Close, CloseReason, Side};

/// The failure of one side of a tunnel.
#[derive(Debug)]
pub struct Failure {
    /// The side whose transport failed.
    pub(super) by: Side,
    pub(super) reason: CloseReason,
    /// True if the peer has cancelled the stream, as it needs no more of it.
    pub(super) is_cancelled: bool,
}

impl Failure {
    /// Creates the failure of a read from that side, or a write to it.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the enum is the standard library's, and grows"
    )]
    pub fn new(by: Side, error: &io::Error) -> Self {
        let reason = match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted => {
                CloseReason::Reset
            }
            io::ErrorKind::UnexpectedEof => CloseReason::Truncated,
            io::ErrorKind::InvalidData => CloseReason::Corrupted,
            // The peer has timed out. If a router or neighbour reported one of the latter two errors before, the kernel
            // returns that for the timeout (tcp_write_err).
            io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                CloseReason::Vanished
            }
            _ => CloseReason::Io,
        };
        Self {
            by,
            reason,
            is_cancelled: StreamCancelled::is(error),
        }
    }
}

impl From<Failure> for Close {
    fn from(Failure { by, reason, .. }: Failure) -> Self {
        Self { by, reason }
    }
}
