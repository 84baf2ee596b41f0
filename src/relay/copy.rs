//! Copies through a buffer that belongs to the worker thread: a tunnel that waits holds none.

use std::cell::RefCell;
use std::io;
use std::task::{Context, Poll, ready};

use crate::net::transport::{Reader, Writer};

/// The most that one copy moves, in bytes.
pub(super) const MOST: usize = 64 * 1024;
/// The most that one copy moves with a slot among the large pieces, in bytes.
pub(super) const MOST_LARGE: usize = 512 * 1024;

/// What one copy did.
#[derive(Debug)]
pub(super) struct Copied {
    /// Bytes read; 0 at the end of stream.
    pub(super) read: usize,
    /// Those of them that are not written.
    pub(super) residue: Option<Residue>,
}

/// Which half of a copy failed.
#[derive(Debug)]
pub(super) enum Fault {
    Read(io::Error),
    Write(io::Error),
}

/// Bytes that the receiver had no room for.
#[derive(Debug)]
pub(super) struct Residue {
    bytes: Vec<u8>,
    written: usize,
}

impl Residue {
    /// `None` for no bytes.
    pub(super) fn of(bytes: Vec<u8>) -> Option<Self> {
        (!bytes.is_empty()).then_some(Self { bytes, written: 0 })
    }

    /// How many there were.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Writes until nothing is left, telling `moved` of every write.
    pub(super) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        to: &mut impl Writer,
        mut moved: impl FnMut(usize),
    ) -> Poll<io::Result<()>> {
        while let Some(rest) = self.bytes.get(self.written..).filter(|rest| !rest.is_empty()) {
            let written = ready!(to.poll_write(context, rest))?;
            self.written += written;
            moved(written);
        }
        Poll::Ready(Ok(()))
    }
}

/// Reads at most `most` bytes and writes them at once, as far as the receiver takes them, telling `moved` of every write.
pub(super) fn poll_copy(
    context: &mut Context<'_>,
    from: &mut impl Reader,
    to: &mut impl Writer,
    most: usize,
    mut moved: impl FnMut(usize),
) -> Poll<Result<Copied, Fault>> {
    let Some(room) = to.lend(most) else {
        return poll_through_scratch(context, from, to, most, moved);
    };
    let start = room.as_ptr();
    let read = from.poll_read(context, room).map_ok(|bytes| {
        let elsewhere = (!std::ptr::eq(bytes.as_ptr(), start)).then(|| bytes.to_vec());
        (bytes.len(), elsewhere)
    });
    let (read, elsewhere) = match read {
        Poll::Ready(Ok(read)) => read,
        Poll::Ready(Err(error)) => return Poll::Ready(Err(Fault::Read(error))),
        Poll::Pending => {
            to.keep(0).map_err(Fault::Write)?;
            return Poll::Pending;
        }
    };
    let written = if elsewhere.is_some() { 0 } else { read };
    to.keep(written).map_err(Fault::Write)?;
    moved(written);
    Poll::Ready(Ok(Copied {
        read,
        residue: elsewhere.and_then(Residue::of),
    }))
}

fn poll_through_scratch(
    context: &mut Context<'_>,
    from: &mut impl Reader,
    to: &mut impl Writer,
    most: usize,
    mut moved: impl FnMut(usize),
) -> Poll<Result<Copied, Fault>> {
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.len() < most {
            scratch.resize(most, 0);
        }
        let room = scratch.get_mut(..most).unwrap_or_default();
        let bytes = ready!(from.poll_read(context, room)).map_err(Fault::Read)?;
        let mut rest = bytes;
        while !rest.is_empty()
            && let Poll::Ready(result) = to.poll_write(context, rest)
        {
            let written = result.map_err(Fault::Write)?;
            moved(written);
            rest = rest.get(written..).unwrap_or_default();
        }
        Poll::Ready(Ok(Copied {
            read: bytes.len(),
            residue: Residue::of(rest.to_vec()),
        }))
    })
}

thread_local! {
    /// Used within one poll only, never across an await.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}
