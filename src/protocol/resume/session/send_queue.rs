//! The frames that are to be written to a connection. The bytes of streams stay where they are kept.

use std::collections::VecDeque;
use std::io::IoSlice;

use crate::protocol::resume::frame::{Frame, Output, data_head, encode_data};

/// Frames in their order, and how much of them was written.
#[derive(Debug, Default)]
pub(in crate::protocol::resume) struct SendQueue {
    /// All but the bytes of streams, which are here only as far as they were [copied](Self::copies).
    bytes: Vec<u8>,
    /// The number of `bytes` that were written.
    written: usize,
    parts: VecDeque<StreamRange>,
    /// The bytes of all parts that are still to be written.
    in_parts: usize,
}

/// A run of the stream's bytes. It follows the first `after` of the other bytes.
#[derive(Clone, Copy, Debug)]
struct StreamRange {
    after: usize,
    offset: u64,
    /// The bytes that are still to be written. The end of a stream has none: its frame has all.
    left: usize,
}

impl SendQueue {
    /// Returns whether nothing is left to be written.
    pub(in crate::protocol::resume) fn is_empty(&self) -> bool {
        self.written >= self.bytes.len() && self.parts.is_empty()
    }

    /// Forgets what was written. An idle session keeps hardly any memory.
    pub(in crate::protocol::resume) fn clear(&mut self) {
        self.bytes.clear();
        self.written = 0;
        self.parts.clear();
        self.in_parts = 0;
        if self.bytes.capacity() > KEPT_WHEN_IDLE {
            self.bytes = Vec::new();
            self.parts = VecDeque::new();
        }
    }

    /// Takes frames with copies of the bytes of streams, for a connection that takes one piece of memory at a time.
    pub(in crate::protocol::resume) fn copies(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Returns the bytes to be written next, in at most as many pieces as there are slices. `kept` has the bytes of the stream from
    /// an offset on, so many of them. Returns the number of pieces, or `None` if `kept` lacks bytes of a frame.
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
        for part in &self.parts {
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

    /// So many bytes were written. Returns the stream offset written so far, or `None` if no byte of the stream was written.
    pub(in crate::protocol::resume) fn advance(&mut self, mut count: usize) -> Option<u64> {
        let mut carried = None;
        while let Some(part) = self.parts.front_mut() {
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
            self.parts.pop_front();
        }
        self.written += count;
        carried
    }

    /// All that is left, in one piece.
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

    /// The bytes of memory.
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
        self.parts.len() >= MAX_RANGES
    }

    fn frame(&mut self, frame: Frame) {
        frame.encode(&mut self.bytes);
        if let Frame::Fin { offset } = frame {
            self.parts.push_back(StreamRange {
                after: self.bytes.len(),
                offset: offset.saturating_add(1),
                left: 0,
            });
        }
    }

    fn data(&mut self, offset: u64, (first, second): (&[u8], &[u8])) {
        let left = first.len() + second.len();
        data_head(&mut self.bytes, offset, left);
        self.parts.push_back(StreamRange {
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
/// The most frames of a stream at a time.
const MAX_RANGES: usize = 8;
/// The most pieces: a head and two pieces for each part, and the frames after them.
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
            let mut outbox = SendQueue::default();
            outbox.frame(Frame::Ping(7));
            fill(&mut |at, count| outbox.data(at, kept(at, count).unwrap()));
            outbox.frame(Frame::Fin { offset: 81 });
            outbox.frame(Frame::Pong(8));
            assert_eq!(outbox.length(), whole.len());
            let (mut written, mut carried) = (Vec::new(), 10);
            while !outbox.is_empty() {
                #[expect(
                    clippy::redundant_closure,
                    reason = "`kept` itself would borrow for as long as the outbox lives"
                )]
                let rest = outbox.rest(|at, count| kept(at, count)).unwrap();
                assert_eq!([&*written, &*rest].concat(), whole);
                let count = rest.len().min(step);
                written.extend_from_slice(&rest[..count]);
                if let Some(offset) = outbox.advance(count) {
                    assert!(offset >= carried);
                    carried = offset;
                }
            }
            assert_eq!((written == whole, carried), (true, 82));
        }
    }

    #[test]
    fn bytes_that_are_not_kept_are_not_replaced() {
        let mut outbox = SendQueue::default();
        outbox.data(5, (b"abc", b""));
        assert!(outbox.rest(|_, _| None).is_none());
    }
}
