//! The payload of DATA frames on its way out.

use std::convert::Infallible;

use bytes::Buf;
use tokio::sync::oneshot;

use super::frames::Earned;

/// Bytes that the connection still has to send. When they have left, the connection has earned by it.
#[derive(Debug)]
pub(super) struct Chunk {
    bytes: Vec<u8>,
    sent: usize,
    earned: Option<Earned>,
    /// Nothing is sent by it: it is dropped, and that says so.
    _leaves: Option<oneshot::Sender<Infallible>>,
}

impl Chunk {
    /// Bytes of a tunnel.
    pub(super) fn of(bytes: &[u8], earned: &Earned) -> Self {
        Self {
            bytes: bytes.to_vec(),
            sent: 0,
            earned: Some(earned.clone()),
            _leaves: None,
        }
    }

    /// The last of a stream: the text of a refusal, or nothing. What comes with it completes when it has left, and all
    /// that was before it, or when it never will.
    pub(super) fn last(bytes: Vec<u8>) -> (Self, oneshot::Receiver<Infallible>) {
        let (leaves, left) = oneshot::channel();
        let last = Self {
            bytes,
            sent: 0,
            earned: None,
            _leaves: Some(leaves),
        };
        (last, left)
    }
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        self.bytes.len() - self.sent
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.get(self.sent..).unwrap_or_default()
    }

    fn advance(&mut self, count: usize) {
        self.sent = self.bytes.len().min(self.sent + count);
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(earned) = &self.earned {
            earned.sent(self.sent);
        }
    }
}
