//! The payload of DATA frames on its way out.

use std::convert::Infallible;

use bytes::Buf;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::frames::EarnedCredit;
use super::send_buffer::{SendBuffers, Slice};

/// Bytes that the connection still has to send. When they have left, the connection has earned by it.
#[derive(Debug)]
pub(super) struct Payload {
    bytes: Bytes,
    sent: usize,
    earned: Option<EarnedCredit>,
    /// For the last of a stream: nothing is sent by it. When all that was written has left it is dropped, which says so.
    leaves: Option<(oneshot::Sender<Infallible>, SendBuffers)>,
}

#[derive(Debug)]
enum Bytes {
    Copied {
        bytes: Vec<u8>,
        start: usize,
        _units: Option<OwnedSemaphorePermit>,
    },
    Read(Slice, SendBuffers),
}

impl Payload {
    /// Bytes of a tunnel.
    pub(super) fn of(bytes: Vec<u8>, permits: Option<OwnedSemaphorePermit>, earned: &EarnedCredit) -> Self {
        Self {
            bytes: Bytes::Copied {
                bytes,
                start: 0,
                _units: permits,
            },
            sent: 0,
            earned: Some(earned.clone()),
            leaves: None,
        }
    }

    /// Bytes of a tunnel that stand where they were read.
    pub(super) fn read(slice: Slice, buffers: &SendBuffers, earned: &EarnedCredit) -> Self {
        Self {
            bytes: Bytes::Read(slice, buffers.clone()),
            sent: 0,
            earned: Some(earned.clone()),
            leaves: None,
        }
    }

    /// The last of a stream: the text of a refusal, or nothing. What comes with it completes when it has left, and all
    /// that was before it, or when it never will.
    pub(super) fn last(bytes: Vec<u8>, buffers: &SendBuffers) -> (Self, oneshot::Receiver<Infallible>) {
        let (leaves, left) = oneshot::channel();
        let last = Self {
            bytes: Bytes::Copied {
                bytes,
                start: 0,
                _units: None,
            },
            sent: 0,
            earned: None,
            leaves: Some((leaves, buffers.clone())),
        };
        (last, left)
    }
}

impl Buf for Payload {
    fn remaining(&self) -> usize {
        match &self.bytes {
            Bytes::Copied { bytes, start, .. } => bytes.len() - start,
            Bytes::Read(slice, _) => slice.len(),
        }
    }

    fn chunk(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Copied { bytes, start, .. } => bytes.get(*start..).unwrap_or_default(),
            Bytes::Read(slice, buffers) => {
                buffers.show(slice);
                slice.bytes()
            }
        }
    }

    fn advance(&mut self, count: usize) {
        self.sent += count;
        match &mut self.bytes {
            Bytes::Copied { bytes, start, .. } => *start = bytes.len().min(*start + count),
            Bytes::Read(slice, _) => slice.advance(count),
        }
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        if let Some(earned) = &self.earned {
            earned.sent(self.sent);
        }
        if let Some((leaves, buffers)) = self.leaves.take() {
            buffers.leaves(leaves);
        }
    }
}
