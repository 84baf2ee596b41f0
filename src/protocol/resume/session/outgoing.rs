//! The stream that a side sends: unacknowledged bytes are kept, and sent again on the next connection.

use super::buffer::Buffer;
use crate::protocol::resume::frame::{DATA_HEAD, Frame, MAX_DATA, Output, ProtocolError};
use crate::protocol::resume::{INITIAL_WINDOW, MIN_WINDOW};

/// The bytes of a stream from the first unacknowledged one.
///
/// `acknowledged <= carried <= cursor <= sent <= end`. `buffer` has the bytes from `acknowledged` to `length`; of an
/// abandoned stream, those from `carried` to `cursor`.
#[derive(Debug)]
pub(in crate::protocol::resume) struct Outgoing {
    buffer: Buffer,
    /// The offset of the first byte that is kept.
    kept_from: u64,
    /// The maximum number of bytes that are kept.
    window: usize,
    /// The `window` that was sent on this connection; `None` if none was.
    told_window: Option<usize>,
    /// The number of bytes of the stream so far.
    length: u64,
    /// True if the stream ends at `length`. The end takes one offset.
    is_finished: bool,
    /// The offset up to which the other side has passed on everything.
    acknowledged: u64,
    /// The offset up to which this connection was given everything. Bytes from there to `cursor` are in unwritten
    /// frames.
    carried: u64,
    /// The offset that is put into the next frame of this connection.
    cursor: u64,
    /// One more than the highest offset that any connection has sent.
    sent: u64,
    /// The offset up to which the other side takes bytes, exclusive.
    limit: u64,
    /// True if nothing more is sent.
    is_abandoned: bool,
}

/// The next frame of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::protocol::resume) enum Next<'a> {
    /// Bytes, in two pieces.
    Data(u64, (&'a [u8], &'a [u8])),
    /// The end of the stream.
    Fin(u64),
}

impl Outgoing {
    pub(in crate::protocol::resume) fn new(window: usize) -> Self {
        Self {
            buffer: Buffer::default(),
            kept_from: 0,
            window,
            told_window: None,
            length: 0,
            is_finished: false,
            acknowledged: 0,
            carried: 0,
            cursor: 0,
            sent: 0,
            limit: INITIAL_WINDOW.into(),
            is_abandoned: false,
        }
    }

    /// Returns the number of bytes so far.
    pub(in crate::protocol::resume) fn length(&self) -> u64 {
        self.length
    }

    /// Returns how many bytes it takes now.
    pub(in crate::protocol::resume) fn free(&self) -> usize {
        if self.is_finished || self.is_abandoned {
            0
        } else {
            self.window.saturating_sub(self.buffer.len())
        }
    }

    /// Takes as many of the bytes as there is room for, and returns how many.
    pub(in crate::protocol::resume) fn push(&mut self, bytes: &[u8]) -> usize {
        let bytes = bytes.get(..self.free()).unwrap_or(bytes);
        self.buffer.push(bytes, self.window);
        self.length += bytes.len() as u64;
        bytes.len()
    }

    /// Returns memory for the next bytes, at most `max` of them. `None` if there is no room, or if they have to be
    /// [pushed](Self::push).
    pub(in crate::protocol::resume) fn spare(&mut self, max: usize) -> Option<&mut [u8]> {
        match self.free().min(max) {
            0 => None,
            max => self.buffer.spare(max),
        }
    }

    /// Notes that `bytes` bytes were put into [`spare`](Self::spare).
    pub(in crate::protocol::resume) fn fill(&mut self, bytes: usize) {
        let before = self.buffer.len();
        self.buffer.fill(bytes.min(self.free()));
        self.length += (self.buffer.len() - before) as u64;
    }

    pub(in crate::protocol::resume) fn finish(&mut self) {
        self.is_finished = true;
    }

    pub(in crate::protocol::resume) fn set_window(&mut self, window: usize) {
        self.window = window;
    }

    /// Appends frames of the stream, up to `max` bytes of `out` in all, and the window if the other side has to know
    /// it. Returns whether anything of the stream was appended.
    pub(in crate::protocol::resume) fn send<O: Output>(&mut self, out: &mut O, max: usize) -> bool {
        let before = self.cursor;
        while out.length() + DATA_HEAD < max && !out.is_full() {
            let piece = MAX_DATA.min(max - out.length() - DATA_HEAD);
            let sent = match self.next(piece) {
                Some(Next::Data(offset, bytes)) => {
                    out.data(offset, bytes);
                    bytes.0.len() + bytes.1.len()
                }
                Some(Next::Fin(offset)) => {
                    out.frame(Frame::Fin { offset });
                    1
                }
                None => break,
            };
            self.advance(sent);
        }
        // The other side has no use for the window while hardly anything waits for its acknowledgement.
        let is_told = self.told_window == Some(self.window);
        if !is_told && !self.is_abandoned && self.cursor.saturating_sub(self.acknowledged) >= MIN_WINDOW.into() {
            self.told_window = Some(self.window);
            let window = u32::try_from(self.window).unwrap_or(u32::MAX);
            out.frame(Frame::Keeps { window });
        }
        if O::COPIES {
            self.carry_all();
        }
        self.cursor > before
    }

    /// Returns what to send next, at most `max` bytes of it.
    pub(in crate::protocol::resume) fn next(&self, max: usize) -> Option<Next<'_>> {
        if self.is_abandoned {
            return None;
        }
        if self.cursor >= self.length {
            let is_due = self.is_finished && self.cursor == self.length;
            return is_due.then_some(Next::Fin(self.length));
        }
        let allowed = self.limit.min(self.length).saturating_sub(self.cursor);
        let count = usize::try_from(allowed).unwrap_or(usize::MAX).min(max);
        let bytes = self.kept(self.cursor, count)?;
        (count > 0).then_some(Next::Data(self.cursor, bytes))
    }

    /// Returns `count` bytes from an offset on, in two pieces. `None` if they are not kept.
    pub(in crate::protocol::resume) fn kept(&self, offset: u64, count: usize) -> Option<(&[u8], &[u8])> {
        let start = usize::try_from(offset.checked_sub(self.kept_from)?).ok()?;
        self.buffer.range(start, count)
    }

    /// Notes that `offsets` offsets of [`next`](Self::next) are in frames. They are kept at least until
    /// [`mark_sent`](Self::mark_sent).
    fn advance(&mut self, offsets: usize) {
        self.cursor += offsets as u64;
        self.sent = self.sent.max(self.cursor);
    }

    /// Notes that the connection was given everything up to `offset`.
    pub(in crate::protocol::resume) fn mark_sent(&mut self, offset: u64) {
        self.carried = self.carried.max(offset.min(self.cursor));
        if self.is_abandoned {
            self.keep_what_is_under_way();
        }
    }

    /// Notes that no bytes are in unwritten frames: the connection is gone, or the frames have copies.
    pub(in crate::protocol::resume) fn carry_all(&mut self) {
        self.mark_sent(self.cursor);
    }

    /// Releases acknowledged bytes.
    ///
    /// # Errors
    /// The offset was not sent on this connection, or is less than an earlier one.
    pub(in crate::protocol::resume) fn acknowledge(&mut self, offset: u64, window: u32) -> Result<(), ProtocolError> {
        if offset < self.acknowledged || offset > self.carried {
            return Err(ProtocolError::Acknowledgement);
        }
        self.release_up_to(offset);
        self.acknowledged = offset;
        self.limit = self.limit.max(offset.saturating_add(window.into()));
        Ok(())
    }

    /// Starts on a new connection, at the offset that the other side expects.
    ///
    /// # Errors
    /// The bytes from there on are no longer kept, or those before it were never sent.
    pub(in crate::protocol::resume) fn resume(&mut self, received: u64) -> Result<(), ProtocolError> {
        if received < self.acknowledged || received > self.sent {
            return Err(ProtocolError::Claim);
        }
        (self.carried, self.cursor) = (received, received);
        self.told_window = None;
        Ok(())
    }

    /// Starts again at offset 0, as the other side does not have the session.
    ///
    /// # Errors
    /// Bytes were acknowledged, and are no longer kept.
    pub(in crate::protocol::resume) fn restart(&mut self) -> Result<(), ProtocolError> {
        if self.acknowledged > 0 {
            return Err(ProtocolError::Claim);
        }
        (self.carried, self.cursor, self.sent) = (0, 0, 0);
        self.limit = INITIAL_WINDOW.into();
        Ok(())
    }

    /// Drops the kept bytes, as the other side takes no more. Bytes in unwritten frames stay: the other side would
    /// take the bytes after a cut frame for a part of it.
    pub(in crate::protocol::resume) fn abandon(&mut self) {
        if !self.is_abandoned {
            self.is_abandoned = true;
            self.keep_what_is_under_way();
            self.buffer.shrink();
        }
    }

    /// Returns one more than the highest offset that any connection has sent.
    pub(in crate::protocol::resume) fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns whether everything is in frames of this connection.
    pub(in crate::protocol::resume) fn is_sent(&self) -> bool {
        self.cursor == self.end()
    }

    /// Returns whether the stream has ended, and the end was acknowledged.
    pub(in crate::protocol::resume) fn is_acknowledged(&self) -> bool {
        self.is_finished && self.acknowledged == self.end()
    }

    /// Returns whether something was sent and is not acknowledged yet.
    pub(in crate::protocol::resume) fn is_outstanding(&self) -> bool {
        self.cursor > self.acknowledged
    }

    /// Returns whether anything was acknowledged.
    pub(in crate::protocol::resume) fn is_confirmed(&self) -> bool {
        self.acknowledged > 0
    }

    /// Returns the memory in bytes.
    pub(in crate::protocol::resume) fn memory(&self) -> usize {
        self.buffer.memory()
    }

    fn end(&self) -> u64 {
        self.length + u64::from(self.is_finished)
    }

    fn release_up_to(&mut self, offset: u64) {
        let bytes = offset.min(self.length).saturating_sub(self.kept_from);
        self.buffer.release(usize::try_from(bytes).unwrap_or(usize::MAX));
        self.kept_from += bytes;
    }

    fn keep_what_is_under_way(&mut self) {
        self.release_up_to(self.carried);
        let bytes = self.cursor.min(self.length).saturating_sub(self.kept_from);
        self.buffer.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
}
