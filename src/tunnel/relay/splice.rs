//! Moves bytes through a kernel pipe by splice(2), without copying them to user space; pipes come from a bounded pool.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use parking_lot::Mutex;
use rustix::io::{Errno, read, retry_on_intr};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tracing::warn;

use crate::tunnel::limits::slots::{Slot, Slots};

/// The most that one fill moves, in bytes: the size of a large pipe, and the largest that an unprivileged user may set.
///
/// Bytes of a socket come in pieces of about a page, and each takes a buffer of the pipe whatever its length. Four
/// times the buffers need a quarter of the wake-ups, and a quarter less CPU time.
pub(super) const MAX_BYTES: usize = 1024 * 1024;
/// The most for a slow receiver, in bytes: the bytes in the pipe delay the keystroke after them.
pub(super) const MAX_BYTES_IF_SLOW: usize = SMALL;

/// The pipes of a process, bounded in number. Empty ones are kept for reuse.
///
/// Pipe memory of an unprivileged user is capped (`fs.pipe-user-pages-soft`, pipe(7)): beyond it pipes are tiny, and
/// beyond the hard cap there are none. So only [`MAX_LARGE`] are large. A direction without a pipe copies.
#[derive(Debug)]
pub(super) struct PipePool {
    /// Small pipes first, large ones last. Taken from the end.
    spare: Mutex<VecDeque<PipeEnds>>,
    /// One slot for each pipe in use.
    in_use: Arc<Slots>,
    /// One slot for each large pipe, spare or in use.
    large: Arc<Slots>,
    created: Instant,
    /// The milliseconds from `created` after which there are pipes: [`NEVER`] if the process may have none, or the kernel
    /// has refused what they need.
    opens_at: AtomicU64,
}

impl PipePool {
    /// Creates a pool with at most `max` pipes in use at once, two descriptors each.
    pub(super) fn new(max: usize) -> Self {
        Self {
            spare: Mutex::default(),
            in_use: Arc::new(Slots::exactly(u32::try_from(max).unwrap_or(u32::MAX))),
            large: Arc::new(Slots::exactly(MAX_LARGE)),
            created: Instant::now(),
            opens_at: AtomicU64::new(if max == 0 { NEVER } else { 0 }),
        }
    }

    /// Returns the number of pipes in use: each holds bytes, or is about to.
    pub(super) fn in_use(&self) -> usize {
        usize::try_from(self.in_use.taken()).unwrap_or(usize::MAX)
    }

    /// Returns whether a direction can get a pipe, now or when one is free.
    pub(super) fn is_open(&self) -> bool {
        match self.opens_at.load(Ordering::Relaxed) {
            0 => true,
            NEVER => false,
            at => self.millis() >= at,
        }
    }

    /// Returns an empty pipe; `None` when all are in use or the system has none.
    pub(super) fn take(&self) -> Option<Pipe<'_>> {
        if !self.is_open() {
            return None;
        }
        let slot = self.in_use.take()?;
        let spare = self.spare.lock().pop_back();
        let ends = match spare {
            Some(ends) => ends,
            None => match PipeEnds::open(self.large.take()) {
                Ok(ends) => ends,
                Err(error) => {
                    self.closes_for(&error, "pipe2");
                    return None;
                }
            },
        };
        Some(Pipe {
            ends: Some(ends),
            held: 0,
            pool: self,
            _slot: slot,
        })
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.created.elapsed().as_millis()).unwrap_or(NEVER)
    }

    /// Returns whether the error means that `call` is refused to this process. If so, the pool closes; for a time if the
    /// kernel was short of memory, which a sandbox may say of each call, too.
    fn closes_for(&self, error: &io::Error, call: &'static str) -> bool {
        if !is_refusal(error) {
            return false;
        }
        let is_shortage = Errno::from_io_error(error) == Some(Errno::NOMEM);
        let opens_at = match is_shortage {
            true => self.millis().saturating_add(SHORTAGE),
            false => NEVER,
        };
        let was_open = self.is_open();
        if self.opens_at.fetch_max(opens_at, Ordering::Relaxed) < opens_at && was_open {
            let time = if is_shortage { "for a minute" } else { "from now on" };
            warn!(%error, "the system refuses {call}(2): bulk is copied {time}, which takes more CPU time");
            self.spare.lock().clear();
        }
        true
    }

    fn put_back(&self, ends: PipeEnds) {
        let mut spare = self.spare.lock();
        if !self.is_open() {
            return;
        }
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
    /// Moves at most `max` bytes from the socket into the pipe, which must be empty: EAGAIN then means that the
    /// socket has none, and not that the pipe is full.
    ///
    /// It leaves the socket's readiness as it is, even at EAGAIN: only a read may clear it.
    pub(super) fn try_fill(&mut self, from: &TcpStream, max: usize) -> io::Result<usize> {
        let Some(ends) = &self.ends else { return Ok(0) };
        self.held = retried(|| splice(from, None, &ends.write, None, max, FLAGS))?;
        Ok(self.held)
    }

    /// Returns whether the error of a fill means that the system refuses splice(2). No byte has moved.
    pub(super) fn is_refused(&self, error: &io::Error) -> bool {
        self.pool.closes_for(error, "splice")
    }

    /// Writes until the pipe is empty. `moved` is called with the length of each write.
    ///
    /// Returns the bytes that are left to be written: if splice(2) is refused, those that were in the pipe, at most
    /// [`MAX_BYTES`].
    pub(super) fn poll_drain(
        &mut self,
        context: &mut Context<'_>,
        to: &TcpStream,
        moved: impl Fn(usize),
    ) -> Poll<io::Result<Vec<u8>>> {
        let Some(ends) = &self.ends else {
            return Poll::Ready(Ok(Vec::new()));
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
                Err(error) if self.pool.closes_for(&error, "splice") => return Poll::Ready(self.read_out()),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(Vec::new()))
    }

    /// Empties the pipe by read(2), and returns what was in it.
    fn read_out(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.held];
        let mut rest = bytes.as_mut_slice();
        while let (Some(ends), false) = (&self.ends, rest.is_empty()) {
            let read = retry_on_intr(|| read(&ends.read, &mut *rest))?;
            if read == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            rest = rest.get_mut(read..).unwrap_or_default();
        }
        self.held = 0;
        Ok(bytes)
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
    /// Creates a new pipe, which is large if it has a slot for that.
    fn open(large: Option<Slot>) -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        let size = if large.is_some() { MAX_BYTES } else { SMALL };
        // Beyond the user's soft cap it keeps the size it has: slower, but a pipe.
        fcntl_setpipe_size(&write, size).ok();
        Ok(Self { read, write, large })
    }
}

/// Returns whether the system refuses a call as such: a seccomp profile or a sandbox's kernel does, with these errors.
///
/// None of these is about a connection, because a socket's own errors come from TCP or ICMP (icmp_err_convert in
/// net/ipv4/icmp.c, icmpv6_err_convert in net/ipv6/icmp.c).
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOSYS | Errno::PERM | Errno::INVAL | Errno::NOMEM)
    )
}

fn retried(splice: impl Fn() -> rustix::io::Result<usize>) -> io::Result<usize> {
    Ok(retry_on_intr(splice)?)
}

const FLAGS: SpliceFlags = SpliceFlags::NONBLOCK.union(SpliceFlags::MOVE);
/// The milliseconds without pipes after the kernel was short of memory.
const SHORTAGE: u64 = 60_000;
/// Of `opens_at`: there are no pipes any more.
const NEVER: u64 = u64::MAX;
/// The size of a small pipe, in bytes.
const SMALL: usize = 256 * 1024;
/// Directions in bulk whose receiver is not slow give their pipe back at once, so a few serve many.
const MAX_LARGE: u32 = 32;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_pool_hands_out_its_pipes_and_no_more_and_the_first_are_large() {
        const PIPES: usize = MAX_LARGE as usize + 3;
        let pool = PipePool::new(PIPES);
        for _ in 0..3 {
            let pipes: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
            assert_eq!((pipes.len(), pool.in_use()), (PIPES, PIPES));
            assert_eq!(pool.large.taken(), MAX_LARGE);
            drop(pipes);
            assert_eq!((pool.in_use(), pool.spare.lock().len()), (0, PIPES));
        }
    }

    #[test]
    fn a_pool_opens_again_after_a_shortage_of_memory_and_not_after_a_refusal() {
        let mut pool = PipePool::new(1);
        let fails = |pool: &PipePool, error: Errno| assert!(pool.closes_for(&error.into(), "splice"));
        fails(&pool, Errno::NOMEM);
        assert!(!pool.is_open() && pool.take().is_none());
        pool.created = pool.created.checked_sub(Duration::from_millis(SHORTAGE)).unwrap();
        assert!(pool.is_open() && pool.take().is_some());
        fails(&pool, Errno::PERM);
        fails(&pool, Errno::NOMEM);
        pool.created = pool.created.checked_sub(Duration::from_millis(2 * SHORTAGE)).unwrap();
        assert!(!pool.is_open());
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
