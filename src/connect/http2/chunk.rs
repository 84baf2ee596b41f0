//! The payload of DATA frames on its way out.

use bytes::Buf;

use super::frames::Earned;

/// Bytes that the connection still has to send. When they have left, the connection has earned by it.
#[derive(Debug)]
pub(super) struct Chunk {
    bytes: Vec<u8>,
    sent: usize,
    earned: Option<Earned>,
}

impl Chunk {
    /// Bytes of a tunnel.
    pub(super) fn of(bytes: &[u8], earned: &Earned) -> Self {
        Self {
            bytes: bytes.to_vec(),
            sent: 0,
            earned: Some(earned.clone()),
        }
    }

    /// The text of a refusal, or nothing: the end of stream.
    pub(super) fn unearned(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            sent: 0,
            earned: None,
        }
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
