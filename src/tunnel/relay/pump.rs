//! Moves one direction of a relay: waits for its limits, reads, writes all of it, until the end of stream.

use std::future::{pending, poll_fn};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{io, mem};

use tokio::time::Instant;

use super::config::{DirectionLimits, RelayConfig};
use super::copy::{self, CopyResult, Flow, Unwritten};
use super::failure::Failure;
use super::splice::{self, Pipe};
use super::strategy::{Step, Strategy};
use super::timeouts::abandoned;
use crate::base::boxed::boxed;
use crate::net::socket::is_refusal_of_an_end;
use crate::net::transport::{BulkMode, Reader, Writer};
use crate::tunnel::limits::budget::{Budget, Share};
use crate::tunnel::limits::slots::Slot;
use crate::tunnel::limits::throttle::Throttle;

/// One direction of a relay. Dropping any of its futures at any await loses no byte.
#[derive(Debug)]
pub(super) struct Pump<'a, R, W> {
    flow: Flow<'a, R, W>,
    strategy: Strategy,
    config: &'a RelayConfig<'a>,
    throttle: Throttle<'a>,
    shares: [Option<Share<'a>>; 3],
    in_flight: InFlight<'a>,
    /// Bytes moved since other tunnels were last let run.
    since_yield: usize,
    has_finished: bool,
    has_sent_end: bool,
    /// True while the kernel waits for a receiver whose window is closed.
    tolerates_closed_window: bool,
}

/// Bytes that were read and are not written yet. Nothing is read while there are any.
#[derive(Debug)]
enum InFlight<'a> {
    Nothing,
    Copied {
        /// The bytes that the writer has not taken.
        residue: Option<Unwritten>,
        /// Held by a piece that is larger than an ordinary copy, until the writer has sent all of it.
        _large: Option<Slot>,
    },
    Piped(Pipe<'a>),
}

impl<'a, R: Reader, W: Writer> Pump<'a, R, W> {
    /// Creates one direction of a relay between transports that move bulk by `bulk`.
    pub(super) fn new(flow: Flow<'a, R, W>, bulk: BulkMode, config: &'a RelayConfig<'a>) -> Self {
        let DirectionLimits {
            tunnel,
            rate_override,
            shared,
        } = config.limits[flow.direction];
        Self {
            strategy: Strategy::new(flow.direction, bulk, config.resources.hot),
            flow,
            config,
            throttle: Throttle::new(tunnel).with_override(rate_override),
            shares: shared.map(|budget| budget.map(Budget::share)),
            in_flight: InFlight::Nothing,
            since_yield: 0,
            has_finished: false,
            has_sent_end: false,
            tolerates_closed_window: false,
        }
    }

    /// Returns the pump with early data in flight.
    pub(super) fn beginning_with(mut self, early: Vec<u8>) -> Self {
        self.throttle.spend(early.len());
        self.flow.inspect(&early);
        self.in_flight = InFlight::of(Unwritten::new(early), None);
        self
    }

    /// Completes when the sending side fails after its end of stream, without reading from it. Also notes that the end
    /// of stream has been sent to the receiver.
    pub(super) async fn reader_failed(&mut self) -> Failure {
        let by = self.flow.direction.sender();
        let Flow { reader, writer, .. } = &mut self.flow;
        let sent = async {
            poll_fn(|context| writer.poll_end_sent(context)).await;
            self.has_sent_end = true;
            pending().await
        };
        let error = tokio::select! {
            error = reader.failed() => error,
            error = sent => error,
        };
        Failure::new(by, &error)
    }

    /// Returns whether the end of stream is known to be sent: the receiver may have left because of it.
    pub(super) fn has_sent_end(&self) -> bool {
        self.has_sent_end
    }

    /// Returns whether the sending side ends here: nothing is in flight, and no further byte comes before its end.
    pub(super) async fn ends_here(&mut self) -> bool {
        if !matches!(self.in_flight, InFlight::Nothing) {
            return false;
        }
        let read = |context: &mut Context<'_>| {
            let mut byte = [0];
            let read = ready!(self.flow.reader.poll_read(context, &mut byte));
            Poll::Ready(read.is_ok_and(<[u8]>::is_empty))
        };
        poll_fn(read).await
    }

    /// Returns whether the end of stream has been passed on, or is being so.
    pub(super) fn has_finished(&self) -> bool {
        self.has_finished
    }

    /// Moves bytes until the end of stream has been passed on.
    pub(super) async fn run(&mut self) -> Result<(), Failure> {
        self.flush().await?;
        loop {
            self.readable().await?;
            let admitted = self.admit(self.strategy.next().max()).await;
            self.yield_if_due().await;
            if matches!(self.strategy.next(), Step::Lend(_)) {
                boxed(self.lender_ready()).await?;
            }
            let read = poll_fn(|context| Poll::Ready(self.fill(context, admitted))).await?;
            self.settle(admitted, read.unwrap_or_default());
            match read {
                None => {}
                Some(0) => break,
                Some(read) => {
                    self.strategy.has_read(read);
                    self.flush().await?;
                    self.since_yield += read;
                }
            }
        }
        // Before the shutdown: a socket that has seen both ends of stream may be gone at once.
        self.config.before_close();
        self.has_finished = true;
        let end = poll_fn(|context| self.flow.writer.poll_shutdown(context)).await;
        // If the receiver has reset in the meantime, the other direction finds that when it reads.
        let error = end.err().filter(is_refusal_of_an_end);
        let receiver = self.flow.direction.receiver();
        error.map_or(Ok(()), |error| Err(Failure::new(receiver, &error)))
    }

    /// Waits for something to read. It comes before the limits, so that an idle tunnel takes no part of a budget.
    async fn readable(&mut self) -> Result<(), Failure> {
        let by = self.flow.direction.sender();
        let ready = poll_fn(|context| {
            let is_closed = self.config.meter.is_window_closed(self.flow.direction);
            follow_window(&mut self.tolerates_closed_window, is_closed, &self.flow.writer);
            self.flow.reader.poll_readable(context)
        })
        .await;
        ready.map_err(|error| Failure::new(by, &error))
    }

    /// Waits until every limit lets bytes through, and returns how many: 1 to `max`.
    async fn admit(&mut self, max: usize) -> usize {
        if self.throttle.is_unlimited() && self.shares.iter().flatten().all(Share::is_unlimited) {
            return max;
        }
        boxed(self.admit_by_limits(max)).await
    }

    async fn admit_by_limits(&mut self, max: usize) -> usize {
        let (meter, direction) = (self.config.meter, self.flow.direction);
        let waited = |wait| meter.throttled(direction, wait);
        let before = meter.throttled_time(direction);
        let mut admitted = self.throttle.admit(max, waited).await;
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
        if meter.throttled_time(direction) > before {
            // Other tunnels have run.
            self.since_yield = 0;
        }
        admitted
    }

    /// Charges the bytes that were read, and gives the budgets back the rest of the admitted bytes.
    fn settle(&mut self, admitted: usize, read: usize) {
        self.throttle.spend(read);
        for share in self.shares.iter_mut().flatten() {
            share.give_back(admitted.saturating_sub(read));
        }
    }

    /// Waits until the writer can lend memory. Fails if the sending side is [abandoned].
    async fn lender_ready(&mut self) -> Result<(), Failure> {
        let Flow {
            direction,
            reader,
            writer,
            ..
        } = &mut self.flow;
        let ready = poll_fn(|context| match writer.lender() {
            Some(lender) => lender.poll_ready(context),
            None => Poll::Ready(Ok(())),
        });
        tokio::select! {
            biased;
            ready = ready => ready.map_err(|error| Failure::new(direction.receiver(), &error)),
            failure = abandoned(reader, self.config, direction.sender()) => Err(failure),
        }
    }

    /// Writes all that is in flight. Fails if the sending side is [abandoned].
    pub(super) async fn flush(&mut self) -> Result<(), Failure> {
        // Most often the receiver takes all of it at once, which needs no clock.
        let at_once = poll_fn(|context| Poll::Ready(self.poll_write(context))).await;
        let slowly = match at_once {
            Poll::Ready(Ok(())) => false,
            Poll::Ready(Err(error)) => return Err(Failure::new(self.flow.direction.receiver(), &error)),
            Poll::Pending => boxed(self.wait_until_written()).await? >= SLOW,
        };
        self.strategy.has_written(slowly);
        Ok(())
    }

    /// Writes all that is in flight, and returns how long that took.
    async fn wait_until_written(&mut self) -> Result<Duration, Failure> {
        let start = Instant::now();
        let (direction, moved) = (self.flow.direction, self.moved());
        let (Flow { reader, writer, .. }, in_flight) = (&mut self.flow, &mut self.in_flight);
        let (meter, is_tolerated) = (self.config.meter, &mut self.tolerates_closed_window);
        let write = |context: &mut Context<'_>| {
            follow_window(is_tolerated, meter.is_window_closed(direction), writer);
            in_flight.poll_write(context, writer, &moved)
        };
        tokio::select! {
            biased;
            written = poll_fn(write) => match written {
                Ok(()) => Ok(start.elapsed()),
                Err(error) => Err(Failure::new(direction.receiver(), &error)),
            },
            failure = abandoned(reader, self.config, direction.sender()) => Err(failure),
        }
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let moved = self.moved();
        self.in_flight.poll_write(context, &mut self.flow.writer, moved)
    }

    /// Reads at most `max` bytes: 0 at the end of stream, `None` if there are none after all.
    fn fill(&mut self, context: &mut Context<'_>, max: usize) -> Result<Option<usize>, Failure> {
        match self.strategy.next() {
            Step::Splice(_) => self.splice(context, max),
            Step::LargeCopy(_) if max > copy::MAX_BYTES => {
                let slot = self.config.resources.large_pieces.take();
                self.copy(context, if slot.is_some() { max } else { copy::MAX_BYTES }, slot)
            }
            Step::Copy(_) | Step::LargeCopy(_) => self.copy(context, max, None),
            Step::Lend(_) => {
                let moved = self.moved();
                let copied = self.flow.poll_lent(context, max, moved);
                self.account(copied, None)
            }
        }
    }

    /// Fills a pipe, if there is one. It is taken only now that there is something to put into it.
    ///
    /// At TCP urgent data splice(2) always fails with EAGAIN or, once the peer has finished, returns 0, although more
    /// bytes follow and the socket stays readable. read(2) skips the mark, so a copy follows in both cases.
    fn splice(&mut self, context: &mut Context<'_>, max: usize) -> Result<Option<usize>, Failure> {
        let by = self.flow.direction.sender();
        let (Some(socket), Some(mut pipe)) = (self.flow.reader.socket(), self.config.resources.pipes.take()) else {
            return self.copy(context, max.min(copy::MAX_BYTES), None);
        };
        match pipe.try_fill(socket, max) {
            Ok(0) => self.copy(context, max.min(copy::MAX_BYTES), None),
            Ok(read) => {
                self.flow.skip();
                self.in_flight = InFlight::Piped(pipe);
                Ok(Some(read))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock || pipe.is_refused(&error) => {
                self.copy(context, max.min(copy::MAX_BYTES), None)
            }
            Err(error) => Err(Failure::new(by, &error)),
        }
    }

    /// Copies at most `max` bytes. `slot` is that of a large piece.
    fn copy(&mut self, context: &mut Context<'_>, max: usize, slot: Option<Slot>) -> Result<Option<usize>, Failure> {
        let moved = self.moved();
        let copied = self.flow.poll_copy(context, max, moved);
        self.account(copied, slot)
    }

    /// Keeps in flight what a copy has not written. `slot` is that of a large piece.
    fn account(
        &mut self,
        copied: Poll<Result<CopyResult, Failure>>,
        slot: Option<Slot>,
    ) -> Result<Option<usize>, Failure> {
        let Poll::Ready(copied) = copied? else {
            return Ok(None);
        };
        self.in_flight = InFlight::of(copied.residue, slot.filter(|_| copied.read > copy::MAX_BYTES));
        Ok(Some(copied.read))
    }

    /// Returns the function that counts written bytes.
    fn moved(&self) -> impl Fn(usize) + 'a {
        let (meter, direction) = (self.config.meter, self.flow.direction);
        move |bytes| meter.record(direction, bytes)
    }

    /// Lets other tunnels run: a fast reader and writer would never have to wait.
    async fn yield_if_due(&mut self) {
        let most = match self.strategy.next() {
            Step::Splice(_) => splice::MAX_BYTES,
            Step::Copy(_) | Step::LargeCopy(_) | Step::Lend(_) => MAX_COPIED,
        };
        if self.since_yield >= most {
            self.since_yield = 0;
            if self.strategy.shares_task() {
                yield_within_task().await;
            } else {
                boxed(self.config.resources.yielder.yield_now()).await;
            }
        }
    }
}

impl InFlight<'_> {
    fn of(residue: Option<Unwritten>, large: Option<Slot>) -> Self {
        match (residue, large) {
            (None, None) => Self::Nothing,
            (residue, _large) => Self::Copied { residue, _large },
        }
    }

    /// Writes all of it, and what the writer holds back. `moved` is called with the length of each write.
    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        writer: &mut impl Writer,
        moved: impl Fn(usize),
    ) -> Poll<io::Result<()>> {
        if let Self::Piped(pipe) = self
            && let Some(socket) = writer.socket()
        {
            let left = ready!(pipe.poll_drain(context, socket, &moved))?;
            *self = Self::of(Unwritten::new(left), None);
        }
        if let Self::Copied { residue, .. } = self
            && let Some(unwritten) = residue
        {
            ready!(unwritten.poll_write(context, writer, moved))?;
            *residue = None;
        }
        ready!(writer.poll_flush(context))?;
        *self = Self::Nothing;
        Poll::Ready(Ok(()))
    }
}

/// Makes the kernel wait for a receiver as long as its window is closed.
fn follow_window(is_tolerated: &mut bool, is_closed: bool, writer: &impl Writer) {
    if mem::replace(is_tolerated, is_closed) != is_closed {
        writer.tolerate_closed_window(is_closed);
    }
}

/// Lets the other futures of the task run. tokio's yield would also let other tasks run, and an idle worker thread take
/// this task over, with cold caches.
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

/// The time of a full pipe at 100 MiB/s. A faster receiver empties its pipe before a user notices a delayed keystroke.
const SLOW: Duration = Duration::from_millis(10);
/// The most bytes that a direction copies before it yields. One that splices yields after a full pipe: a session's bytes come
/// in halves of one, and a yield for each took 10 % of the proxy's CPU time (docs/decisions/13-session-bulk.md).
const MAX_COPIED: usize = 512 * 1024;

#[cfg(test)]
mod tests;
