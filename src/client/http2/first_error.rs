//! The connection under HTTP/2, which remembers what went wrong with it: h2 keeps the text of an error, not the error.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes in both directions, as they are.
pub(super) struct Wire<S> {
    stream: S,
    fault: Fault,
}

/// What went wrong first.
#[derive(Clone, Default)]
pub(super) struct Fault(Arc<Mutex<Option<io::Error>>>);

impl Fault {
    /// Gives it away, if there was one. That the proxy has closed, with or without close_notify, is none.
    pub(super) fn take(&self) -> Option<io::Error> {
        self.0.lock().take()
    }

    /// h2 gets a copy, which will do.
    fn keep(&self, error: io::Error) -> io::Error {
        let copy = error.kind().into();
        if error.kind() != io::ErrorKind::UnexpectedEof {
            self.0.lock().get_or_insert(error);
        }
        copy
    }
}

impl<S> Wire<S> {
    pub(super) fn new(stream: S) -> (Self, Fault) {
        let fault = Fault::default();
        let wire = Self {
            stream,
            fault: fault.clone(),
        };
        (wire, fault)
    }

    fn noted<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        polled.map_err(|error| self.fault.keep(error))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, room);
        self.noted(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.noted(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.noted(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.noted(shut)
    }
}
