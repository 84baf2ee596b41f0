//! Sessions that outlive their connections: the protocol of `docs/resume.md`, without sockets and without a clock.
//!
//! A session is two streams of bytes, one each way, between a client (next to ssh) and an anchor (next to sshd). One
//! connection at a time carries it. A connection begins with the [`handshake`], which differs by side; [`session`] is
//! the rest, the same for both. The caller supplies bytes and the time: [`driver`] does so for Tokio's streams.

pub mod driver;
pub mod frame;
pub mod handshake;
pub mod keys;
mod liveness;
mod options;
pub mod reason;
pub mod registry;
pub mod session;

pub use self::liveness::Timing;
pub(crate) use self::options::{CONFIRMATION_TIMEOUT, HANDSHAKE_TIMEOUT};
pub use self::options::{MAX_WINDOW, MIN_WINDOW, Options, window};

/// The bytes of each stream that may be sent before the first ACK: enough for all that both sides of SSH send without
/// waiting for each other.
pub const INITIAL_WINDOW: u32 = 16 * 1024;

/// The maximum number of bytes of lines that a side reads before it closes a connection: the same as for `ssh_only`.
pub const MAX_LINE_BYTES: usize = 8 * 1024;

#[cfg(test)]
mod tests;
