//! Moves bytes through a kernel pipe by splice(2), without copying them to user space; pipes come from a bounded pool.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::limits::slots::{Slot, Slots};

/// The most that one fill moves, in bytes: the size of a large pipe, and the largest that an unprivileged user may set.
///
/// Bytes of a socket come in pieces of about a page, and each takes a buffer of the pipe whatever its length: four times
/// the buffers are a quarter of the wake-ups, and a quarter of the CPU less.
pub(super) const MOST: usize = 1024 * 1024;
/// The most for a slow receiver, in bytes: the bytes in the pipe delay the keystroke behind them.
pub(super) const MOST_IF_SLOW: usize = SMALL;

/// The pipes of a process, bounded in number. Empty ones are kept for reuse.
///
/// Pipe memory of an unprivileged user is capped (`fs.pipe-user-pages-soft`, pipe(7)): beyond it pipes are tiny, and
/// beyond the hard cap there are none. So only the first [`MOST_LARGE`] are large. A direction that gets no pipe copies.
#[derive(Debug)]
pub(super) struct PipePool {
    /// Small pipes in front, large ones behind: the last one is taken first.
    spare: Mutex<VecDeque<PipeEnds>>,
    /// One slot for each pipe in use.
    in_use: Arc<Slots>,
    /// One slot for each large pipe, spare or in use.
    large: Arc<Slots>,
}

impl PipePool {
    /// A pool with at most `most` pipes in use at once, two descriptors each.
    pub(super) fn new(most: usize) -> Self {
        Self {
            spare: Mutex::default(),
            in_use: Arc::new(Slots::exactly(u32::try_from(most).unwrap_or(u32::MAX))),
            large: Arc::new(Slots::exactly(MOST_LARGE)),
        }
    }

    /// The number of pipes in use: each holds bytes, or is about to.
    pub(super) fn in_use(&self) -> usize {
        usize::try_from(self.in_use.taken()).unwrap_or(usize::MAX)
    }

    /// An empty pipe; `None` when all are in use or the system has none.
    pub(super) fn take(&self) -> Option<Pipe<'_>> {
        let slot = self.in_use.take()?;
        let spare = self.spare.lock().pop_back();
        let ends = spare.or_else(|| PipeEnds::open(self.large.take()))?;
        Some(Pipe {
            ends: Some(ends),
            held: 0,
            pool: self,
            _slot: slot,
        })
    }

    fn put_back(&self, ends: PipeEnds) {
        let mut spare = self.spare.lock();
        if ends.large.is_some() {
            spare.push_back(ends);
        } else {
            spare.push_front(ends);
        }
    }
}

/// A pipe in use. Dropped empty it goes back to the pool; dropped with bytes in it, it is closed.
#[derive(Debug)]
pub(super) struct Pipe<'a> {
    /// `None` only in `drop`.
    ends: Option<PipeEnds>,
    /// The bytes in it.
    held: usize,
    pool: &'a PipePool,
    _slot: Slot,
}

impl Pipe<'_> {
    /// Moves at most `most` bytes from the socket into the pipe, which must be empty: EAGAIN then means that the
    /// socket has none, and not that the pipe is full.
    ///
    /// It leaves the socket's readiness alone, even at EAGAIN: that is for a read to judge.
    pub(super) fn try_fill(&mut self, from: &TcpStream, most: usize) -> io::Result<usize> {
        let Some(ends) = &self.ends else { return Ok(0) };
        self.held = retried(|| splice(from, None, &ends.write, None, most, FLAGS))?;
        Ok(self.held)
    }

    /// Writes until the pipe is empty. `moved` is called with the length of each write.
    pub(super) fn poll_drain(
        &mut self,
        context: &mut Context<'_>,
        to: &TcpStream,
        moved: impl Fn(usize),
    ) -> Poll<io::Result<()>> {
        let Some(ends) = &self.ends else {
            return Poll::Ready(Ok(()));
        };
        while self.held > 0 {
            ready!(to.poll_write_ready(context))?;
            let written = to.try_io(Interest::WRITABLE, || {
                retried(|| splice(&ends.read, None, to, None, self.held, FLAGS))
            });
            match written {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(written) => {
                    self.held -= written;
                    moved(written);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Pipe<'_> {
    fn drop(&mut self) {
        if self.held == 0
            && let Some(ends) = self.ends.take()
        {
            self.pool.put_back(ends);
        }
    }
}

/// The two file descriptors of a pipe.
#[derive(Debug)]
struct PipeEnds {
    read: OwnedFd,
    write: OwnedFd,
    /// Taken by a large pipe for as long as it exists.
    large: Option<Slot>,
}

impl PipeEnds {
    /// A new pipe, which is large if it has a slot for that.
    fn open(large: Option<Slot>) -> Option<Self> {
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).ok()?;
        let size = if large.is_some() { MOST } else { SMALL };
        // Beyond the user's soft cap it keeps the size it has: slower, but a pipe.
        fcntl_setpipe_size(&write, size).ok();
        Some(Self { read, write, large })
    }
}

fn retried(splice: impl Fn() -> rustix::io::Result<usize>) -> io::Result<usize> {
    Ok(rustix::io::retry_on_intr(splice)?)
}

const FLAGS: SpliceFlags = SpliceFlags::NONBLOCK.union(SpliceFlags::MOVE);
/// The size of the other pipes, in bytes.
const SMALL: usize = 256 * 1024;
/// Directions in bulk whose receiver is not slow give their pipe back at once, so a few serve many.
const MOST_LARGE: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_hands_out_its_pipes_and_no_more_and_the_first_are_large() {
        const PIPES: usize = MOST_LARGE as usize + 3;
        let pool = PipePool::new(PIPES);
        for _ in 0..3 {
            let pipes: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
            assert_eq!((pipes.len(), pool.in_use()), (PIPES, PIPES));
            assert_eq!(pool.large.taken(), MOST_LARGE);
            drop(pipes);
            assert_eq!((pool.in_use(), pool.spare.lock().len()), (0, PIPES));
        }
    }

    #[test]
    fn a_pipe_with_bytes_in_it_is_closed_and_makes_room_for_another_large_one() {
        let pool = PipePool::new(1);
        let mut pipe = pool.take().unwrap();
        pipe.held = 1;
        drop(pipe);
        assert!(pool.spare.lock().is_empty());
        assert_eq!((pool.in_use(), pool.large.taken()), (0, 0));
        assert!(pool.take().is_some());
        assert!(PipePool::new(0).take().is_none());
    }
}
