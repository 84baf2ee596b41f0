//! WebSocket (RFC 6455) as a stream of bytes: the payloads of all binary frames, in order. Knows no sockets.
//!
//! A frame is passed on while it arrives and is never held, however long it is. A close frame is the end of one
//! direction: an end sends its own after its last byte, and reads until the peer's.

pub(crate) use self::frame::with_scratch;
pub use self::frame::{End, Role};
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
}

impl Codec {
    /// Creates that end, after the handshake.
    pub fn new(role: Role) -> Self {
        Self {
            receiver: Receiver::new(role),
            sender: Sender::new(role),
        }
    }

    /// Decodes what was read from the transport into `payload`, which is at least as long, and returns the length of
    /// the payload. Pongs are queued.
    ///
    /// # Errors
    /// The peer breaks RFC 6455: the next shutdown sends a close frame with the status of the violation.
    pub fn decode(&mut self, read: &[u8], payload: &mut [u8]) -> Result<usize, Violation> {
        let decoded = self.receiver.decode(read, payload);
        if let Some(ping) = self.receiver.take_ping() {
            self.sender.pong(&ping);
        }
        match (&decoded, self.receiver.end()) {
            (Err(violation), _) => self.sender.set_end(violation.end()),
            // "The endpoint typically echos the status code it received": section 5.5.1.
            (Ok(_), Some(end)) => self.sender.set_end(End {
                code: end.code,
                reason: Box::default(),
            }),
            (Ok(_), None) => {}
        }
        decoded
    }
}

#[cfg(test)]
mod tests;
