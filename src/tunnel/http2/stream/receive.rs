//! The receiving half of a stream: the upload.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use parking_lot::Mutex;

use super::send::{SendHalf, reset_error, stream_error};
use crate::net::transport::Reader;
use crate::tunnel::http2::recv_queue::{SharedQueue, StreamFailure};

/// The received bytes of the upload, and their window.
#[derive(Debug)]
pub(super) struct ReceiveHalf {
    inbox: SharedQueue,
    /// The payload that the last read returned.
    current: Bytes,
    /// How many bytes the last read returned: the next read releases their window space.
    unreleased: usize,
}

impl ReceiveHalf {
    pub(super) fn new(inbox: SharedQueue) -> Self {
        Self {
            inbox,
            current: Bytes::new(),
            unreleased: 0,
        }
    }

    /// Returns whether the client's END_STREAM has been received.
    pub(super) fn has_finished(&self) -> bool {
        self.inbox.lock().has_finished()
    }

    /// Returns the failure of the stream, once. It overtakes bytes that wait, as a reset does in a socket.
    fn check(&mut self) -> io::Result<()> {
        match self.inbox.lock().take_failure() {
            None => Ok(()),
            Some(StreamFailure::Broken(error)) => Err(stream_error(error)),
            Some(StreamFailure::Trailers) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Returns one payload in place, or several copied into `memory`: a write for each would cost more than the copy.
    fn take<'a>(&'a mut self, memory: &'a mut [u8]) -> &'a [u8] {
        let whole = self.inbox.lock().next_whole(memory.len());
        if let Some(payload) = whole {
            self.current = payload;
            self.unreleased = self.current.len();
            return &self.current;
        }
        let length = self.inbox.lock().read(memory);
        self.unreleased = length;
        memory.get(..length).unwrap_or_default()
    }

    /// Copies the next bytes that fit, and returns their number. On a readable stream, 0 is the end of stream.
    pub(super) fn read(&mut self, memory: &mut [u8]) -> usize {
        self.unreleased = self.inbox.lock().read(memory);
        self.unreleased
    }

    /// Releases the window space of the bytes that the last read returned: they have been passed on.
    fn release(&mut self) {
        if self.unreleased > 0 {
            self.current = Bytes::new();
            self.inbox.lock().release(std::mem::take(&mut self.unreleased));
        }
    }
}

/// The reader of the upload.
#[derive(Debug)]
pub struct StreamReader<'a> {
    receive: &'a mut ReceiveHalf,
    send: &'a Mutex<SendHalf>,
}

impl<'a> StreamReader<'a> {
    pub(super) fn new(receive: &'a mut ReceiveHalf, send: &'a Mutex<SendHalf>) -> Self {
        Self { receive, send }
    }

    fn poll_failed(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        self.receive.inbox.lock().receive_all(context);
        if let Err(error) = self.receive.check() {
            return Poll::Ready(error);
        }
        self.send.lock().poll_reset(context).map(|reset| match reset {
            Ok(reason) => reset_error(reason),
            Err(error) => stream_error(error),
        })
    }
}

impl Reader for StreamReader<'_> {
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.receive.release();
        ready!(self.receive.inbox.lock().poll_readable(context));
        Poll::Ready(self.receive.check())
    }

    fn poll_read<'a>(&'a mut self, context: &mut Context<'_>, room: &'a mut [u8]) -> Poll<io::Result<&'a [u8]>> {
        ready!(self.poll_readable(context))?;
        self.receive.inbox.lock().receive_all(context);
        self.receive.check()?;
        Poll::Ready(Ok(self.receive.take(room)))
    }

    /// Payloads received in the meantime wait in the inbox. The window bounds them, as none of it is released.
    async fn failed(&mut self) -> io::Error {
        poll_fn(|context| self.poll_failed(context)).await
    }

    async fn ended(&mut self) -> io::Result<()> {
        poll_fn(|context| match self.poll_failed(context) {
            Poll::Ready(error) => Poll::Ready(Err(error)),
            Poll::Pending if self.receive.has_finished() => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        })
        .await
    }
}
