//! A queue of bytes that frees its memory.

use std::mem;

/// A queue of bytes. Its memory is limited by the maximum length. An empty queue keeps at most 1 KiB.
///
/// The queue is a ring: the bytes begin at `start`, and wrap from the end of the memory to its beginning. `VecDeque` is
/// a ring, too, but has no [`spare`](Self::spare) memory for a read to fill.
#[derive(Debug, Default)]
pub(in crate::protocol::resume) struct Buffer {
    /// Its length is the memory that was ever used: the rest of the capacity is not zeroed before it is needed.
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    pub(in crate::protocol::resume) fn len(&self) -> usize {
        self.length
    }

    pub(in crate::protocol::resume) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Appends bytes. `max` is the maximum length of the queue; at most a quarter more memory is reserved.
    pub(in crate::protocol::resume) fn push(&mut self, bytes: &[u8], max: usize) {
        let needed = self.length + bytes.len();
        let held = self.memory.capacity();
        if needed > held {
            // Memory doubles as in a vector, so that not every push moves all bytes, but only up to `max`. Near `max`,
            // or beyond it after the window has shrunk, memory grows by a quarter, so that little stays unused.
            let ahead = held.saturating_mul(2).min(max.max(held + held / 4));
            self.grow(needed.max(ahead));
        }
        let (end, room) = self.end();
        let (first, second) = bytes.split_at(bytes.len().min(room));
        self.put(end, first);
        self.put(0, second);
        self.length = needed;
    }

    /// Returns memory after the last byte, for `max` bytes or at least half of them. `None` if there is less in one
    /// piece, or if the queue is empty: memory is reserved by the first [`push`](Self::push).
    pub(in crate::protocol::resume) fn spare(&mut self, max: usize) -> Option<&mut [u8]> {
        let (end, room) = self.end();
        if self.length == 0 || room < max.div_ceil(2) {
            return None;
        }
        let to = end + room.min(max);
        if self.memory.len() < to {
            self.memory.resize(to, 0);
        }
        self.memory.get_mut(end..to)
    }

    /// Appends the first `count` bytes of [`spare`](Self::spare).
    pub(in crate::protocol::resume) fn fill(&mut self, count: usize) {
        let (end, room) = self.end();
        // Memory that was never used is not part of the queue.
        self.length += count.min(room).min(self.memory.len().saturating_sub(end));
    }

    /// Removes the first `count` bytes.
    pub(in crate::protocol::resume) fn release(&mut self, count: usize) {
        let count = count.min(self.length);
        self.length -= count;
        self.start += count;
        if self.start >= self.memory.capacity() {
            self.start -= self.memory.capacity();
        }
        self.tidy();
    }

    /// Removes all but the first `length` bytes.
    pub(in crate::protocol::resume) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
        self.tidy();
    }

    /// Removes all bytes.
    pub(in crate::protocol::resume) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Frees the memory that holds no byte.
    pub(in crate::protocol::resume) fn shrink(&mut self) {
        self.move_to(self.length);
    }

    /// Returns the first bytes, up to where the ring wraps.
    pub(in crate::protocol::resume) fn front(&self) -> &[u8] {
        self.pieces().0
    }

    /// Returns `count` bytes from `start` on, in two pieces. `None` if there are fewer.
    pub(in crate::protocol::resume) fn range(&self, start: usize, count: usize) -> Option<(&[u8], &[u8])> {
        let (first, second) = self.pieces();
        let end = start.checked_add(count)?;
        let split = first.len();
        let first = first.get(start.min(split)..end.min(split))?;
        let second = second.get(start.max(split) - split..end.max(split) - split)?;
        Some((first, second))
    }

    /// Returns the memory in bytes.
    pub(in crate::protocol::resume) fn memory(&self) -> usize {
        self.memory.capacity()
    }

    fn pieces(&self) -> (&[u8], &[u8]) {
        let first = self.length.min(self.memory.capacity() - self.start);
        let piece = |from: usize, count: usize| self.memory.get(from..from + count).unwrap_or_default();
        (piece(self.start, first), piece(0, self.length - first))
    }

    /// Returns where the next byte goes, and how many bytes are free there in one piece.
    fn end(&self) -> (usize, usize) {
        let capacity = self.memory.capacity();
        let end = self.start + self.length;
        if end < capacity {
            (end, capacity - end)
        } else {
            (end - capacity, capacity - self.length)
        }
    }

    /// Writes bytes at `at`, which is at most the end of the used memory.
    fn put(&mut self, at: usize, bytes: &[u8]) {
        let used = bytes.len().min(self.memory.len().saturating_sub(at));
        let (over, behind) = bytes.split_at(used);
        if let Some(memory) = self.memory.get_mut(at..at + used) {
            memory.copy_from_slice(over);
        }
        self.memory.extend_from_slice(behind);
    }

    /// Reserves memory for `capacity` bytes, in place if the allocator can: each fresh page costs a page fault.
    fn grow(&mut self, capacity: usize) {
        let is_wrapped = self.start + self.length > self.memory.len();
        if is_wrapped {
            self.move_to(capacity);
        } else {
            self.memory.reserve_exact(capacity - self.memory.len());
        }
    }

    /// Moves the bytes to other memory, of `capacity` bytes.
    fn move_to(&mut self, capacity: usize) {
        let mut memory = Vec::with_capacity(capacity);
        let (first, second) = self.pieces();
        memory.extend_from_slice(first);
        memory.extend_from_slice(second);
        self.memory = memory;
        self.start = 0;
    }

    fn tidy(&mut self) {
        if self.length > 0 {
            return;
        }
        self.start = 0;
        if self.memory.capacity() > KEPT_WHEN_EMPTY {
            drop(mem::take(&mut self.memory));
        }
    }
}

/// The maximum memory of an empty queue in bytes: enough for keystrokes, and little for thousands of idle sessions.
const KEPT_WHEN_EMPTY: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn memory_is_bounded_and_given_back() {
        let mut buffer = Buffer::default();
        for _ in 0..100 {
            buffer.push(&[1; 1000], 100_000);
        }
        assert!(buffer.memory() <= 100_000, "{}", buffer.memory());
        buffer.release(99_999);
        assert_eq!(buffer.front(), [1]);
        let mut shrunk = Buffer::default();
        shrunk.push(&[1; 5000], 100_000);
        shrunk.release(4999);
        shrunk.shrink();
        assert_eq!((shrunk.front(), shrunk.memory()), (&[1][..], 1));
        buffer.release(7);
        assert_eq!((buffer.len(), buffer.memory()), (0, 0));
    }

    #[test]
    fn a_range_is_the_same_wherever_the_memory_wraps() {
        for shift in 0..16 {
            let mut buffer = Buffer::default();
            buffer.push(&[0; 16], 16);
            buffer.release(16);
            buffer.push(&vec![0; shift], 16);
            buffer.push(b"x", 16);
            buffer.release(shift);
            buffer.push(b"abcdefgh", 16);
            for start in 0..9 {
                for count in 0..=9 - start {
                    let (first, second) = buffer.range(start, count).unwrap();
                    assert_eq!([first, second].concat(), b"xabcdefgh"[start..start + count]);
                }
            }
            assert_eq!((buffer.range(9, 1), buffer.range(10, 0)), (None, None));
        }
    }

    #[test]
    fn an_empty_queue_has_no_spare_memory() {
        let mut buffer = Buffer::default();
        assert!(buffer.spare(1).is_none());
        buffer.push(&[1; 100], 100);
        assert!(buffer.spare(1).is_none());
        buffer.release(100);
        assert!(buffer.spare(1).is_none());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize),
        Fill(usize, usize),
        Release(usize),
        Truncate(usize),
        Shrink,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..900_usize).prop_map(Step::Push),
            4 => (0..900_usize, 0..900_usize).prop_map(|(max, count)| Step::Fill(max, count)),
            6 => (0..900_usize).prop_map(Step::Release),
            1 => (0..2_000_usize).prop_map(Step::Truncate),
            1 => Just(Step::Shrink),
        ]
    }

    proptest! {
        #[test]
        fn it_holds_what_a_queue_holds(steps in proptest::collection::vec(step(), 0..200)) {
            let (mut buffer, mut queue) = (Buffer::default(), VecDeque::new());
            let mut next = (0..=250_u8).cycle();
            for step in steps {
                match step {
                    Step::Push(count) => {
                        let bytes: Vec<u8> = next.by_ref().take(count).collect();
                        buffer.push(&bytes, 4_000);
                        queue.extend(bytes);
                    }
                    Step::Fill(max, count) => {
                        let Some(spare) = buffer.spare(max) else { continue };
                        prop_assert!(spare.len() <= max && spare.len() * 2 >= max);
                        let count = count.min(spare.len());
                        for byte in &mut spare[..count] {
                            *byte = next.next().unwrap();
                            queue.push_back(*byte);
                        }
                        // A read may write beyond the bytes that it reports.
                        spare[count..].fill(255);
                        buffer.fill(count);
                    }
                    Step::Release(count) => {
                        buffer.release(count);
                        queue.drain(..count.min(queue.len()));
                    }
                    Step::Truncate(length) => {
                        buffer.truncate(length);
                        queue.truncate(length);
                    }
                    Step::Shrink => buffer.shrink(),
                }
                let (first, second) = buffer.range(0, buffer.len()).unwrap();
                prop_assert!(first.iter().chain(second).eq(&queue));
                prop_assert_eq!(first, buffer.front());
            }
        }
    }
}
