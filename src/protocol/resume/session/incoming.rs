//! The stream that a side receives: it is passed on in order, each byte once, and acknowledged after that.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use super::buffer::Buffer;
use crate::protocol::resume::frame::ProtocolError;
use crate::protocol::resume::{INITIAL_WINDOW, MIN_WINDOW};

/// Passes bytes of the stream on, at once, and returns how many of them.
pub(in crate::protocol::resume) type Pass<'a> = &'a mut dyn FnMut(&[IoSlice<'_>]) -> usize;

/// The bytes of one stream that were received and not passed on yet.
///
/// `told <= passed <= expected`, and `held` holds the bytes from `passed` to `expected`, without the end of the stream.
#[derive(Debug)]
pub(in crate::protocol::resume) struct Incoming {
    held: Buffer,
    /// The bytes after `passed` that are asked for.
    window: usize,
    /// The bytes that the other side keeps at the most, if it has said so on this connection.
    kept: Option<usize>,
    /// All in front of it has been passed on.
    passed: u64,
    /// The offset of what comes next.
    expected: u64,
    /// True if the end was received.
    is_finished: bool,
    /// No byte at this offset was asked for.
    limit: u64,
    /// The offset of the last acknowledgement on this connection; `None` if there was none.
    told: Option<u64>,
    /// The time since which an acknowledgement could have said more.
    untold_since: Option<Instant>,
    /// True if what comes is dropped: there is nothing any more that takes it.
    is_closed: bool,
}

impl Incoming {
    pub(in crate::protocol::resume) fn new(window: usize) -> Self {
        Self {
            held: Buffer::default(),
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

    /// The offset of what comes next.
    pub(in crate::protocol::resume) fn expected(&self) -> u64 {
        self.expected
    }

    /// Expects bytes, which are [taken](Self::take) next. Returns whether they are to be: otherwise they are dropped.
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

    /// Takes bytes, all that were [expected](Self::expect) and not taken yet. `pass` is given them first if none are held: it
    /// returns how many of them it has passed on.
    fn take(&mut self, pieces: &[IoSlice<'_>], now: Instant, pass: Pass<'_>) {
        let all = pieces.iter().map(|piece| piece.len()).sum();
        let mut passed = if self.held.is_empty() { pass(pieces).min(all) } else { 0 };
        if passed > 0 {
            self.passed += passed as u64;
            self.note(now);
        }
        for piece in pieces {
            let of_piece = passed.min(piece.len());
            passed -= of_piece;
            self.held.push(piece.get(of_piece..).unwrap_or_default(), self.window);
        }
    }

    /// # Errors
    /// The end does not follow on the bytes before, or came before.
    pub(in crate::protocol::resume) fn finish(&mut self, offset: u64) -> Result<(), ProtocolError> {
        if self.is_finished || offset != self.expected {
            return Err(ProtocolError::Offset);
        }
        self.expected = offset.checked_add(1).ok_or(ProtocolError::Offset)?;
        self.is_finished = true;
        Ok(())
    }

    /// Returns the bytes to be passed on next; empty if there are none now.
    pub(in crate::protocol::resume) fn readable(&self) -> &[u8] {
        self.held.front()
    }

    /// Returns whether all bytes were passed on, and their end is next.
    pub(in crate::protocol::resume) fn is_at_fin(&self) -> bool {
        self.is_finished && !self.is_closed && self.passed + 1 == self.expected
    }

    /// So many bytes of [`readable`](Self::readable) were passed on.
    pub(in crate::protocol::resume) fn pass(&mut self, bytes: usize, now: Instant) {
        let bytes = bytes.min(self.held.len());
        self.held.release(bytes);
        self.passed += bytes as u64;
        self.note(now);
    }

    /// The end was passed on.
    pub(in crate::protocol::resume) fn pass_fin(&mut self, now: Instant) {
        if self.is_at_fin() {
            self.passed = self.expected;
            self.note(now);
        }
    }

    /// Returns whether all was passed on, the end included.
    pub(in crate::protocol::resume) fn is_complete(&self) -> bool {
        self.is_finished && self.passed == self.expected
    }

    /// Drops what is held and what comes. Nothing more is acknowledged, as nothing more is passed on.
    pub(in crate::protocol::resume) fn close(&mut self) {
        self.is_closed = true;
        self.held.clear();
    }

    pub(in crate::protocol::resume) fn set_window(&mut self, window: usize, now: Instant) {
        let is_wider = window > self.window;
        self.window = window;
        if is_wider {
            self.note(now);
        }
    }

    /// The other side keeps so many bytes at the most.
    pub(in crate::protocol::resume) fn set_kept(&mut self, kept: usize) {
        self.kept = Some(kept);
    }

    /// A new connection knows nothing of what was passed on.
    pub(in crate::protocol::resume) fn resume(&mut self, now: Instant) {
        (self.told, self.kept) = (None, None);
        self.note(now);
    }

    /// The other side does not have the session, and has asked for nothing.
    pub(in crate::protocol::resume) fn restart(&mut self) -> Result<(), ProtocolError> {
        if self.expected > 0 {
            Err(ProtocolError::Claim)
        } else {
            Ok(())
        }
    }

    /// When an acknowledgement is due.
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

    /// The acknowledgement that is due: the offset, and the window after it. Both are said with this.
    pub(in crate::protocol::resume) fn acknowledge(&mut self) -> (u64, u32) {
        // A window is never taken back: bytes may be under way.
        self.limit = self.limit.max(self.wanted());
        self.told = Some(self.passed);
        self.untold_since = None;
        let window = self.limit.saturating_sub(self.passed);
        (self.passed, u32::try_from(window).unwrap_or(u32::MAX))
    }

    /// Returns whether there is something to say that was not said.
    pub(in crate::protocol::resume) fn has_news(&self) -> bool {
        self.untold_since.is_some()
    }

    /// The bytes of memory.
    pub(in crate::protocol::resume) fn memory(&self) -> usize {
        self.held.memory()
    }

    /// The bytes after which an acknowledgement is urgent. The other side does not wait for it: it has as many again to send.
    /// A sender without KEEPS may keep less than is asked for.
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

/// The bytes of one read of a connection that are taken together: each call of `pass` may be a system call.
pub(in crate::protocol::resume) struct Taking<'a> {
    now: Instant,
    pass: Pass<'a>,
    /// Expected, and not taken yet: the first `count` of them.
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

    /// Accepts bytes of a stream. They are to be [taken](Self::take) before anything else is done with the stream.
    ///
    /// # Errors
    /// The bytes do not follow on those before, come after the end, or were not asked for.
    pub(in crate::protocol::resume) fn accept(
        &mut self,
        incoming: &mut Incoming,
        offset: u64,
        bytes: &'a [u8],
    ) -> Result<(), ProtocolError> {
        if !incoming.expect(offset, bytes.len())? {
            return Ok(());
        }
        // There is always one: they are taken when they are as many.
        if let Some(piece) = self.pieces.get_mut(self.count) {
            *piece = IoSlice::new(bytes);
            self.count += 1;
        }
        if self.count == MAX_PIECES {
            self.take(incoming);
        }
        Ok(())
    }

    /// Takes all that was accepted.
    pub(in crate::protocol::resume) fn take(&mut self, incoming: &mut Incoming) {
        let pieces = self.pieces.get(..self.count).unwrap_or_default();
        if !pieces.is_empty() {
            incoming.take(pieces, self.now, &mut *self.pass);
        }
        self.count = 0;
    }
}

/// How long an acknowledgement waits for more to say, or for bytes that go the same way. A link that is so slow that a
/// quarter of a window takes seconds still carries a sign of life in each of them.
const MAX_ACK_DELAY: Duration = Duration::from_millis(100);
/// The same for a smallest window of bytes or more: the other side may keep much less than is asked for here, as its memory
/// is short, and waits.
const MAX_ACK_DELAY_LARGE: Duration = Duration::from_millis(10);
/// The same for half of what makes one urgent: on a long path the other side has sent all it may, and the rest of it does not
/// wait for long.
const MAX_ACK_DELAY_HALF_STEP: Duration = Duration::from_millis(2);
/// The most pieces of one [`Pass`]: one of bulk brings three, as a read has two frames and ends within one.
const MAX_PIECES: usize = 8;
