//! The frames to be written to a connection. The bytes of the stream stay in their buffer.

use std::collections::VecDeque;
use std::io::IoSlice;

use crate::protocol::resume::frame::{Frame, Output, data_head, encode_data};

/// Frames in order, and how much of them was written.
#[derive(Debug, Default)]
pub(in crate::protocol::resume) struct SendQueue {
    /// The frames without the bytes of streams, except those that were [copied](Self::copies).
    bytes: Vec<u8>,
    /// The number of `bytes` that were written.
    written: usize,
    ranges: VecDeque<StreamRange>,
    /// The bytes of all parts that are not written yet.
    in_parts: usize,
}

/// A run of the stream's bytes, which follows the first `after` bytes of `SendQueue::bytes`.
#[derive(Clone, Copy, Debug)]
struct StreamRange {
    after: usize,
    offset: u64,
    /// The bytes that are not written yet. 0 for the end of the stream, whose frame has no payload of the stream.
    left: usize,
}

impl SendQueue {
    /// Returns whether nothing is left to be written.
    pub(in crate::protocol::resume) fn is_empty(&self) -> bool {
        self.written >= self.bytes.len() && self.ranges.is_empty()
    }

    /// Forgets the frames. An idle session keeps hardly any memory.
    pub(in crate::protocol::resume) fn clear(&mut self) {
        self.bytes.clear();
        self.written = 0;
        self.ranges.clear();
        self.in_parts = 0;
        if self.bytes.capacity() > KEPT_WHEN_IDLE {
            self.bytes = Vec::new();
            self.ranges = VecDeque::new();
        }
    }

    /// Returns the buffer for frames with copies of the stream's bytes, for a connection without vectored writes.
    pub(in crate::protocol::resume) fn copies(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Puts the bytes to be written next into `slices`, and returns the number of pieces; `None` if `kept` lacks bytes
    /// of a frame. `kept` returns bytes of the stream by their offset and number.
    pub(in crate::protocol::resume) fn pieces<'a>(
        &'a self,
        kept: impl Fn(u64, usize) -> Option<(&'a [u8], &'a [u8])>,
        slices: &mut [IoSlice<'a>],
    ) -> Option<usize> {
        let mut count = 0;
        let mut add = |piece: &'a [u8]| {
            if let Some(slice) = slices.get_mut(count).filter(|_| !piece.is_empty()) {
                *slice = IoSlice::new(piece);
                count += 1;
            }
        };
        let mut from = self.written;
        for part in &self.ranges {
            add(self.bytes.get(from..part.after)?);
            if part.left > 0 {
                let (first, second) = kept(part.offset, part.left)?;
                add(first);
                add(second);
            }
            from = part.after;
        }
        add(self.bytes.get(from..)?);
        Some(count)
    }

    /// Notes that `count` bytes were written. Returns the stream offset written so far, if it has changed.
    pub(in crate::protocol::resume) fn advance(&mut self, mut count: usize) -> Option<u64> {
        let mut carried = None;
        while let Some(part) = self.ranges.front_mut() {
            let before = part.after - self.written;
            if count < before {
                break;
            }
            count -= before;
            self.written = part.after;
            let of_part = count.min(part.left);
            count -= of_part;
            part.left -= of_part;
            part.offset += of_part as u64;
            self.in_parts -= of_part;
            carried = Some(part.offset);
            if part.left > 0 {
                return carried;
            }
            self.ranges.pop_front();
        }
        self.written += count;
        carried
    }

    /// Returns all unwritten bytes in one piece; `None` if `kept` lacks some.
    pub(in crate::protocol::resume) fn rest<'a>(
        &'a self,
        kept: impl Fn(u64, usize) -> Option<(&'a [u8], &'a [u8])>,
    ) -> Option<Vec<u8>> {
        let mut slices = [IoSlice::new(&[]); MAX_PIECES];
        let count = self.pieces(kept, &mut slices)?;
        let mut rest = Vec::new();
        slices
            .get(..count)?
            .iter()
            .for_each(|slice| rest.extend_from_slice(slice));
        Some(rest)
    }

    /// Returns the memory of the frames in bytes.
    pub(in crate::protocol::resume) fn memory(&self) -> usize {
        self.bytes.capacity()
    }
}

impl Output for SendQueue {
    const COPIES: bool = false;

    fn length(&self) -> usize {
        self.bytes.len() + self.in_parts
    }

    fn is_full(&self) -> bool {
        self.ranges.len() >= MAX_RANGES
    }

    fn frame(&mut self, frame: Frame) {
        frame.encode(&mut self.bytes);
        if let Frame::Fin { offset } = frame {
            self.ranges.push_back(StreamRange {
                after: self.bytes.len(),
                offset: offset.saturating_add(1),
                left: 0,
            });
        }
    }

    fn data(&mut self, offset: u64, (first, second): (&[u8], &[u8])) {
        let left = first.len() + second.len();
        data_head(&mut self.bytes, offset, left);
        self.ranges.push_back(StreamRange {
            after: self.bytes.len(),
            offset,
            left,
        });
        self.in_parts += left;
    }
}

impl Output for Vec<u8> {
    const COPIES: bool = true;

    fn length(&self) -> usize {
        self.len()
    }

    fn is_full(&self) -> bool {
        false
    }

    fn frame(&mut self, frame: Frame) {
        frame.encode(self);
    }

    fn data(&mut self, offset: u64, bytes: (&[u8], &[u8])) {
        encode_data(self, offset, bytes);
    }
}

/// The memory in bytes that an idle connection keeps for frames.
const KEPT_WHEN_IDLE: usize = 512;
/// The maximum number of queued frames of a stream.
const MAX_RANGES: usize = 8;
/// The maximum number of pieces: a head and two pieces for each part, and the frames after them.
pub(in crate::protocol::resume) const MAX_PIECES: usize = 3 * MAX_RANGES + 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_written_whole_in_whatever_pieces() {
        let stream: Vec<u8> = (0..100).collect();
        let kept = |offset: u64, count: usize| {
            let bytes = stream.get(usize::try_from(offset).unwrap()..)?.get(..count)?;
            Some(bytes.split_at(count / 3))
        };
        let mut whole = Vec::new();
        let fill = |out: &mut dyn FnMut(u64, usize)| [(10, 40), (50, 1), (51, 30)].map(|(at, count)| out(at, count));
        Frame::Ping(7).encode(&mut whole);
        fill(&mut |at, count| whole.data(at, kept(at, count).unwrap()));
        Frame::Fin { offset: 81 }.encode(&mut whole);
        Frame::Pong(8).encode(&mut whole);
        for step in 1..whole.len() {
            let mut queue = SendQueue::default();
            queue.frame(Frame::Ping(7));
            fill(&mut |at, count| queue.data(at, kept(at, count).unwrap()));
            queue.frame(Frame::Fin { offset: 81 });
            queue.frame(Frame::Pong(8));
            assert_eq!(queue.length(), whole.len());
            let (mut written, mut carried) = (Vec::new(), 10);
            while !queue.is_empty() {
                #[expect(
                    clippy::redundant_closure,
                    reason = "`kept` itself would borrow for as long as the outbox lives"
                )]
                let rest = queue.rest(|at, count| kept(at, count)).unwrap();
                assert_eq!([&*written, &*rest].concat(), whole);
                let count = rest.len().min(step);
                written.extend_from_slice(&rest[..count]);
                if let Some(offset) = queue.advance(count) {
                    assert!(offset >= carried);
                    carried = offset;
                }
            }
            assert_eq!((written == whole, carried), (true, 82));
        }
    }

    #[test]
    fn bytes_that_are_not_kept_are_not_replaced() {
        let mut queue = SendQueue::default();
        queue.data(5, (b"abc", b""));
        assert!(queue.rest(|_, _| None).is_none());
    }
}
