//! What a connection sends next: frame heads and small frames one behind the other, and bulk where it was read.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use super::send_buffer::Slice;
use crate::net::transport::Writer;

/// Bytes in the order in which they are to be sent.
#[derive(Debug, Default)]
pub(super) struct WriteQueue {
    pieces: VecDeque<Piece>,
    /// The bytes of all pieces that are copied.
    copied: Vec<u8>,
    /// How many of those have been sent.
    sent: usize,
    length: usize,
}

#[derive(Debug)]
enum Piece {
    Copied(usize),
    Shared(Slice),
}

impl WriteQueue {
    /// How many they are.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn copy(&mut self, bytes: &[u8]) {
        self.copied.extend_from_slice(bytes);
        self.length += bytes.len();
        match self.pieces.back_mut() {
            Some(Piece::Copied(length)) => *length += bytes.len(),
            Some(Piece::Shared(_)) | None => self.pieces.push_back(Piece::Copied(bytes.len())),
        }
    }

    pub(super) fn share(&mut self, slice: Slice) {
        self.length += slice.len();
        self.pieces.push_back(Piece::Shared(slice));
    }

    /// Writes all of them.
    pub(super) fn poll_write(&mut self, context: &mut Context<'_>, sink: &mut impl Writer) -> Poll<io::Result<()>> {
        while self.length > 0 {
            let mut slices = [IoSlice::new(&[]); MOST_SLICES];
            let count = self.slices(&mut slices);
            let written = ready!(sink.poll_write_vectored(context, slices.get(..count).unwrap_or_default()))?;
            self.advance(written);
        }
        // A connection that has become quiet need not hold the room for bulk.
        if self.copied.capacity() > 4 * self.copied.len() {
            self.copied = Vec::new();
        }
        self.copied.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut copied = self.copied.get(self.sent..).unwrap_or_default();
        let mut count = 0;
        for (slot, piece) in slices.iter_mut().zip(&self.pieces) {
            *slot = IoSlice::new(match piece {
                Piece::Copied(length) => {
                    let (piece, rest) = copied.split_at((*length).min(copied.len()));
                    copied = rest;
                    piece
                }
                Piece::Shared(slice) => slice.bytes(),
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
                    self.sent += now;
                    *length -= now;
                    written -= now;
                    *length
                }
                Piece::Shared(slice) => {
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

/// For one system call.
const MOST_SLICES: usize = 64;

#[cfg(test)]
mod tests {
    use super::super::send_buffer::{Class, SendBuffer, SendBuffers};
    use super::*;
    use proptest::prelude::*;
    use std::task::Waker;

    /// Takes so many bytes at each write, and pauses before every other one.
    struct Choosy {
        taken: Vec<u8>,
        most: usize,
        pauses: bool,
    }

    impl Writer for Choosy {
        fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.poll_write_vectored(context, &[IoSlice::new(bytes)])
        }

        fn poll_write_vectored(&mut self, _: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
            self.pauses = !self.pauses;
            if self.pauses {
                return Poll::Pending;
            }
            let all: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
            let now = all.len().min(self.most);
            self.taken.extend(&all[..now]);
            Poll::Ready(Ok(now))
        }

        fn poll_shutdown(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    proptest! {
        #[test]
        fn whatever_is_gathered_and_however_it_is_taken_it_leaves_in_order(
            pieces in proptest::collection::vec((any::<bool>(), 1_usize..300), 0..200),
            most in 1_usize..2000,
        ) {
            let buffers = SendBuffers::new();
            let mut context = Context::from_waker(Waker::noop());
            let (mut gathered, mut expected) = (WriteQueue::default(), Vec::<u8>::new());
            let mut sink = Choosy { taken: Vec::new(), most, pauses: false };
            for (number, &(shared, length)) in pieces.iter().enumerate() {
                let bytes = vec![u8::try_from(number % 251).unwrap(); length];
                expected.extend(&bytes);
                let turn = buffers.permits(Class::Bulk).poll_acquire_many(&mut context, Class::Bulk.permits());
                match turn {
                    Poll::Ready(Some(permits)) if shared => {
                        let mut room = SendBuffer::new(permits);
                        room.memory()[..length].copy_from_slice(&bytes);
                        gathered.share(room.slice(length));
                    }
                    Poll::Ready(_) | Poll::Pending => gathered.copy(&bytes),
                }
                // Some of it leaves meanwhile.
                if number % 7 == 0 {
                    drop(gathered.poll_write(&mut context, &mut sink));
                }
            }
            prop_assert_eq!(gathered.len() + sink.taken.len(), expected.len());
            while gathered.poll_write(&mut context, &mut sink).is_pending() {}
            prop_assert_eq!(gathered.len(), 0);
            prop_assert!(sink.taken == expected);
        }
    }
}
