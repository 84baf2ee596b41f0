//! Moves one direction: waits for its limit, fills from the source, writes all of it, until the end of stream.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{io, mem};

use tokio::time::Instant;

use super::copy::{self, Residue};
use super::splice::{self, Pipe};
use super::terms::{Bounds, Engine, Terms};
use crate::direction::Direction;
use crate::limits::budget::{Budget, Share};
use crate::limits::slots::Slot;
use crate::limits::throttle::Throttle;
use crate::net::transport::{Reader, Writer};
use crate::outcome::Side;

/// One direction of a relay. Every future of it may be dropped at any await and made anew: no byte is lost.
#[derive(Debug)]
pub(super) struct Pump<'a, F, T> {
    direction: Direction,
    from: F,
    to: T,
    terms: &'a Terms<'a>,
    throttle: Throttle<'a>,
    shares: [Option<Share<'a>>; 3],
    in_flight: InFlight<'a>,
    heat: u8,
    /// The receiver took long for what it was given last.
    slow: bool,
    since_yield: usize,
    finished: bool,
}

/// Which side broke a direction, and how.
#[derive(Debug)]
pub struct Failure {
    /// Whose socket failed.
    pub by: Side,
    /// How.
    pub error: io::Error,
}

/// What was read and is not written yet. Nothing is read while there is any.
#[derive(Debug)]
enum InFlight<'a> {
    Nothing,
    Buffered {
        residue: Residue,
        /// Taken if they are more than a piece of the usual size.
        _large: Option<Slot>,
    },
    Piped(Pipe<'a>),
}

impl<'a, F: Reader, T: Writer> Pump<'a, F, T> {
    pub(super) fn upload(from: F, to: T, early: Vec<u8>, terms: &'a Terms<'a>) -> Self {
        Self::new(Direction::Upload, from, to, terms).beginning_with(early)
    }

    pub(super) fn download(from: F, to: T, early: Vec<u8>, terms: &'a Terms<'a>) -> Self {
        Self::new(Direction::Download, from, to, terms).beginning_with(early)
    }

    fn beginning_with(mut self, early: Vec<u8>) -> Self {
        self.throttle.spend(early.len());
        self.in_flight = Residue::of(early).map_or(InFlight::Nothing, |residue| InFlight::Buffered {
            residue,
            _large: None,
        });
        self
    }

    fn new(direction: Direction, from: F, to: T, terms: &'a Terms<'a>) -> Self {
        let Bounds { tunnel, shared } = match direction {
            Direction::Upload => terms.upload,
            Direction::Download => terms.download,
        };
        Self {
            direction,
            from,
            to,
            terms,
            throttle: Throttle::new(tunnel),
            shares: shared.map(|budget| budget.map(Budget::share)),
            in_flight: InFlight::Nothing,
            heat: 0,
            slow: false,
            since_yield: 0,
            finished: false,
        }
    }

    /// Completes when the source fails, without reading from it.
    pub(super) async fn source_failed(&mut self) -> Failure {
        Failure {
            by: self.sides().0,
            error: self.from.failed().await,
        }
    }

    /// Whether the source's end of stream has been passed on.
    pub(super) fn has_finished(&self) -> bool {
        self.finished
    }

    /// Moves bytes until the source's end of stream has been passed on.
    pub(super) async fn run(&mut self) -> Result<(), Failure> {
        self.flush().await?;
        loop {
            self.readable().await?;
            let admitted = self.admit().await;
            self.room().await?;
            let read = poll_fn(|context| Poll::Ready(self.fill(context, admitted))).await?;
            self.settle(admitted, read.unwrap_or_default());
            match read {
                None => {}
                Some(0) => break,
                Some(read) => {
                    self.feel(read);
                    self.flush().await?;
                    self.breathe(read).await;
                }
            }
        }
        self.finished = true;
        // It fails when the receiver has reset meanwhile, which the other direction will find when it reads.
        poll_fn(|context| self.to.poll_shutdown(context)).await.ok();
        Ok(())
    }

    /// Before a limit is asked, so that who has nothing to send takes nobody's part of a budget.
    async fn readable(&mut self) -> Result<(), Failure> {
        let (source, _) = self.sides();
        let ready = poll_fn(|context| self.from.poll_readable(context)).await;
        ready.map_err(|error| Failure { by: source, error })
    }

    /// Waits until the sink can take something. A source that resets meanwhile ends it: nobody else would notice.
    async fn room(&mut self) -> Result<(), Failure> {
        let (source, sink) = self.sides();
        let (from, to) = (&mut self.from, &mut self.to);
        tokio::select! {
            biased;
            room = poll_fn(|context| to.poll_room(context)) => room.map_err(|error| Failure { by: sink, error }),
            error = from.failed() => Err(Failure { by: source, error }),
        }
    }

    /// Waits until it may move bytes, and says how many: no more than every limit lets through.
    async fn admit(&mut self) -> usize {
        let (meter, direction) = (self.terms.meter, self.direction);
        let waited = |wait| meter.throttled(direction, wait);
        let most = self.most();
        let mut admitted = self.throttle.admit(most, waited).await;
        for next in 0..self.shares.len() {
            let (before, from_here) = self.shares.split_at_mut(next);
            if let Some(Some(share)) = from_here.first_mut() {
                let granted = share.take(admitted, waited).await;
                for share in before.iter_mut().flatten() {
                    share.give_back(admitted - granted);
                }
                admitted = granted;
            }
        }
        admitted
    }

    /// Pays for what was read of what was admitted.
    fn settle(&mut self, admitted: usize, read: usize) {
        self.throttle.spend(read);
        for share in self.shares.iter_mut().flatten() {
            share.give_back(admitted.saturating_sub(read));
        }
    }

    /// Writes what is in flight. A source that resets meanwhile ends it: nobody else would notice.
    pub(super) async fn flush(&mut self) -> Result<(), Failure> {
        if matches!(self.in_flight, InFlight::Nothing) && !self.to.holds_back() {
            self.slow = false;
            return Ok(());
        }
        let start = Instant::now();
        let (source, sink) = self.sides();
        let (from, to, in_flight) = (&mut self.from, &mut self.to, &mut self.in_flight);
        let (meter, direction) = (self.terms.meter, self.direction);
        let write = poll_fn(|context| {
            let moved = |bytes| meter.moved(direction, bytes);
            ready!(match in_flight {
                InFlight::Nothing => Poll::Ready(Ok(())),
                InFlight::Buffered { residue, .. } => residue.poll_write(context, to, moved),
                InFlight::Piped(pipe) => match to.plain() {
                    Some(to) => pipe.poll_drain(context, to, moved),
                    None => Poll::Ready(Ok(())),
                },
            })?;
            to.poll_flush(context)
        });
        tokio::select! {
            biased;
            written = write => written.map_err(|error| Failure { by: sink, error })?,
            error = from.failed() => return Err(Failure { by: source, error }),
        }
        if let InFlight::Buffered { residue, .. } = mem::replace(&mut self.in_flight, InFlight::Nothing) {
            self.from.passed_on(residue.len());
        }
        self.slow = start.elapsed() >= SLOW;
        Ok(())
    }

    /// Reads at most `most` bytes: 0 at the end of stream, `None` if there are none after all.
    fn fill(&mut self, context: &mut Context<'_>, most: usize) -> Result<Option<usize>, Failure> {
        // A pipe is taken only now that there is something to put into it. There may be none to be had.
        let pipe = if self.is_hot() {
            self.terms.resources.pipes.take()
        } else {
            None
        };
        match (pipe, self.from.plain()) {
            (Some(mut pipe), Some(from)) => {
                let filled = pipe.try_fill(from, most);
                self.judge(context, (pipe, filled), most)
            }
            (Some(_), None) | (None, _) => self.copy(context, most),
        }
    }

    fn copy(&mut self, context: &mut Context<'_>, most: usize) -> Result<Option<usize>, Failure> {
        let (source, sink) = self.sides();
        let is_large = most > copy::MOST && self.copies_bulk();
        let large = is_large.then(|| self.terms.resources.large_pieces.take()).flatten();
        let most = if large.is_some() {
            most.min(copy::MOST_LARGE)
        } else {
            most.min(self.most_small())
        };
        let (meter, direction) = (self.terms.meter, self.direction);
        let moved = |bytes| meter.moved(direction, bytes);
        let Poll::Ready(copied) = copy::poll_copy(context, &mut self.from, &mut self.to, most, moved) else {
            return Ok(None);
        };
        let copied = copied.map_err(|fault| match fault {
            copy::Fault::Read(error) => Failure { by: source, error },
            copy::Fault::Write(error) => Failure { by: sink, error },
        })?;
        let written = copied.read - copied.residue.as_ref().map_or(0, Residue::len);
        if written > 0 {
            self.from.passed_on(written);
        }
        self.in_flight = match copied.residue {
            None => InFlight::Nothing,
            Some(residue) => InFlight::Buffered {
                _large: large.filter(|_| residue.len() > copy::MOST),
                residue,
            },
        };
        Ok(Some(copied.read))
    }

    /// In front of TCP urgent data splice(2) stops for ever, while the socket stays readable: with EAGAIN, or once the
    /// peer has finished with 0, as if nothing stood behind it. read(2) steps over it, and so has the last word.
    fn judge(
        &mut self,
        context: &mut Context<'_>,
        (pipe, filled): (Pipe<'a>, io::Result<usize>),
        most: usize,
    ) -> Result<Option<usize>, Failure> {
        match filled {
            Ok(0) => self.copy(context, most),
            Ok(read) => {
                self.in_flight = InFlight::Piped(pipe);
                Ok(Some(read))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.copy(context, most),
            Err(error) => Err(Failure {
                by: self.sides().0,
                error,
            }),
        }
    }

    fn most(&self) -> usize {
        match (self.is_hot(), self.slow) {
            (false, false) if self.copies_bulk() => copy::MOST_LARGE,
            (false, _) => self.most_small(),
            (true, true) => splice::MOST_IF_SLOW,
            (true, false) => splice::MOST,
        }
    }

    fn most_small(&self) -> usize {
        copy::MOST.max(self.to.most_lent())
    }

    /// Whether the kernel is to move its bytes.
    fn is_hot(&self) -> bool {
        if !self.is_plain() {
            return false;
        }
        match self.terms.engine {
            Engine::Adaptive => self.heat >= HOT,
            Engine::Copy => false,
            Engine::Splice => true,
        }
    }

    /// Whether it is in bulk between two ends that the kernel cannot move bytes between, none of which has buffers of its
    /// own for them, as a stream has.
    fn copies_bulk(&self) -> bool {
        self.heat >= HOT && !self.is_plain() && !self.shares_task()
    }

    /// Between two sockets the kernel can move bytes.
    fn is_plain(&self) -> bool {
        self.from.plain().is_some() && self.to.plain().is_some()
    }

    fn shares_task(&self) -> bool {
        self.from.shares_task() || self.to.shares_task()
    }

    /// Warms up with every large read, and cools down with every small one.
    fn feel(&mut self, read: usize) {
        self.heat = if read >= LARGE {
            HOTTEST.min(self.heat + 1)
        } else {
            self.heat.saturating_sub(1)
        };
    }

    /// Lets other tunnels run: a fast source and sink would never have to wait.
    async fn breathe(&mut self, moved: usize) {
        self.since_yield += moved;
        if self.since_yield >= YIELD_AFTER {
            self.since_yield = 0;
            if self.shares_task() {
                yield_within_task().await;
            } else {
                self.terms.resources.yielder.yield_now().await;
            }
        }
    }

    fn sides(&self) -> (Side, Side) {
        match self.direction {
            Direction::Upload => (Side::Client, Side::Target),
            Direction::Download => (Side::Target, Side::Client),
        }
    }
}

/// Lets the other futures of the task run. tokio's would let other tasks run too, and the idle worker thread take this
/// one over, with cold caches.
async fn yield_within_task() {
    let mut has_yielded = false;
    let once = poll_fn(|context| {
        if mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    });
    once.await;
}

/// A read of this size is bulk.
const LARGE: usize = 16 * 1024;
/// So many more large reads than small ones make a direction hot.
const HOT: u8 = 2;
/// How much heat is kept: so many small reads less one cool a direction that was hot for long.
const HOTTEST: u8 = 4;
/// Who takes a pipe's worth in less time, 100 MiB/s, delays nobody's keystroke by it.
const SLOW: Duration = Duration::from_millis(10);
/// How much one wake-up may move before it yields.
const YIELD_AFTER: usize = 512 * 1024;
