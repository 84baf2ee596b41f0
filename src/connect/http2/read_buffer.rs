//! What a connection has received and h2 has not asked for: it asks for a frame at a time, and the socket has many.

use std::cell::RefCell;
use std::io;
use std::mem::take;
use std::task::{Context, Poll, ready};

use crate::net::transport::Reader;

/// Bytes that were read together. Without any it holds no memory: that belongs to the worker thread.
#[derive(Debug, Default)]
pub(super) struct ReadBuffer {
    memory: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReadBuffer {
    /// Bytes that were read by others.
    pub(super) fn of(bytes: Vec<u8>) -> Self {
        Self {
            start: 0,
            end: bytes.len(),
            memory: bytes,
        }
    }

    /// Completes when there are some, or when there will never be more.
    pub(super) fn poll_fill(&mut self, context: &mut Context<'_>, source: &mut impl Reader) -> Poll<io::Result<()>> {
        if self.start < self.end {
            return Poll::Ready(Ok(()));
        }
        ready!(source.poll_readable(context))?;
        self.memory = SPARE.take();
        self.memory.resize(MOST, 0);
        (self.start, self.end) = (0, 0);
        let start = self.memory.as_ptr();
        let read = source.poll_read(context, &mut self.memory).map_ok(|bytes| {
            let elsewhere = (!std::ptr::eq(bytes.as_ptr(), start)).then(|| bytes.to_vec());
            (bytes.len(), elsewhere)
        });
        match read {
            Poll::Ready(Ok((length, elsewhere))) => {
                if let Some(bytes) = elsewhere {
                    self.memory = bytes;
                }
                self.end = length;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                self.take(0);
                Poll::Pending
            }
        }
    }

    /// The next of them, at most so many.
    pub(super) fn next(&self, most: usize) -> &[u8] {
        self.memory
            .get(self.start..self.end.min(self.start + most))
            .unwrap_or_default()
    }

    /// Leaves so many of them behind.
    pub(super) fn take(&mut self, count: usize) {
        self.start += count;
        if self.start >= self.end {
            SPARE.set(take(&mut self.memory));
        }
    }
}

thread_local! {
    static SPARE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// That is read at once: four frames of the longest that clients may send, and a bit.
const MOST: usize = 64 * 1024;

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
            let room = room.get_mut(..self.0.len()).unwrap();
            room.copy_from_slice(self.0);
            self.0 = b"";
            Poll::Ready(Ok(room))
        }

        async fn failed(&mut self) -> io::Error {
            io::ErrorKind::ConnectionReset.into()
        }
    }

    #[test]
    fn what_was_read_is_taken_in_order_and_no_memory_is_held_without_any() {
        let mut context = Context::from_waker(Waker::noop());
        let mut ahead = ReadBuffer::of(b"early".to_vec());
        let mut source = Bytes(b"what came");
        for expected in [&b"earl"[..], b"y", b"what", b" cam", b"e", b"", b""] {
            assert!(ahead.poll_fill(&mut context, &mut source).is_ready());
            assert_eq!(ahead.next(4), expected);
            ahead.take(expected.len());
        }
        assert!(ahead.poll_fill(&mut context, &mut Bytes(b"later")).is_pending());
        assert_eq!(ahead.memory.capacity(), 0);
    }
}
