//! Takes what the program sends.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use crate::resume::session::Session;

/// Reads from the program into the session, as much as is free. Returns how many bytes: 0 at their end.
pub(super) fn poll_take<R>(context: &mut Context<'_>, source: &mut R, session: &mut Session) -> Poll<io::Result<usize>>
where
    R: AsyncRead + Unpin,
{
    if let Some(spare) = session.spare(MOST) {
        let mut read = ReadBuf::new(spare);
        let result = ready!(Pin::new(source).poll_read(context, &mut read));
        let count = read.filled().len();
        session.fill(count);
        return Poll::Ready(result.map(|()| count));
    }
    let mut scratch = [MaybeUninit::uninit(); MOST_AT_FIRST];
    let free = session.free().min(MOST_AT_FIRST);
    let mut read = ReadBuf::uninit(scratch.get_mut(..free).unwrap_or_default());
    let result = ready!(Pin::new(source).poll_read(context, &mut read));
    Poll::Ready(result.map(|()| session.write(read.filled())))
}

/// Bytes of one read in bulk.
const MOST: usize = 128 * 1024;
/// Bytes of one read while nothing is kept: as many as a pipe holds.
const MOST_AT_FIRST: usize = 64 * 1024;
