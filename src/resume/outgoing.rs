//! The stream that a side sends: what was not acknowledged is kept, and sent again on the next connection.

use super::INITIAL_WINDOW;
use super::buffer::Buffer;
use super::frame::Violation;

/// The bytes of one stream from the first that was not acknowledged.
///
/// `acknowledged <= cursor <= sent <= end`, and `kept` holds the bytes from `acknowledged` to `length`.
#[derive(Debug)]
pub(super) struct Outgoing {
    kept: Buffer,
    /// The bytes that may be kept.
    window: usize,
    /// The bytes of the stream so far.
    length: u64,
    /// Whether the stream ends at `length`. The end takes one offset.
    is_finished: bool,
    /// The other side has passed all in front of it on.
    acknowledged: u64,
    /// The offset that this connection sends next.
    cursor: u64,
    /// The highest offset that any connection has sent, and one.
    sent: u64,
    /// The other side takes no byte at this offset.
    limit: u64,
    /// Whether nothing more is sent, whatever there is.
    is_abandoned: bool,
}

/// What a connection sends next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<'a> {
    /// Bytes, in two pieces.
    Data(u64, (&'a [u8], &'a [u8])),
    /// The end of the stream.
    Fin(u64),
}

impl Outgoing {
    pub(super) fn new(window: usize) -> Self {
        Self {
            kept: Buffer::default(),
            window,
            length: 0,
            is_finished: false,
            acknowledged: 0,
            cursor: 0,
            sent: 0,
            limit: INITIAL_WINDOW.into(),
            is_abandoned: false,
        }
    }

    /// The bytes that it takes now.
    pub(super) fn room(&self) -> usize {
        if self.is_finished || self.is_abandoned {
            0
        } else {
            self.window.saturating_sub(self.kept.len())
        }
    }

    /// Takes bytes, as many as there is room for.
    pub(super) fn push(&mut self, bytes: &[u8]) -> usize {
        let bytes = bytes.get(..self.room()).unwrap_or(bytes);
        self.kept.push(bytes, self.window);
        self.length += bytes.len() as u64;
        bytes.len()
    }

    pub(super) fn finish(&mut self) {
        self.is_finished = true;
    }

    pub(super) fn set_window(&mut self, window: usize) {
        self.window = window;
    }

    /// The next of what may be sent, at most that many bytes of it.
    pub(super) fn next(&self, most: usize) -> Option<Next<'_>> {
        if self.is_abandoned {
            return None;
        }
        if self.cursor >= self.length {
            let is_due = self.is_finished && self.cursor == self.length;
            return is_due.then_some(Next::Fin(self.length));
        }
        let allowed = self.limit.min(self.length).saturating_sub(self.cursor);
        let count = usize::try_from(allowed).unwrap_or(usize::MAX).min(most);
        let start = usize::try_from(self.cursor - self.acknowledged).ok()?;
        let bytes = self.kept.range(start, count)?;
        (count > 0).then_some(Next::Data(self.cursor, bytes))
    }

    /// What [`next`](Self::next) has returned was sent, so many offsets of it.
    pub(super) fn advance(&mut self, offsets: usize) {
        self.cursor += offsets as u64;
        self.sent = self.sent.max(self.cursor);
    }

    /// # Errors
    /// This connection has not sent so much, or an earlier acknowledgement said more.
    pub(super) fn acknowledge(&mut self, offset: u64, window: u32) -> Result<(), Violation> {
        if offset < self.acknowledged || offset > self.cursor {
            return Err(Violation::Acknowledgement);
        }
        self.release(offset);
        self.limit = self.limit.max(offset.saturating_add(window.into()));
        Ok(())
    }

    /// Begins on a new connection, at the offset that the other side expects.
    ///
    /// # Errors
    /// The bytes from there on are not kept any more, or no connection has sent those in front of it.
    pub(super) fn resume(&mut self, received: u64) -> Result<(), Violation> {
        if received < self.acknowledged || received > self.sent {
            return Err(Violation::Claim);
        }
        self.cursor = received;
        Ok(())
    }

    /// Begins anew, for a session that the other side does not have.
    ///
    /// # Errors
    /// Bytes were acknowledged: they are not kept any more.
    pub(super) fn restart(&mut self) -> Result<(), Violation> {
        if self.acknowledged > 0 {
            return Err(Violation::Claim);
        }
        (self.cursor, self.sent) = (0, 0);
        self.limit = INITIAL_WINDOW.into();
        Ok(())
    }

    /// Drops what is kept: the other side takes no more.
    pub(super) fn abandon(&mut self) {
        self.kept.clear();
        self.is_abandoned = true;
    }

    /// Whether this connection has sent all there is.
    pub(super) fn is_sent(&self) -> bool {
        self.cursor == self.end()
    }

    /// Whether the stream has ended, and the end was acknowledged.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.is_finished && self.acknowledged == self.end()
    }

    /// Whether this connection has sent something that was not acknowledged.
    pub(super) fn is_outstanding(&self) -> bool {
        self.cursor > self.acknowledged
    }

    /// Whether anything was acknowledged.
    pub(super) fn is_confirmed(&self) -> bool {
        self.acknowledged > 0
    }

    /// The bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.kept.memory()
    }

    fn end(&self) -> u64 {
        self.length + u64::from(self.is_finished)
    }

    fn release(&mut self, offset: u64) {
        let bytes = offset.min(self.length).saturating_sub(self.acknowledged);
        self.kept.release(usize::try_from(bytes).unwrap_or(usize::MAX));
        self.acknowledged = offset;
    }
}
