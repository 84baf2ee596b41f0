//! The bytes that a connection has to send: frame heads and small frames copied together, bulk in its send buffers.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use super::send_buffer::Slice;
use crate::net::transport::Writer;

/// A queue of pieces, written by vectored writes.
#[derive(Debug, Default)]
pub(super) struct WriteQueue {
    pieces: VecDeque<Piece>,
    /// The bytes of the copied pieces since the queue was last empty.
    copied: Vec<u8>,
    /// The number of `copied` bytes that have been written.
    written: usize,
    /// The number of bytes that have not been written.
    length: usize,
}

#[derive(Debug)]
enum Piece {
    /// The next copied bytes, by their number.
    Copied(usize),
    Buffered(Slice),
}

impl WriteQueue {
    /// Returns the number of bytes that have not been written.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn push_copy(&mut self, bytes: &[u8]) {
        self.copied.extend_from_slice(bytes);
        self.length += bytes.len();
        match self.pieces.back_mut() {
            Some(Piece::Copied(length)) => *length += bytes.len(),
            Some(Piece::Buffered(_)) | None => self.pieces.push_back(Piece::Copied(bytes.len())),
        }
    }

    pub(super) fn push(&mut self, slice: Slice) {
        self.length += slice.len();
        self.pieces.push_back(Piece::Buffered(slice));
    }

    /// Completes when all bytes have been written.
    pub(super) fn poll_write(&mut self, context: &mut Context<'_>, writer: &mut impl Writer) -> Poll<io::Result<()>> {
        while self.length > 0 {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let count = self.slices(&mut slices);
            let written = ready!(writer.poll_write_vectored(context, slices.get(..count).unwrap_or_default()))?;
            self.advance(written);
        }
        // A connection that becomes idle after bulk frees its memory.
        if self.copied.capacity() > 4 * self.copied.len() {
            self.copied = Vec::new();
        }
        self.copied.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut copied = self.copied.get(self.written..).unwrap_or_default();
        let mut count = 0;
        for (slot, piece) in slices.iter_mut().zip(&self.pieces) {
            *slot = IoSlice::new(match piece {
                Piece::Copied(length) => {
                    let (piece, rest) = copied.split_at((*length).min(copied.len()));
                    copied = rest;
                    piece
                }
                Piece::Buffered(slice) => slice.bytes(),
            });
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut written: usize) {
        self.length -= written;
        while let Some(first) = self.pieces.front_mut() {
            let length = match first {
                Piece::Copied(length) => {
                    let now = written.min(*length);
                    self.written += now;
                    *length -= now;
                    written -= now;
                    *length
                }
                Piece::Buffered(slice) => {
                    let now = written.min(slice.len());
                    slice.advance(now);
                    written -= now;
                    slice.len()
                }
            };
            if length > 0 {
                return;
            }
            self.pieces.pop_front();
        }
    }
}

/// The pieces of one system call.
const MAX_SLICES: usize = 64;

#[cfg(test)]
mod tests {
    use super::super::send_buffer::{BufferPermits, Class, SendBuffer};
    use super::*;
    use proptest::prelude::*;
    use std::task::Waker;

    /// A writer that takes at most `max` bytes at a time, and is not ready every other time.
    struct Choppy {
        taken: Vec<u8>,
        max: usize,
        pauses: bool,
    }

    impl Writer for Choppy {
        fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.poll_write_vectored(context, &[IoSlice::new(bytes)])
        }

        fn poll_write_vectored(&mut self, _: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
            self.pauses = !self.pauses;
            if self.pauses {
                return Poll::Pending;
            }
            let all: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
            let now = all.len().min(self.max);
            self.taken.extend(&all[..now]);
            Poll::Ready(Ok(now))
        }

        fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    proptest! {
        #[test]
        fn all_bytes_are_written_in_order_whatever_the_pieces_and_the_writes(
            pieces in proptest::collection::vec((any::<bool>(), 1_usize..300), 0..200),
            max in 1_usize..2000,
        ) {
            let permits = BufferPermits::new();
            let mut context = Context::from_waker(Waker::noop());
            let (mut queue, mut expected) = (WriteQueue::default(), Vec::<u8>::new());
            let mut writer = Choppy { taken: Vec::new(), max, pauses: false };
            for (number, &(buffered, length)) in pieces.iter().enumerate() {
                let bytes = vec![u8::try_from(number % 251).unwrap(); length];
                expected.extend(&bytes);
                let acquired = permits.semaphore(Class::Bulk).poll_acquire_many(&mut context, Class::Bulk.permits());
                match acquired {
                    Poll::Ready(Some(permits)) if buffered => {
                        let mut buffer = SendBuffer::new(permits);
                        buffer.memory()[..length].copy_from_slice(&bytes);
                        queue.push(buffer.slice(length));
                    }
                    Poll::Ready(_) | Poll::Pending => queue.push_copy(&bytes),
                }
                // Some of it is written during the wait.
                if number % 7 == 0 {
                    drop(queue.poll_write(&mut context, &mut writer));
                }
            }
            prop_assert_eq!(queue.len() + writer.taken.len(), expected.len());
            while queue.poll_write(&mut context, &mut writer).is_pending() {}
            prop_assert_eq!(queue.len(), 0);
            prop_assert!(writer.taken == expected);
        }
    }
}
