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
pub(super) struct Outbox(Arc<Shared>);

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
    room: Arc<Room>,
    start: usize,
    end: usize,
}

/// Whose turn it is: a stream that had few bytes to send has few again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Few,
    Bulk,
}

/// Room for one read. Its memory goes back to the worker thread, which has some at hand.
#[derive(Debug)]
pub(super) struct Room {
    memory: Vec<u8>,
    units: OwnedSemaphorePermit,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self(Arc::new(Shared {
            bulk: Arc::new(Semaphore::new(MOST_BULK)),
            few: Arc::new(Semaphore::new(MOST_FEW)),
            shown: Mutex::default(),
            leaving: Mutex::new(Some(Vec::new())),
        }))
    }

    /// Where a stream waits for its turn.
    pub(super) fn turns(&self, lane: Lane) -> PollSemaphore {
        PollSemaphore::new(Arc::clone(match lane {
            Lane::Few => &self.0.few,
            Lane::Bulk => &self.0.bulk,
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

impl Lane {
    /// What one turn takes of what there may be.
    pub(super) fn units(self) -> u32 {
        match self {
            Self::Few => 1,
            Self::Bulk => UNITS,
        }
    }

    /// The most that is read in one turn.
    pub(super) fn most(self) -> usize {
        match self {
            Self::Few => UNIT,
            Self::Bulk => ROOM,
        }
    }

    /// Of the turn after one that gave so many bytes.
    pub(super) fn after(read: usize) -> Self {
        if read < UNIT { Self::Few } else { Self::Bulk }
    }
}

impl Room {
    pub(super) fn new(units: OwnedSemaphorePermit) -> Self {
        let mut memory = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
        memory.resize(ROOM, 0);
        Self { memory, units }
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
        let units = self.units.split(length.div_ceil(UNIT));
        (self.memory.get(..length).unwrap_or_default().to_vec(), units)
    }
}

impl Drop for Room {
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
pub(super) const ROOM: usize = 256 * 1024;
/// As it is counted; a read of less takes less of what there may be.
const UNIT: usize = 4096;
/// Of each room.
#[expect(clippy::cast_possible_truncation, reason = "it is 64")]
const UNITS: u32 = (ROOM / UNIT) as u32;
/// Two rooms: more of them would not stay in the cache.
const MOST_BULK: usize = 2 * ROOM / UNIT;
/// 64 KiB.
const MOST_FEW: usize = 16;
/// What a thread keeps.
const MOST_SPARE: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    fn turn(outbox: &Outbox) -> Option<Room> {
        let mut context = Context::from_waker(Waker::noop());
        match outbox.turns(Lane::Bulk).poll_acquire_many(&mut context, UNITS) {
            Poll::Ready(units) => units.map(Room::new),
            Poll::Pending => None,
        }
    }

    #[test]
    fn few_bytes_are_read_however_much_bulk_waits_and_they_are_bounded_too() {
        let outbox = Outbox::new();
        let _bulk: Vec<Room> = std::iter::from_fn(|| turn(&outbox)).collect();
        let mut few = outbox.turns(Lane::Few);
        let mut context = Context::from_waker(Waker::noop());
        let taken: Vec<_> = std::iter::from_fn(|| match few.poll_acquire_many(&mut context, Lane::Few.units()) {
            Poll::Ready(units) => units,
            Poll::Pending => None,
        })
        .collect();
        assert_eq!(taken.len() * Lane::Few.most(), 64 * 1024);
    }

    #[test]
    fn a_stream_whose_read_was_full_is_in_bulk_until_one_is_short() {
        assert_eq!(Lane::after(0), Lane::Few);
        assert_eq!(Lane::after(Lane::Few.most() - 1), Lane::Few);
        assert_eq!(Lane::after(Lane::Few.most()), Lane::Bulk);
    }

    #[test]
    fn two_reads_may_be_on_their_way_and_a_small_one_leaves_its_place() {
        let outbox = Outbox::new();
        let mut slices: Vec<Slice> = std::iter::from_fn(|| turn(&outbox))
            .map(|room| room.slice(ROOM))
            .collect();
        assert_eq!(slices.len(), 2);
        slices.pop();
        let (bytes, units) = turn(&outbox).unwrap().copy(100);
        assert_eq!((bytes.len(), units.unwrap().num_permits()), (100, 1));
        assert!(turn(&outbox).is_some());
    }

    #[test]
    fn bytes_are_shared_only_where_they_stand() {
        let outbox = Outbox::new();
        let mut slice = turn(&outbox).unwrap().slice(1000);
        slice.advance(100);
        outbox.show(&slice);
        let shared = outbox.shown(&slice.bytes()[..500]).unwrap();
        assert!(std::ptr::eq(shared.bytes(), &raw const slice.bytes()[..500]));
        // Once, and no other bytes, nor more than were shown, nor any that are written.
        assert!(outbox.shown(slice.bytes()).is_none());
        outbox.show(&slice);
        assert!(outbox.shown(&[0; 500]).is_none());
        outbox.written();
        assert!(outbox.shown(slice.bytes()).is_none());
        let short = {
            let mut short = slice.clone();
            short.end -= 1;
            short
        };
        outbox.show(&short);
        assert!(outbox.shown(slice.bytes()).is_none());
    }
}
