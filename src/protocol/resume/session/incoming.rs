//! The stream that a side receives: each byte is passed on once, in order, and then acknowledged.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use super::buffer::Buffer;
use crate::protocol::resume::frame::ProtocolError;
use crate::protocol::resume::{INITIAL_WINDOW, MIN_WINDOW};

/// Passes bytes of the stream on at once, and returns how many it took.
pub(in crate::protocol::resume) type Pass<'a> = &'a mut dyn FnMut(&[IoSlice<'_>]) -> usize;

/// The bytes of a stream that were received and not yet passed on.
///
/// `told <= passed <= expected`, and `buffer` has the bytes from `passed` to `expected`, without the end of the stream.
#[derive(Debug)]
pub(in crate::protocol::resume) struct Incoming {
    buffer: Buffer,
    /// The maximum number of bytes from `passed` on that the other side may send.
    window: usize,
    /// The maximum number of bytes that the other side keeps; `None` without a KEEPS on this connection.
    kept: Option<usize>,
    /// The offset up to which all bytes have been passed on.
    passed: u64,
    /// The offset of the next byte to arrive.
    expected: u64,
    /// True if the end was received.
    is_finished: bool,
    /// The offset up to which this side has permitted bytes, exclusive.
    limit: u64,
    /// The offset of the last acknowledgement on this connection; `None` if there was none.
    told: Option<u64>,
    /// The time since which there is something to acknowledge; `None` if there is not.
    untold_since: Option<Instant>,
    /// True if arriving bytes are dropped, as nothing takes them any more.
    is_closed: bool,
}

impl Incoming {
    pub(in crate::protocol::resume) fn new(window: usize) -> Self {
        Self {
            buffer: Buffer::default(),
            window,
            kept: None,
            passed: 0,
            expected: 0,
            is_finished: false,
            limit: INITIAL_WINDOW.into(),
            told: None,
            untold_since: None,
            is_closed: false,
        }
    }

    /// Returns the offset of the next byte to arrive.
    pub(in crate::protocol::resume) fn expected(&self) -> u64 {
        self.expected
    }

    /// Expects bytes, which are [taken](Self::take) next. Returns `false` if the stream is closed: they are dropped.
    fn expect(&mut self, offset: u64, bytes: usize) -> Result<bool, ProtocolError> {
        if self.is_finished || offset != self.expected {
            return Err(ProtocolError::Offset);
        }
        let end = offset.checked_add(bytes as u64).ok_or(ProtocolError::Offset)?;
        if end > self.limit {
            return Err(ProtocolError::Window);
        }
        self.expected = end;
        Ok(!self.is_closed)
    }

    /// Takes all bytes that were [expected](Self::expect) and not yet taken. If no earlier bytes are held, `pass` gets
    /// the new ones first, and returns how many it took.
    fn take(&mut self, pieces: &[IoSlice<'_>], now: Instant, pass: Pass<'_>) {
        let all = pieces.iter().map(|piece| piece.len()).sum();
        let mut passed = if self.buffer.is_empty() {
            pass(pieces).min(all)
        } else {
            0
        };
        if passed > 0 {
            self.passed += passed as u64;
            self.note(now);
        }
        for piece in pieces {
            let of_piece = passed.min(piece.len());
            passed -= of_piece;
            self.buffer.push(piece.get(of_piece..).unwrap_or_default(), self.window);
        }
    }

    /// Notes that the end has arrived.
    ///
    /// # Errors
    /// The end does not follow the last byte, or the stream had ended before.
    pub(in crate::protocol::resume) fn finish(&mut self, offset: u64) -> Result<(), ProtocolError> {
        if self.is_finished || offset != self.expected {
            return Err(ProtocolError::Offset);
        }
        self.expected = offset.checked_add(1).ok_or(ProtocolError::Offset)?;
        self.is_finished = true;
        Ok(())
    }

    /// Returns the first bytes to be passed on; empty if there are none now.
    pub(in crate::protocol::resume) fn readable(&self) -> &[u8] {
        self.buffer.front()
    }

    /// Returns whether only the end of the stream is left to be passed on.
    pub(in crate::protocol::resume) fn is_at_fin(&self) -> bool {
        self.is_finished && !self.is_closed && self.passed + 1 == self.expected
    }

    /// Notes that `bytes` bytes of [`readable`](Self::readable) were passed on.
    pub(in crate::protocol::resume) fn pass(&mut self, bytes: usize, now: Instant) {
        let bytes = bytes.min(self.buffer.len());
        self.buffer.release(bytes);
        self.passed += bytes as u64;
        self.note(now);
    }

    /// Notes that the end was passed on.
    pub(in crate::protocol::resume) fn pass_fin(&mut self, now: Instant) {
        if self.is_at_fin() {
            self.passed = self.expected;
            self.note(now);
        }
    }

    /// Returns whether everything was passed on, including the end.
    pub(in crate::protocol::resume) fn is_complete(&self) -> bool {
        self.is_finished && self.passed == self.expected
    }

    /// Drops the held bytes and all that arrive later. They are not acknowledged, as they are not passed on.
    pub(in crate::protocol::resume) fn close(&mut self) {
        self.is_closed = true;
        self.buffer.clear();
    }

    pub(in crate::protocol::resume) fn set_window(&mut self, window: usize, now: Instant) {
        let is_wider = window > self.window;
        self.window = window;
        if is_wider {
            self.note(now);
        }
    }

    /// Notes the maximum number of bytes that the other side keeps.
    pub(in crate::protocol::resume) fn set_kept(&mut self, kept: usize) {
        self.kept = Some(kept);
    }

    /// Starts on a new connection, on which this side has not acknowledged anything yet.
    pub(in crate::protocol::resume) fn resume(&mut self, now: Instant) {
        (self.told, self.kept) = (None, None);
        self.note(now);
    }

    /// Starts again on a new connection. It is an error if anything has arrived.
    pub(in crate::protocol::resume) fn restart(&mut self) -> Result<(), ProtocolError> {
        if self.expected > 0 {
            Err(ProtocolError::Claim)
        } else {
            Ok(())
        }
    }

    /// Returns when an acknowledgement is due; `None` if there is nothing to acknowledge.
    pub(in crate::protocol::resume) fn due(&self) -> Option<Instant> {
        let since = self.untold_since?;
        let step = self.step();
        let Some(told) = self.told else {
            return Some(since);
        };
        let passed = self.passed - told;
        let is_urgent = passed >= step || self.is_complete() || self.wanted() >= self.limit + step;
        let delay = if is_urgent {
            Duration::ZERO
        } else if passed >= step / 2 && self.kept.is_some() {
            MAX_ACK_DELAY_HALF_STEP
        } else if passed >= MIN_WINDOW.into() {
            MAX_ACK_DELAY_LARGE
        } else {
            MAX_ACK_DELAY
        };
        Some(since + delay)
    }

    /// Returns the acknowledgement that is due, as offset and window, and notes it as sent.
    pub(in crate::protocol::resume) fn acknowledge(&mut self) -> (u64, u32) {
        // A window is never withdrawn: bytes may be under way.
        self.limit = self.limit.max(self.wanted());
        self.told = Some(self.passed);
        self.untold_since = None;
        let window = self.limit.saturating_sub(self.passed);
        (self.passed, u32::try_from(window).unwrap_or(u32::MAX))
    }

    /// Returns whether there is something to acknowledge.
    pub(in crate::protocol::resume) fn has_news(&self) -> bool {
        self.untold_since.is_some()
    }

    /// Returns the memory in bytes.
    pub(in crate::protocol::resume) fn memory(&self) -> usize {
        self.buffer.memory()
    }

    /// Returns after how many bytes an acknowledgement is urgent: at most half of what the other side may send, so that
    /// this side's acknowledgement comes before that side has to wait. A sender without KEEPS may keep less than the
    /// window, hence a quarter.
    fn step(&self) -> u64 {
        let step = match self.kept {
            Some(kept) => self.window.min(kept) / 2,
            None => self.window / 4,
        };
        step.max(1) as u64
    }

    fn wanted(&self) -> u64 {
        self.passed.saturating_add(self.window as u64)
    }

    fn note(&mut self, now: Instant) {
        self.untold_since.get_or_insert(now);
    }
}

/// The bytes of one read of a connection, taken together: each call of `pass` may be a system call.
pub(in crate::protocol::resume) struct Taking<'a> {
    now: Instant,
    pass: Pass<'a>,
    /// Bytes that were expected and not yet taken: the first `count` pieces.
    pieces: [IoSlice<'a>; MAX_PIECES],
    count: usize,
}

impl<'a> Taking<'a> {
    pub(in crate::protocol::resume) fn new(now: Instant, pass: Pass<'a>) -> Self {
        Self {
            now,
            pass,
            pieces: [IoSlice::new(&[]); MAX_PIECES],
            count: 0,
        }
    }

    /// Accepts bytes of a stream. They have to be [taken](Self::take) before any other operation on the stream.
    ///
    /// # Errors
    /// The bytes do not follow the last one, come after the end, or exceed the window.
    pub(in crate::protocol::resume) fn accept(
        &mut self,
        incoming: &mut Incoming,
        offset: u64,
        bytes: &'a [u8],
    ) -> Result<(), ProtocolError> {
        if !incoming.expect(offset, bytes.len())? {
            return Ok(());
        }
        // There is always room: a full array is taken at once.
        if let Some(piece) = self.pieces.get_mut(self.count) {
            *piece = IoSlice::new(bytes);
            self.count += 1;
        }
        if self.count == MAX_PIECES {
            self.take(incoming);
        }
        Ok(())
    }

    /// Takes all accepted bytes.
    pub(in crate::protocol::resume) fn take(&mut self, incoming: &mut Incoming) {
        let pieces = self.pieces.get(..self.count).unwrap_or_default();
        if !pieces.is_empty() {
            incoming.take(pieces, self.now, &mut *self.pass);
        }
        self.count = 0;
    }
}

/// How long an acknowledgement waits for more to acknowledge, or for bytes to send with it. However slow the link,
/// there is a sign of life every 100 ms while bytes are passed on.
const MAX_ACK_DELAY: Duration = Duration::from_millis(100);
/// The delay from [`MIN_WINDOW`] bytes on: the other side may be short of memory, keep much less than the window, and
/// wait.
const MAX_ACK_DELAY_LARGE: Duration = Duration::from_millis(10);
/// The delay from half of an urgent step on: on a long path the other side may have used up its window, and wait.
const MAX_ACK_DELAY_HALF_STEP: Duration = Duration::from_millis(2);
/// The maximum number of pieces of a [`Pass`]. A read in bulk has three: two whole frames, and a part of one.
const MAX_PIECES: usize = 8;
