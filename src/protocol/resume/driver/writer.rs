//! Writes the frames of a session to its connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;
use tokio::time::Instant;

use crate::protocol::resume::session::send_queue::{MAX_PIECES, SendQueue};
use crate::protocol::resume::session::{AttachmentId, Session};

/// The frames that are being written.
#[derive(Debug, Default)]
pub(super) struct Writer {
    queue: SendQueue,
    is_unflushed: bool,
}

impl Writer {
    /// Creates a writer with frames to write.
    pub(super) fn new(frames: Vec<u8>) -> Self {
        let mut writer = Self::default();
        *writer.queue.copies() = frames;
        writer
    }

    /// Returns whether all frames are written and flushed.
    pub(super) fn is_written(&self) -> bool {
        self.queue.is_empty() && !self.is_unflushed
    }

    /// Returns the bytes that are left to be written; see [`SendQueue::rest`].
    pub(super) fn rest(self, session: &Session) -> Option<Vec<u8>> {
        self.queue.rest(|offset, count| session.kept(offset, count))
    }

    /// Returns the memory in bytes.
    pub(super) fn memory(&self) -> usize {
        self.queue.memory()
    }

    /// Writes the rest of the frames, or else the session's next ones, and flushes after the last byte. Also pending if
    /// there is nothing to do.
    pub(super) fn poll<S>(
        &mut self,
        context: &mut Context<'_>,
        (stream, attachment): (&mut S, AttachmentId),
        session: &mut Session,
    ) -> Poll<io::Result<()>>
    where
        S: AsyncWrite + Unpin,
    {
        let mut stream = Pin::new(stream);
        if self.queue.is_empty() {
            let now = Instant::now().into_std();
            self.queue.clear();
            if stream.is_write_vectored() {
                session.transmit(attachment, &mut self.queue, MAX_UNWRITTEN, now);
            } else {
                session.transmit(attachment, self.queue.copies(), MAX_UNWRITTEN, now);
            }
        }
        if self.queue.is_empty() {
            if !self.is_unflushed {
                return Poll::Pending;
            }
            ready!(stream.poll_flush(context))?;
            self.is_unflushed = false;
            return Poll::Ready(Ok(()));
        }
        let written = {
            let mut slices = [IoSlice::new(&[]); MAX_PIECES];
            let kept = |offset, count| session.kept(offset, count);
            let count = self.queue.pieces(kept, &mut slices);
            match count.and_then(|count| slices.get(..count)) {
                Some([slice]) => ready!(stream.as_mut().poll_write(context, slice))?,
                Some(slices) => ready!(stream.as_mut().poll_write_vectored(context, slices))?,
                None => return Poll::Ready(Err(io::Error::other("bytes that are being sent are not kept"))),
            }
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        if let Some(offset) = self.queue.advance(written) {
            session.mark_sent(offset);
        }
        self.is_unflushed = true;
        Poll::Ready(Ok(()))
    }
}

/// The number of unwritten bytes at which no more of the stream is added: [`MAX_GATHERED`](super::MAX_GATHERED), the
/// frames' heads, and answers before them.
const MAX_UNWRITTEN: usize = 512 * 1024 + 256;
