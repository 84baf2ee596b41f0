//! Bytes in the order in which they came, in memory that is given back.

use std::collections::VecDeque;

/// A queue of bytes. Its memory is bounded by what it may hold, and is given back when it is empty.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    bytes: VecDeque<u8>,
}

impl Buffer {
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends bytes. `most` is how many it is to hold at the most; memory is not taken ahead for more.
    pub(super) fn push(&mut self, bytes: &[u8], most: usize) {
        let needed = self.bytes.len() + bytes.len();
        if needed > self.bytes.capacity() {
            // Doubled, as a vector's is, or else each push would move all: but hardly more than will be used. More than
            // `most` comes only behind a window that has become less.
            let held = self.bytes.capacity();
            let ahead = held.saturating_mul(2).min(most.max(held + held / 4));
            self.bytes.reserve_exact(needed.max(ahead) - self.bytes.len());
        }
        self.bytes.extend(bytes);
    }

    /// Removes the first bytes.
    pub(super) fn release(&mut self, count: usize) {
        self.bytes.drain(..count.min(self.bytes.len()));
        if self.bytes.is_empty() && self.bytes.capacity() > KEPT_WHEN_EMPTY {
            self.clear();
        }
    }

    /// Removes all.
    pub(super) fn clear(&mut self) {
        self.bytes = VecDeque::new();
    }

    /// The first bytes, as many as lie together.
    pub(super) fn front(&self) -> &[u8] {
        self.bytes.as_slices().0
    }

    /// So many bytes from `start` on, in two pieces. `None` if there are not so many.
    pub(super) fn range(&self, start: usize, count: usize) -> Option<(&[u8], &[u8])> {
        let (first, second) = self.bytes.as_slices();
        let end = start.checked_add(count)?;
        let split = first.len();
        let first = first.get(start.min(split)..end.min(split))?;
        let second = second.get(start.max(split) - split..end.max(split) - split)?;
        Some((first, second))
    }

    /// The bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity()
    }
}

/// The memory in bytes that an empty queue keeps: keystrokes need no new memory, and thousands of idle sessions little.
const KEPT_WHEN_EMPTY: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_given_back() {
        let mut buffer = Buffer::default();
        for _ in 0..100 {
            buffer.push(&[1; 1000], 100_000);
        }
        assert!(buffer.memory() <= 100_000, "{}", buffer.memory());
        buffer.release(99_999);
        assert_eq!(buffer.front(), [1]);
        buffer.release(7);
        assert_eq!((buffer.len(), buffer.memory()), (0, 0));
    }

    #[test]
    fn a_range_is_the_same_wherever_the_memory_wraps() {
        for shift in 0..16 {
            let mut buffer = Buffer {
                bytes: VecDeque::with_capacity(16),
            };
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
}
