//! Send buffers: memory that downloads are read into, and that the socket sends them from without a copy.

use std::cell::RefCell;
use std::mem::take;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::PollSemaphore;

/// The permits of a connection's send buffers, one for each 4 KiB. They bound what its streams have read and the socket
/// has not taken.
#[derive(Debug)]
pub(super) struct BufferPermits {
    beginning: Arc<Semaphore>,
    interactive: Arc<Semaphore>,
    bulk: Arc<Semaphore>,
}

/// The class of a stream by its last read. Each has permits of its own, so that keystrokes do not queue behind bulk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Nothing was read yet. Not interactive, because many downloads that begin must not delay a keystroke.
    Beginning,
    /// The last read returned less than 4 KiB.
    Interactive,
    Bulk,
}

/// The memory for one read, with the permits for it. The worker thread keeps the memory for the next buffer.
#[derive(Debug)]
pub(super) struct SendBuffer {
    memory: Vec<u8>,
    permits: OwnedSemaphorePermit,
}

/// A part of a send buffer, which does not change any more.
#[derive(Clone, Debug)]
pub(super) struct Slice {
    buffer: Arc<SendBuffer>,
    start: usize,
    end: usize,
}

impl BufferPermits {
    pub(super) fn new() -> Self {
        Self {
            beginning: Arc::new(Semaphore::new(INTERACTIVE_PERMITS)),
            interactive: Arc::new(Semaphore::new(INTERACTIVE_PERMITS)),
            bulk: Arc::new(Semaphore::new(BULK_PERMITS)),
        }
    }

    /// Returns a handle by which one stream waits for permits.
    pub(super) fn semaphore(&self, class: Class) -> PollSemaphore {
        PollSemaphore::new(Arc::clone(match class {
            Class::Beginning => &self.beginning,
            Class::Interactive => &self.interactive,
            Class::Bulk => &self.bulk,
        }))
    }

    /// Makes streams that wait for these permits acquire others. Permits that are held stay valid.
    pub(super) fn close(&self) {
        for semaphore in [&self.beginning, &self.interactive, &self.bulk] {
            semaphore.close();
        }
    }
}

impl Class {
    /// Returns the permits that one read or write needs.
    pub(super) fn permits(self) -> u32 {
        match self {
            Self::Beginning | Self::Interactive => 1,
            Self::Bulk => PERMITS_PER_BUFFER,
        }
    }

    /// Returns the bytes that one read or write may have at most, if one of bulk may have `share`.
    pub(super) fn longest_read(self, share: usize) -> usize {
        match self {
            Self::Beginning | Self::Interactive => PERMIT_BYTES,
            Self::Bulk => share.min(BUFFER_BYTES),
        }
    }

    /// Returns the class after a read of `bytes` bytes, if it could have `longest`.
    pub(super) fn after_read(bytes: usize, longest: usize) -> Self {
        if bytes < longest.min(PERMIT_BYTES) {
            Self::Interactive
        } else {
            Self::Bulk
        }
    }
}

impl SendBuffer {
    pub(super) fn new(permits: OwnedSemaphorePermit) -> Self {
        let mut memory = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
        memory.resize(BUFFER_BYTES, 0);
        Self { memory, permits }
    }

    pub(super) fn memory(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    /// Returns the first bytes, in place.
    pub(super) fn slice(self, length: usize) -> Slice {
        Slice {
            end: length.min(self.memory.len()),
            start: 0,
            buffer: Arc::new(self),
        }
    }

    /// Returns a copy of the first bytes, with the permits that it needs if all are for `longest` bytes. The rest of the
    /// permits is free.
    pub(super) fn copy(mut self, length: usize, longest: usize) -> (Vec<u8>, Option<OwnedSemaphorePermit>) {
        let permits = split_permits(&mut self.permits, length, longest);
        (self.memory.get(..length).unwrap_or_default().to_vec(), permits)
    }
}

/// Splits off the permits for `length` bytes if all of these are for `longest` bytes.
pub(super) fn split_permits(
    permits: &mut OwnedSemaphorePermit,
    length: usize,
    longest: usize,
) -> Option<OwnedSemaphorePermit> {
    let all = permits.num_permits();
    permits.split((length * all).div_ceil(longest.max(1)).min(all))
}

impl Drop for SendBuffer {
    fn drop(&mut self) {
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < MAX_SPARE {
                spare.push(take(&mut self.memory));
            }
        });
    }
}

impl Slice {
    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer.memory.get(self.start..self.end).unwrap_or_default()
    }

    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    /// Removes bytes at the start.
    pub(super) fn advance(&mut self, count: usize) {
        self.start = self.end.min(self.start + count);
    }

    /// Removes all but the first bytes.
    pub(super) fn truncate(&mut self, length: usize) {
        self.end = self.end.min(self.start + length);
    }
}

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The size of a send buffer: fewer and larger reads wake target and client less often.
pub(super) const BUFFER_BYTES: usize = 256 * 1024;
/// The memory that one permit represents. On a slow link a permit for bulk represents less.
const PERMIT_BYTES: usize = 4096;
/// The permits of a whole send buffer.
#[expect(clippy::cast_possible_truncation, reason = "it is 64")]
const PERMITS_PER_BUFFER: u32 = (BUFFER_BYTES / PERMIT_BYTES) as u32;
/// Two send buffers: more would not stay in the CPU's cache.
const BULK_PERMITS: usize = 2 * BUFFER_BYTES / PERMIT_BYTES;
/// 64 KiB for keystrokes, and another 64 KiB for first reads.
const INTERACTIVE_PERMITS: usize = 16;
/// The buffers that a worker thread keeps.
const MAX_SPARE: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter::from_fn;
    use std::task::{Context, Poll, Waker};

    fn acquire(permits: &BufferPermits, class: Class) -> Option<OwnedSemaphorePermit> {
        let mut context = Context::from_waker(Waker::noop());
        match permits
            .semaphore(class)
            .poll_acquire_many(&mut context, class.permits())
        {
            Poll::Ready(permits) => permits,
            Poll::Pending => None,
        }
    }

    #[test]
    fn interactive_reads_have_64_kib_of_their_own_whatever_bulk_and_first_reads_hold() {
        let permits = BufferPermits::new();
        let _bulk: Vec<_> = from_fn(|| acquire(&permits, Class::Bulk)).collect();
        let beginning: Vec<_> = from_fn(|| acquire(&permits, Class::Beginning)).collect();
        assert_eq!(beginning.len() * Class::Beginning.longest_read(BUFFER_BYTES), 64 * 1024);
        let interactive: Vec<_> = from_fn(|| acquire(&permits, Class::Interactive)).collect();
        assert_eq!(
            interactive.len() * Class::Interactive.longest_read(BUFFER_BYTES),
            64 * 1024
        );
    }

    #[test]
    fn a_full_read_makes_a_stream_bulk_and_a_short_one_makes_it_interactive() {
        for (share, longest) in [(BUFFER_BYTES, 4096), (1024, 1024)] {
            assert_eq!(Class::after_read(0, longest), Class::Interactive);
            assert_eq!(Class::after_read(longest - 1, longest), Class::Interactive);
            assert_eq!(Class::after_read(longest, longest), Class::Bulk);
            assert_eq!(Class::Bulk.longest_read(share), share);
        }
    }

    #[test]
    fn two_bulk_reads_are_unsent_at_most_and_a_copied_one_frees_its_buffer() {
        let permits = BufferPermits::new();
        let acquire = || acquire(&permits, Class::Bulk).map(SendBuffer::new);
        let mut slices: Vec<Slice> = from_fn(acquire).map(|buffer| buffer.slice(BUFFER_BYTES)).collect();
        assert_eq!(slices.len(), 2);
        slices.pop();
        let (bytes, kept) = acquire().unwrap().copy(100, BUFFER_BYTES);
        assert_eq!((bytes.len(), kept.unwrap().num_permits()), (100, 1));
        assert!(acquire().is_some());
    }
}
