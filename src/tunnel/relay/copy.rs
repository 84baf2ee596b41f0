//! Copies bytes through a buffer that belongs to the worker thread, so that a waiting tunnel holds none.

use std::cell::RefCell;
use std::io;
use std::task::{Context, Poll, ready};

use super::failure::Failure;
use super::prefix::Prefix;
use crate::net::transport::{Reader, Writer};
use crate::tunnel::direction::Direction;

/// The most that an ordinary copy moves, in bytes.
pub(super) const MAX_BYTES: usize = 64 * 1024;
/// The most that a copy with a slot for a large piece moves, in bytes.
pub(super) const MAX_LARGE_BYTES: usize = 512 * 1024;

/// The most that is read into lent memory at once, in bytes. A writer may lend less.
pub(super) const MAX_LENT: usize = 256 * 1024;

/// The result of one copy.
#[derive(Debug)]
pub(super) struct CopyResult {
    /// Bytes read; 0 at the end of stream.
    pub(super) read: usize,
    /// Those of them that are not written.
    pub(super) residue: Option<Unwritten>,
}

/// Bytes that the writer has not taken yet.
#[derive(Debug)]
pub(super) struct Unwritten {
    bytes: Vec<u8>,
    written: usize,
}

impl Unwritten {
    /// Returns bytes of which none is written yet; `None` for no bytes.
    pub(super) fn new(bytes: Vec<u8>) -> Option<Self> {
        (!bytes.is_empty()).then_some(Self { bytes, written: 0 })
    }

    /// Writes until nothing is left. `moved` is called with the length of each write.
    pub(super) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        to: &mut impl Writer,
        moved: impl Fn(usize),
    ) -> Poll<io::Result<()>> {
        while let Some(rest) = self.bytes.get(self.written..).filter(|rest| !rest.is_empty()) {
            let written = ready!(to.poll_write(context, rest))?;
            self.written += written;
            moved(written);
        }
        Poll::Ready(Ok(()))
    }
}

/// The read half of one transport and the write half of the other, between which one direction flows.
#[derive(Debug)]
pub(super) struct Flow<'a, R, W> {
    pub(super) direction: Direction,
    pub(super) reader: R,
    pub(super) writer: W,
    /// The first bytes while they are inspected, and then the frames of a session. Boxed: most directions have none.
    pub(super) prefix: Option<Box<Prefix<'a>>>,
}

impl<R: Reader, W: Writer> Flow<'_, R, W> {
    /// Inspects bytes that were read elsewhere, if they belong to the prefix.
    pub(super) fn inspect(&mut self, bytes: &[u8]) {
        inspect(&mut self.prefix, bytes);
    }

    /// Notes that bytes are spliced, uninspected.
    pub(super) fn skip(&mut self) {
        if let Some(prefix) = &mut self.prefix {
            prefix.skip();
        }
    }

    /// Reads at most `max` bytes and writes them at once, as far as the writer takes them.
    ///
    /// `moved` is called with the length of each write.
    pub(super) fn poll_copy(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
        moved: impl Fn(usize),
    ) -> Poll<Result<CopyResult, Failure>> {
        let Self {
            direction,
            reader,
            writer,
            prefix,
        } = self;
        let failure = |side| move |error| Failure::new(side, &error);
        SCRATCH.with_borrow_mut(|scratch| {
            if scratch.len() < max {
                scratch.resize(max, 0);
            }
            let buffer = scratch.get_mut(..max).unwrap_or_default();
            let bytes = ready!(reader.poll_read(context, buffer)).map_err(failure(direction.sender()))?;
            inspect(prefix, bytes);
            let mut rest = bytes;
            while !rest.is_empty()
                && let Poll::Ready(result) = writer.poll_write(context, rest)
            {
                let written = result.map_err(failure(direction.receiver()))?;
                moved(written);
                rest = rest.get(written..).unwrap_or_default();
            }
            Poll::Ready(Ok(CopyResult {
                read: bytes.len(),
                residue: Unwritten::new(rest.to_vec()),
            }))
        })
    }

    /// Reads at most `max` bytes into memory that the writer lends, and sends them from there.
    ///
    /// If the writer has no memory to lend after all, this is an ordinary copy.
    pub(super) fn poll_lent(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
        moved: impl Fn(usize),
    ) -> Poll<Result<CopyResult, Failure>> {
        let Some(memory) = self.writer.lender().and_then(|lender| lender.lend(max)) else {
            return self.poll_copy(context, max.min(MAX_BYTES), moved);
        };
        let start = memory.as_ptr();
        let prefix = &mut self.prefix;
        let read = self.reader.poll_read(context, memory).map_ok(|bytes| {
            inspect(prefix, bytes);
            let elsewhere = (!std::ptr::eq(bytes.as_ptr(), start)).then(|| bytes.to_vec());
            (bytes.len(), elsewhere)
        });
        let (read, elsewhere) = match read {
            Poll::Ready(Ok(read)) => read,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(Failure::new(self.direction.sender(), &error))),
            Poll::Pending => {
                self.keep(0)?;
                return Poll::Pending;
            }
        };
        let written = if elsewhere.is_some() { 0 } else { read };
        self.keep(written)?;
        if written > 0 {
            moved(written);
        }
        Poll::Ready(Ok(CopyResult {
            read,
            residue: elsewhere.and_then(Unwritten::new),
        }))
    }

    fn keep(&mut self, bytes: usize) -> Result<(), Failure> {
        let kept = self.writer.lender().map_or(Ok(()), |lender| lender.keep(bytes));
        kept.map_err(|error| Failure::new(self.direction.receiver(), &error))
    }
}

fn inspect(prefix: &mut Option<Box<Prefix<'_>>>, bytes: &[u8]) {
    if let Some(inspected) = prefix
        && inspected.inspect(bytes).is_break()
    {
        *prefix = None;
    }
}

thread_local! {
    /// Used within one poll only, never across an await.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}
