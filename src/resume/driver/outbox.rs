//! The frames that are to be written to a connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

/// What is to be written to the connection.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) bytes: Vec<u8>,
    written: usize,
    is_unflushed: bool,
}

impl Outbox {
    /// With these frames to be written.
    pub(super) fn with(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            ..Self::default()
        }
    }

    /// What is left to be written.
    pub(super) fn rest(&self) -> &[u8] {
        self.bytes.get(self.written..).unwrap_or_default()
    }

    /// Whether nothing is left, and nothing waits in the stream.
    pub(super) fn is_written(&self) -> bool {
        self.rest().is_empty() && !self.is_unflushed
    }

    /// Forgets what was written. An idle session keeps hardly any memory.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.written = 0;
        if !self.is_unflushed && self.bytes.capacity() > KEPT_WHEN_IDLE {
            self.bytes = Vec::new();
        }
    }

    /// Writes, and flushes behind the last byte. It is pending, too, when there is nothing to do.
    pub(super) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        stream: Pin<&mut impl AsyncWrite>,
    ) -> Poll<io::Result<()>> {
        if self.rest().is_empty() {
            if !self.is_unflushed {
                return Poll::Pending;
            }
            ready!(stream.poll_flush(context))?;
            self.is_unflushed = false;
            return Poll::Ready(Ok(()));
        }
        let written = ready!(stream.poll_write(context, self.rest()))?;
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.written += written;
        self.is_unflushed = true;
        Poll::Ready(Ok(()))
    }
}

/// The memory in bytes that an idle connection keeps for frames.
const KEPT_WHEN_IDLE: usize = 512;
