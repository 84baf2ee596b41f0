//! Moves bytes through a kernel pipe by splice(2), without copying them to user space; pipes come from a bounded pool.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// The most that one fill moves, in bytes: what the pipe is asked to hold.
pub(super) const MOST: usize = 256 * 1024;

/// The pipes of a process: so many at most, kept for reuse while empty.
///
/// Pipe memory of an unprivileged user is capped (`fs.pipe-user-pages-soft`, pipe(7)): beyond it pipes are small, and
/// beyond the hard cap there are none. Whoever gets none copies.
#[derive(Debug)]
pub struct PipePool {
    spare: Mutex<Vec<Ends>>,
    taken: AtomicUsize,
    most: usize,
}

impl PipePool {
    /// A pool that has at most `most` pipes out at once, two descriptors each.
    pub fn new(most: usize) -> Self {
        Self {
            spare: Mutex::default(),
            taken: AtomicUsize::new(0),
            most,
        }
    }

    /// How many are out: each holds bytes, or is about to.
    pub fn in_use(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// An empty pipe, or `None` when all are out or the system has none.
    pub(super) fn take(&self) -> Option<Pipe<'_>> {
        let claim = |taken| (taken < self.most).then_some(taken + 1);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim)
            .ok()?;
        let ends = self
            .spare
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()
            .or_else(Ends::open);
        if ends.is_none() {
            self.taken.fetch_sub(1, Ordering::Relaxed);
        }
        Some(Pipe {
            ends: Some(ends?),
            held: 0,
            pool: self,
        })
    }
}

/// A pipe on loan. Dropped empty it goes back to the pool; with bytes in it, it is closed.
#[derive(Debug)]
pub(super) struct Pipe<'a> {
    /// Gone only in `drop`.
    ends: Option<Ends>,
    held: usize,
    pool: &'a PipePool,
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

    /// Writes until the pipe is empty, telling `moved` of every write.
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
        if let Some(ends) = self.ends.take()
            && self.held == 0
        {
            self.pool
                .spare
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(ends);
        }
        self.pool.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Ends {
    read: OwnedFd,
    write: OwnedFd,
}

impl Ends {
    fn open() -> Option<Self> {
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).ok()?;
        // Beyond the user's soft cap it keeps the size it has: slower, but a pipe.
        fcntl_setpipe_size(&write, MOST).ok();
        Some(Self { read, write })
    }
}

fn retried(splice: impl Fn() -> rustix::io::Result<usize>) -> io::Result<usize> {
    Ok(rustix::io::retry_on_intr(splice)?)
}

const FLAGS: SpliceFlags = SpliceFlags::NONBLOCK.union(SpliceFlags::MOVE);
