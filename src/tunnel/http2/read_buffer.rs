//! The bytes that a connection has received and h2 has not read yet: h2 reads one frame, the socket holds many.

use std::cell::RefCell;
use std::io;
use std::mem::take;
use std::task::{Context, Poll, ready};

use tokio::time::Instant;

use crate::net::transport::Reader;

/// The rest of one read. An empty buffer holds no memory: its worker thread keeps the memory for the next read.
#[derive(Debug)]
pub(super) struct ReadBuffer {
    memory: Vec<u8>,
    start: usize,
    end: usize,
    /// The time of the last read that has received something.
    pub(super) last_read: Instant,
}

impl ReadBuffer {
    /// Creates a buffer of bytes that were read before HTTP/2 was recognised.
    pub(super) fn with(early: Vec<u8>) -> Self {
        Self {
            start: 0,
            end: early.len(),
            memory: early,
            last_read: Instant::now(),
        }
    }

    /// Completes when the buffer has bytes, or stays empty at the end of the connection. Reads only if it is empty.
    pub(super) fn poll_fill(&mut self, context: &mut Context<'_>, reader: &mut impl Reader) -> Poll<io::Result<()>> {
        if self.start < self.end {
            return Poll::Ready(Ok(()));
        }
        ready!(reader.poll_readable(context))?;
        self.memory = SPARE.take();
        self.memory.resize(MAX_READ, 0);
        (self.start, self.end) = (0, 0);
        let start = self.memory.as_ptr();
        let read = reader.poll_read(context, &mut self.memory).map_ok(|bytes| {
            let elsewhere = (!std::ptr::eq(bytes.as_ptr(), start)).then(|| bytes.to_vec());
            (bytes.len(), elsewhere)
        });
        match read {
            Poll::Ready(Ok((length, elsewhere))) => {
                if let Some(bytes) = elsewhere {
                    self.memory = bytes;
                }
                self.end = length;
                self.last_read = Instant::now();
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                self.consume(0);
                Poll::Pending
            }
        }
    }

    /// Returns the next bytes.
    pub(super) fn peek(&self) -> &[u8] {
        self.memory.get(self.start..self.end).unwrap_or_default()
    }

    /// Removes the next bytes.
    pub(super) fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start >= self.end {
            SPARE.set(take(&mut self.memory));
        }
    }
}

thread_local! {
    static SPARE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Almost four frames of 16 KiB, the longest that clients may send.
const MAX_READ: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    struct Bytes(&'static [u8]);

    impl Reader for Bytes {
        fn poll_readable(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_read<'a>(&'a mut self, _: &mut Context<'_>, room: &'a mut [u8]) -> Poll<io::Result<&'a [u8]>> {
            if self.0 == b"later" {
                return Poll::Pending;
            }
            let memory = room.get_mut(..self.0.len()).unwrap();
            memory.copy_from_slice(self.0);
            self.0 = b"";
            Poll::Ready(Ok(memory))
        }

        async fn failed(&mut self) -> io::Error {
            io::ErrorKind::ConnectionReset.into()
        }

        async fn ended(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn bytes_are_consumed_in_order_and_an_empty_buffer_holds_no_memory() {
        let mut context = Context::from_waker(Waker::noop());
        let mut buffer = ReadBuffer::with(b"early".to_vec());
        let mut reader = Bytes(b"what came");
        for expected in [&b"earl"[..], b"y", b"what", b" cam", b"e", b"", b""] {
            assert!(buffer.poll_fill(&mut context, &mut reader).is_ready());
            assert!(buffer.peek().starts_with(expected) && buffer.peek().is_empty() == expected.is_empty());
            buffer.consume(expected.len());
        }
        assert!(buffer.poll_fill(&mut context, &mut Bytes(b"later")).is_pending());
        assert_eq!(buffer.memory.capacity(), 0);
    }
}
