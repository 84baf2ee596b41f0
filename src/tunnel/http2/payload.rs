//! The payload of DATA frames, as h2 takes it.

use std::convert::Infallible;
use std::mem::take;

use bytes::Buf;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::outgoing::{FlushRelease, Outgoing};
use super::send_buffer::Slice;

/// Bytes of one stream that h2 has to write. The drop earns credit for the written ones, unless it has a sender.
#[derive(Debug)]
pub(super) struct Payload {
    memory: PayloadBytes,
    /// The bytes that h2 has written so far.
    written: usize,
    /// The sender to drop at the next flush after this payload, `None` except in the last payload of a stream and in a
    /// mark; and the permits of copied bytes.
    release: FlushRelease,
    outgoing: Outgoing,
}

#[derive(Debug)]
enum PayloadBytes {
    Copied { bytes: Vec<u8>, start: usize },
    Buffered(Slice),
}

impl Payload {
    /// Creates a payload of copied bytes, which holds `permits` until they are flushed.
    pub(super) fn copied(bytes: Vec<u8>, permits: Option<OwnedSemaphorePermit>, outgoing: &Outgoing) -> Self {
        Self {
            memory: PayloadBytes::Copied { bytes, start: 0 },
            written: 0,
            release: (None, permits),
            outgoing: outgoing.clone(),
        }
    }

    /// Creates a payload of bytes in their send buffer.
    pub(super) fn buffered(slice: Slice, outgoing: &Outgoing) -> Self {
        Self {
            memory: PayloadBytes::Buffered(slice),
            written: 0,
            release: (None, None),
            outgoing: outgoing.clone(),
        }
    }

    /// Creates the last payload of a stream, such as the text of a refusal, or an empty mark. The receiver completes
    /// when the payload has been flushed, or never will be.
    pub(super) fn last(bytes: Vec<u8>, outgoing: &Outgoing) -> (Self, oneshot::Receiver<Infallible>) {
        let (sender, receiver) = oneshot::channel();
        let mut last = Self::copied(bytes, None, outgoing);
        last.release.0 = Some(sender);
        (last, receiver)
    }
}

impl Buf for Payload {
    fn remaining(&self) -> usize {
        match &self.memory {
            PayloadBytes::Copied { bytes, start } => bytes.len() - start,
            PayloadBytes::Buffered(slice) => slice.len(),
        }
    }

    fn chunk(&self) -> &[u8] {
        match &self.memory {
            PayloadBytes::Copied { bytes, start } => bytes.get(*start..).unwrap_or_default(),
            PayloadBytes::Buffered(slice) => {
                self.outgoing.zero_copy().offer(slice);
                slice.bytes()
            }
        }
    }

    fn advance(&mut self, count: usize) {
        self.written += count;
        match &mut self.memory {
            PayloadBytes::Copied { bytes, start } => *start = bytes.len().min(*start + count),
            PayloadBytes::Buffered(slice) => slice.advance(count),
        }
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        if self.release.0.is_none() {
            self.outgoing.credit().data_sent(self.written);
        }
        self.outgoing.drop_when_flushed(take(&mut self.release));
    }
}
