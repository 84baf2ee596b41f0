//! Moves bytes through a kernel pipe by splice(2), without copying them to user space; pipes come from a bounded pool.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// The most that one fill moves, in bytes: what a large pipe is asked to hold, and all that an unprivileged one may.
///
/// Bytes of a socket come in pieces of about a page, and each takes a slot of the pipe whatever its length: four times
/// the slots are a quarter of the wake-ups, and a quarter of the CPU less.
pub(super) const MOST: usize = 1024 * 1024;
/// The most for a receiver that is slow to take it: what stands in the pipe delays the keystroke behind it.
pub(super) const MOST_IF_SLOW: usize = SMALL;

/// The pipes of a process: so many at most, kept for reuse while empty.
///
/// Pipe memory of an unprivileged user is capped (`fs.pipe-user-pages-soft`, pipe(7)): beyond it pipes are tiny, and
/// beyond the hard cap there are none. So only the first [`MOST_LARGE`] are large. Whoever gets none copies.
#[derive(Debug)]
pub(super) struct PipePool {
    /// Small ones first: the last is taken.
    spare: Mutex<VecDeque<Ends>>,
    taken: AtomicUsize,
    /// Large ones, spare or taken.
    large: AtomicUsize,
    most: usize,
}

impl PipePool {
    /// A pool that has at most `most` pipes out at once, two descriptors each.
    pub(super) fn new(most: usize) -> Self {
        Self {
            spare: Mutex::default(),
            taken: AtomicUsize::new(0),
            large: AtomicUsize::new(0),
            most,
        }
    }

    /// How many are out: each holds bytes, or is about to.
    pub(super) fn in_use(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// An empty pipe, or `None` when all are out or the system has none.
    pub(super) fn take(&self) -> Option<Pipe<'_>> {
        let claim = |taken| (taken < self.most).then_some(taken + 1);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim)
            .ok()?;
        let spare = self.spare.lock().pop_back();
        let ends = spare.or_else(|| self.open());
        if ends.is_none() {
            self.taken.fetch_sub(1, Ordering::Relaxed);
        }
        Some(Pipe {
            ends: Some(ends?),
            held: 0,
            pool: self,
        })
    }

    fn open(&self) -> Option<Ends> {
        let claim = |large| (large < MOST_LARGE).then_some(large + 1);
        let large = self.large.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim);
        let ends = Ends::open(large.is_ok());
        if ends.is_none() && large.is_ok() {
            self.large.fetch_sub(1, Ordering::Relaxed);
        }
        ends
    }

    fn put_back(&self, ends: Ends) {
        let mut spare = self.spare.lock();
        if ends.large {
            spare.push_back(ends);
        } else {
            spare.push_front(ends);
        }
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
        match self.ends.take() {
            Some(ends) if self.held == 0 => self.pool.put_back(ends),
            Some(ends) if ends.large => {
                self.pool.large.fetch_sub(1, Ordering::Relaxed);
            }
            Some(_) | None => {}
        }
        self.pool.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Ends {
    read: OwnedFd,
    write: OwnedFd,
    large: bool,
}

impl Ends {
    fn open(large: bool) -> Option<Self> {
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).ok()?;
        // Beyond the user's soft cap it keeps the size it has: slower, but a pipe.
        fcntl_setpipe_size(&write, if large { MOST } else { SMALL }).ok();
        Some(Self { read, write, large })
    }
}

fn retried(splice: impl Fn() -> rustix::io::Result<usize>) -> io::Result<usize> {
    Ok(rustix::io::retry_on_intr(splice)?)
}

const FLAGS: SpliceFlags = SpliceFlags::NONBLOCK.union(SpliceFlags::MOVE);
/// What the other pipes are asked to hold.
const SMALL: usize = 256 * 1024;
/// Hot directions that are not slow hand their pipe on at once, so a few serve many.
const MOST_LARGE: usize = 32;
