//! The bytes that a connection has to send: frame heads and small frames copied together, bulk in its send buffers.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;

use super::send_buffer::{BUFFER_BYTES, Slice};
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

/// The rate at which the transport takes bytes. Bulk that waits before a keystroke is bounded by the time to send it.
#[derive(Debug)]
pub(super) struct Pace {
    /// The bytes that the transport takes in [`SHARE_TIME`].
    pub(super) share: usize,
    /// The beginning of the current measurement.
    since: Instant,
    /// The bytes that the transport has taken since then.
    taken: usize,
    /// True if bytes have waited for the transport since then.
    has_waited: bool,
    /// The time since which nothing waits; `None` while bytes wait.
    idle_since: Option<Instant>,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self {
            share: FIRST_SHARE,
            since: Instant::now(),
            taken: 0,
            has_waited: false,
            idle_since: None,
        }
    }

    /// Notes a write of which the transport has taken `taken` bytes. Returns whether the share has
    /// changed.
    pub(super) fn note(&mut self, taken: usize, nothing_waits: bool) -> bool {
        let now = Instant::now();
        if self.idle_since.is_some_and(|since| now - since > SHARE_TIME) {
            self.restart(now);
        }
        self.idle_since = nothing_waits.then_some(now);
        self.taken += taken;
        self.has_waited |= !nothing_waits;
        let elapsed = now - self.since;
        if elapsed < 2 * SHARE_TIME {
            return false;
        }
        let millis = usize::try_from(elapsed.as_millis()).unwrap_or(usize::MAX);
        let share = (SHARE_MILLIS * self.taken / millis).clamp(MIN_SHARE, BUFFER_BYTES);
        // A transport that has taken all could have taken more. And it may have stood still on a busy machine.
        let before = self.share;
        self.share = share.max(if self.has_waited { before / 2 } else { before });
        self.restart(now);
        self.share != before
    }

    fn restart(&mut self, now: Instant) {
        (self.since, self.taken, self.has_waited) = (now, 0, false);
    }
}

#[derive(Debug)]
enum Piece {
    /// The next copied bytes: their count.
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

    /// Completes when all bytes have been written. `is_slow`: waits for the kernel to send what it has before it gets more.
    pub(super) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        writer: &mut impl Writer,
        is_slow: bool,
    ) -> Poll<io::Result<()>> {
        while self.length > 0 {
            if is_slow {
                ready!(writer.poll_sendable(context))?;
            }
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
/// The time in which a share of bulk is sent. At most two are in h2 and the queue, and about as much in the kernel.
const SHARE_TIME: Duration = Duration::from_millis(SHARE_MILLIS as u64);
const SHARE_MILLIS: usize = 10;
/// The share of a new connection. Above it the kernel is not asked whether it has sent enough: that costs a system call.
pub(super) const FIRST_SHARE: usize = 32 * 1024;
/// The least share: the head of a frame is 1 % of it.
const MIN_SHARE: usize = 1024;

#[cfg(test)]
mod tests {
    use super::super::send_buffer::{BufferPermits, Class, SendBuffer};
    use super::*;
    use proptest::prelude::*;
    use std::task::Waker;
    use tokio::time::advance;

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

    #[tokio::test(start_paused = true)]
    async fn a_share_is_sent_in_10_ms_at_the_rate_of_the_link() {
        for rate in [100_000_usize, 1_000_000, 12_500_000, 1_000_000_000] {
            let mut pace = Pace::new();
            // The kernel takes the first bytes at once, and then as many as the link.
            for _ in 0..20 {
                pace.note(16 * 1024, true);
            }
            for _ in 0..300 {
                advance(Duration::from_millis(1)).await;
                pace.note(rate / 1000, false);
            }
            let expected = (rate / 100).clamp(MIN_SHARE, BUFFER_BYTES);
            assert!(
                pace.share.abs_diff(expected) <= expected / 10,
                "{rate} B/s: {}",
                pace.share
            );
            // Neither a pause nor a keystroke after it says how fast the link is.
            pace.note(0, true);
            let before = pace.share;
            for _ in 0..10 {
                advance(Duration::from_secs(1)).await;
                pace.note(64, true);
            }
            assert_eq!(pace.share, before, "{rate} B/s");
            // Without a wait it is as large as all that goes through.
            for _ in 0..64 {
                advance(Duration::from_millis(1)).await;
                pace.note(BUFFER_BYTES / 8, true);
            }
            assert_eq!(pace.share, BUFFER_BYTES);
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
                    drop(queue.poll_write(&mut context, &mut writer, number % 2 == 0));
                }
            }
            prop_assert_eq!(queue.len() + writer.taken.len(), expected.len());
            while queue.poll_write(&mut context, &mut writer, false).is_pending() {}
            prop_assert_eq!(queue.len(), 0);
            prop_assert!(writer.taken == expected);
        }
    }
}
