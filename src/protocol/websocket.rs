//! WebSocket (RFC 6455) as a stream of bytes: the payloads of all binary frames, in order. Knows no sockets.
//!
//! A frame is passed on while it arrives and is never held, however long it is. A close frame is the end of one
//! direction: an end sends its own after its last byte, and reads until the peer's.

use std::io;
use std::mem::take;
use std::time::Duration;

pub use self::frame::{CloseFrame, Role};
pub use self::receiver::{Receiver, Violation};

pub use self::sender::Sender;

mod frame;
pub(crate) mod handshake;
mod receiver;
mod sender;

/// One end of a WebSocket connection.
#[derive(Debug)]
pub struct Codec {
    /// The peer's frames.
    pub receiver: Receiver,
    /// The frames for the peer.
    pub sender: Sender,
    /// Bytes that were read with the handshake and are not decoded. Empty as a rule.
    unread: Vec<u8>,
}

impl Codec {
    /// Creates that end, after the handshake. `unread` was read with it.
    pub fn new(role: Role, mut unread: Vec<u8>) -> Self {
        // The buffer of the head would stay for as long as the tunnel.
        unread.shrink_to_fit();
        Self {
            unread,
            receiver: Receiver::new(role),
            sender: Sender::new(role),
        }
    }

    /// Returns whether bytes that were read with the handshake are not decoded.
    pub fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Decodes bytes that were read with the handshake, as [`decode`](Self::decode) does; `None` if there are none.
    pub fn decode_unread(&mut self, payload: &mut [u8]) -> Option<io::Result<usize>> {
        let unread = take(&mut self.unread);
        let (now, later) = unread.split_at_checked(payload.len()).unwrap_or((&unread, &[]));
        self.unread = later.to_vec();
        let payload = payload.get_mut(..now.len()).filter(|_| !now.is_empty())?;
        payload.copy_from_slice(now);
        Some(self.decode(payload))
    }

    /// Decodes what was read from the transport in place, and returns the length of the payload, which is at its start then.
    /// Pongs are queued.
    ///
    /// # Errors
    /// `InvalidData` if the peer breaks RFC 6455: the next shutdown sends a close frame with the status of the violation.
    pub fn decode(&mut self, read: &mut [u8]) -> io::Result<usize> {
        let decoded = self.receiver.decode(read);
        for ping in self.receiver.take_pings() {
            self.sender.pong(ping);
        }
        // "The endpoint typically echos the status code it received": section 5.5.1.
        if let (Ok(_), Some(close_frame)) = (decoded, self.receiver.close_frame()) {
            self.sender.set_close_frame(CloseFrame {
                code: close_frame.code,
                reason: Box::default(),
            });
        }
        decoded.map_err(|violation| self.refuse(violation))
    }

    /// Checks that a client which has been connected for `age` has sent no flood of pings or empty frames.
    ///
    /// # Errors
    /// `InvalidData`, as [`decode`](Self::decode) does.
    pub fn check_budget(&mut self, age: Duration) -> io::Result<()> {
        let checked = self.receiver.check_budget(age);
        checked.map_err(|violation| self.refuse(violation))
    }

    fn refuse(&mut self, violation: Violation) -> io::Error {
        self.sender.set_close_frame(violation.close_frame());
        io::Error::new(io::ErrorKind::InvalidData, violation)
    }
}

#[cfg(test)]
mod tests;
