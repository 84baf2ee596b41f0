//! Memory that a connection's downloads are read into, and that the socket sends them from: nothing is copied between.

use std::cell::RefCell;
use std::convert::Infallible;
use std::mem::take;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::PollSemaphore;

/// What the streams of a connection and the connection itself share of what is still to be sent.
#[derive(Clone, Debug)]
pub(super) struct SendBuffers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Of a connection's bulk so much may be on its way. The streams that want to send more take turns.
    bulk: Arc<Semaphore>,
    /// Of all that comes in few bytes, so much: it is not queued behind bulk.
    few: Arc<Semaphore>,
    /// What h2 was shown last of a chunk, and is about to write.
    shown: Mutex<Option<Slice>>,
    /// Of streams whose last was written, by which they hear that it has left. `None` when nothing will leave any more.
    leaving: Mutex<Option<Vec<oneshot::Sender<Infallible>>>>,
}

/// A part of a room that does not change any more.
#[derive(Clone, Debug)]
pub(super) struct Slice {
    room: Arc<SendBuffer>,
    start: usize,
    end: usize,
}

/// Whose turn it is: a stream that had few bytes to send has few again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Interactive,
    Bulk,
}

/// Room for one read. Its memory goes back to the worker thread, which has some at hand.
#[derive(Debug)]
pub(super) struct SendBuffer {
    memory: Vec<u8>,
    permits: OwnedSemaphorePermit,
}

impl SendBuffers {
    pub(super) fn new() -> Self {
        Self(Arc::new(Shared {
            bulk: Arc::new(Semaphore::new(BULK_PERMITS)),
            few: Arc::new(Semaphore::new(INTERACTIVE_PERMITS)),
            shown: Mutex::default(),
            leaving: Mutex::new(Some(Vec::new())),
        }))
    }

    /// Where a stream waits for its turn.
    pub(super) fn permits(&self, class: Class) -> PollSemaphore {
        PollSemaphore::new(Arc::clone(match class {
            Class::Interactive => &self.0.few,
            Class::Bulk => &self.0.bulk,
        }))
    }

    /// These bytes are what h2 writes next: the wire is given nothing but their address.
    pub(super) fn show(&self, slice: &Slice) {
        *self.last_shown() = Some(slice.clone());
    }

    /// The bytes with their room, if they are those that were shown. h2 writes the head of their frame before them.
    pub(super) fn shown(&self, bytes: &[u8]) -> Option<Slice> {
        let stands_there = |known: &mut Slice| {
            let known = known.bytes();
            std::ptr::eq(known.as_ptr(), bytes.as_ptr()) && bytes.len() <= known.len()
        };
        let mut shown = self.last_shown().take_if(stands_there)?;
        shown.end = shown.start + bytes.len();
        Some(shown)
    }

    /// Everything that was shown is written: what was copied, as a small frame is, holds no room any more.
    pub(super) fn written(&self) {
        drop(self.last_shown().take());
    }

    /// The last of a stream is written, or never will be: it waits for what was written before.
    pub(super) fn leaves(&self, stream: oneshot::Sender<Infallible>) {
        if let Some(leaving) = self.leaving().as_mut() {
            leaving.push(stream);
        }
    }

    /// All that was written has left.
    pub(super) fn left(&self) {
        let left = self.leaving().as_mut().map(take);
        drop(left);
    }

    /// Nothing will leave any more.
    pub(super) fn abandoned(&self) {
        let left = self.leaving().take();
        drop(left);
    }

    fn leaving(&self) -> MutexGuard<'_, Option<Vec<oneshot::Sender<Infallible>>>> {
        self.0.leaving.lock()
    }

    fn last_shown(&self) -> MutexGuard<'_, Option<Slice>> {
        self.0.shown.lock()
    }
}

impl Class {
    /// What one turn takes of what there may be.
    pub(super) fn permits(self) -> u32 {
        match self {
            Self::Interactive => 1,
            Self::Bulk => BUFFER_PERMITS,
        }
    }

    /// The most that is read in one turn.
    pub(super) fn most(self) -> usize {
        match self {
            Self::Interactive => PERMIT_BYTES,
            Self::Bulk => BUFFER_BYTES,
        }
    }

    /// Of the turn after one that gave so many bytes.
    pub(super) fn after(read: usize) -> Self {
        if read < PERMIT_BYTES {
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

    /// The first bytes of it.
    pub(super) fn slice(self, length: usize) -> Slice {
        Slice {
            end: length.min(self.memory.len()),
            start: 0,
            room: Arc::new(self),
        }
    }

    /// A few bytes of it, without the rest of it.
    pub(super) fn copy(mut self, length: usize) -> (Vec<u8>, Option<OwnedSemaphorePermit>) {
        let permits = self.permits.split(length.div_ceil(PERMIT_BYTES));
        (self.memory.get(..length).unwrap_or_default().to_vec(), permits)
    }
}

impl Drop for SendBuffer {
    fn drop(&mut self) {
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < MOST_SPARE {
                spare.push(take(&mut self.memory));
            }
        });
    }
}

impl Slice {
    pub(super) fn bytes(&self) -> &[u8] {
        self.room.memory.get(self.start..self.end).unwrap_or_default()
    }

    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    /// Leaves the first bytes out.
    pub(super) fn advance(&mut self, count: usize) {
        self.start = self.end.min(self.start + count);
    }
}

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The most that one read gives: the fewer and larger they are, the fewer times target and client are woken.
pub(super) const BUFFER_BYTES: usize = 256 * 1024;
/// As it is counted; a read of less takes less of what there may be.
const PERMIT_BYTES: usize = 4096;
/// Of each room.
#[expect(clippy::cast_possible_truncation, reason = "it is 64")]
const BUFFER_PERMITS: u32 = (BUFFER_BYTES / PERMIT_BYTES) as u32;
/// Two rooms: more of them would not stay in the cache.
const BULK_PERMITS: usize = 2 * BUFFER_BYTES / PERMIT_BYTES;
/// 64 KiB.
const INTERACTIVE_PERMITS: usize = 16;
/// What a thread keeps.
const MOST_SPARE: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    fn turn(buffers: &SendBuffers) -> Option<SendBuffer> {
        let mut context = Context::from_waker(Waker::noop());
        match buffers
            .permits(Class::Bulk)
            .poll_acquire_many(&mut context, BUFFER_PERMITS)
        {
            Poll::Ready(permits) => permits.map(SendBuffer::new),
            Poll::Pending => None,
        }
    }

    #[test]
    fn few_bytes_are_read_however_much_bulk_waits_and_they_are_bounded_too() {
        let buffers = SendBuffers::new();
        let _bulk: Vec<SendBuffer> = std::iter::from_fn(|| turn(&buffers)).collect();
        let mut few = buffers.permits(Class::Interactive);
        let mut context = Context::from_waker(Waker::noop());
        let taken: Vec<_> =
            std::iter::from_fn(
                || match few.poll_acquire_many(&mut context, Class::Interactive.permits()) {
                    Poll::Ready(permits) => permits,
                    Poll::Pending => None,
                },
            )
            .collect();
        assert_eq!(taken.len() * Class::Interactive.most(), 64 * 1024);
    }

    #[test]
    fn a_stream_whose_read_was_full_is_in_bulk_until_one_is_short() {
        assert_eq!(Class::after(0), Class::Interactive);
        assert_eq!(Class::after(Class::Interactive.most() - 1), Class::Interactive);
        assert_eq!(Class::after(Class::Interactive.most()), Class::Bulk);
    }

    #[test]
    fn two_reads_may_be_on_their_way_and_a_small_one_leaves_its_place() {
        let buffers = SendBuffers::new();
        let mut slices: Vec<Slice> = std::iter::from_fn(|| turn(&buffers))
            .map(|room| room.slice(BUFFER_BYTES))
            .collect();
        assert_eq!(slices.len(), 2);
        slices.pop();
        let (bytes, permits) = turn(&buffers).unwrap().copy(100);
        assert_eq!((bytes.len(), permits.unwrap().num_permits()), (100, 1));
        assert!(turn(&buffers).is_some());
    }

    #[test]
    fn bytes_are_shared_only_where_they_stand() {
        let buffers = SendBuffers::new();
        let mut slice = turn(&buffers).unwrap().slice(1000);
        slice.advance(100);
        buffers.show(&slice);
        let shared = buffers.shown(&slice.bytes()[..500]).unwrap();
        assert!(std::ptr::eq(shared.bytes(), &raw const slice.bytes()[..500]));
        // Once, and no other bytes, nor more than were shown, nor any that are written.
        assert!(buffers.shown(slice.bytes()).is_none());
        buffers.show(&slice);
        assert!(buffers.shown(&[0; 500]).is_none());
        buffers.written();
        assert!(buffers.shown(slice.bytes()).is_none());
        let short = {
            let mut short = slice.clone();
            short.end -= 1;
            short
        };
        buffers.show(&short);
        assert!(buffers.shown(slice.bytes()).is_none());
    }
}
