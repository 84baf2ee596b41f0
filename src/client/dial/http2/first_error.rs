//! The transport under an HTTP/2 connection. It keeps its first error, as h2 returns the text of an I/O error only, and
//! charges the proxy's frames: a flood of them is such an error.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::protocol::http2::frames::{Credit, FrameBudget, OF_PROXY};

/// A stream whose errors are recorded. Bytes pass unchanged.
pub(super) struct Recorded<S> {
    stream: S,
    budget: FrameBudget,
    first: FirstError,
}

/// The error of a stream whose proxy has sent more frames than its budget pays for.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("too many frames without a byte of the tunnel")]
pub(super) struct Flood;

/// The first error of a [`Recorded`] stream, if it had one.
///
/// The proxy's end, with or without close_notify, is no error.
#[derive(Clone, Default)]
pub(super) struct FirstError(Arc<Mutex<Option<io::Error>>>);

impl FirstError {
    pub(super) fn take(&self) -> Option<io::Error> {
        self.0.lock().take()
    }

    /// Records the error, and returns one of its kind for h2.
    fn record(&self, error: io::Error) -> io::Error {
        let copy = error.kind().into();
        if error.kind() != io::ErrorKind::UnexpectedEof {
            self.0.lock().get_or_insert(error);
        }
        copy
    }
}

impl<S> Recorded<S> {
    /// `earned` is the credit for what the stream's tunnel sends.
    pub(super) fn new(stream: S, earned: Credit) -> (Self, FirstError) {
        let first = FirstError::default();
        let recorded = Self {
            stream,
            budget: FrameBudget::new(&OF_PROXY, earned),
            first: first.clone(),
        };
        (recorded, first)
    }

    fn record<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        polled.map_err(|error| self.first.record(error))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Recorded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let mut read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if matches!(read, Poll::Ready(Ok(()))) && !self.budget.charge(buffer.filled().get(before..).unwrap_or_default())
        {
            read = Poll::Ready(Err(io::Error::other(Flood)));
        }
        self.record(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Recorded<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.record(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.record(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.record(shut)
    }
}
