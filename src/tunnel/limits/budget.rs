//! Shares one rate among many tunnels: in equal parts, and with small messages before bulk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::bucket::{RateLimit, TokenBucket};
use super::{Rate, SharedLimits, Size};
use crate::base::boxed::boxed;
use crate::tunnel::direction::Both;

/// One rate for one direction of all tunnels of a target, of a limit owner or of the process.
///
/// Start-time fair queueing (Goyal, Vin and Cheng, 1996): the request with the smallest tag is served first. Its tag is
/// the number of bytes granted to its tunnel, or the tag of the request served last if that is larger. Each grant puts
/// a tunnel in bulk further ahead, so busy tunnels alternate. Alone, that would make a keystroke wait for a grant to
/// each of them. So, as in fq_codel (RFC 8290), tunnels that are less than a grant ahead come first: those that send
/// less than their share.
#[derive(Debug)]
pub struct Budget {
    limit: RateLimit,
    state: Mutex<State>,
}

/// The budgets of both directions.
pub type Budgets = Both<Budget>;

impl Budgets {
    /// Creates full budgets.
    pub fn new(limits: SharedLimits, burst: Size) -> Self {
        Self::from_fn(|direction| Budget::new(limits[direction], burst))
    }

    /// Creates budgets that are full at these times.
    pub(super) fn with_fill_times(limits: SharedLimits, burst: Size, times: &Both<Instant>) -> Self {
        Self::from_fn(|direction| {
            let mut budget = Budget::new(limits[direction], burst);
            let bucket = TokenBucket::full(&budget.limit);
            budget.state.get_mut().bucket = bucket.with_fill_time(times[direction], limits[direction]);
            budget
        })
    }

    /// Returns when each will be full.
    pub(super) fn fill_times(&self) -> Both<Instant> {
        Both::from_fn(|direction| {
            let Budget { limit, state } = &self[direction];
            let mut state = state.lock();
            state.earn(limit);
            state.bucket.fill_time(limit)
        })
    }

    /// Changes both, as [`Budget::set`] does.
    pub fn set(&self, limits: SharedLimits, burst: Size) {
        self.upload.set(limits.upload, burst);
        self.download.set(limits.download, burst);
    }
}

#[derive(Debug)]
struct State {
    /// In debt if the last grant exceeded the credit: a grant is not cut to what is left.
    bucket: TokenBucket,
    /// The largest tag that was served. A small message that is served while other requests wait does not count.
    served: u64,
    /// The number of requests that have been queued.
    tickets: u64,
    queue: BTreeMap<Position, Arc<Notify>>,
}

/// The position of a request in the queue: small messages before bulk, then by tag, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Position {
    bulk: bool,
    tag: u64,
    ticket: u64,
}

impl Budget {
    /// Creates a full budget.
    pub fn new(rate: Rate, burst: Size) -> Self {
        let limit = RateLimit::new(rate, burst);
        let state = State {
            bucket: TokenBucket::full(&limit),
            served: 0,
            tickets: 0,
            queue: BTreeMap::new(),
        };
        Self {
            limit,
            state: Mutex::new(state),
        }
    }

    /// Changes rate and burst; tunnels that wait follow within [`MAX_WAIT`](super::bucket::MAX_WAIT).
    pub fn set(&self, rate: Rate, burst: Size) {
        self.limit.set(rate, burst);
    }

    /// Returns the rate in effect.
    pub fn rate(&self) -> Rate {
        self.limit.rate()
    }

    /// Returns the share of one tunnel.
    pub fn share(&self) -> Share<'_> {
        Share {
            budget: self,
            granted_to: 0,
        }
    }
}

/// The share of one tunnel in a budget.
#[derive(Debug)]
pub struct Share<'a> {
    budget: &'a Budget,
    /// The least tag of its next request: where its last grant ended, in bytes on the scale of all tags.
    granted_to: u64,
}

impl Share<'_> {
    /// Returns whether no limit is set now: every grant would be the whole `max`.
    pub fn is_unlimited(&self) -> bool {
        self.budget.rate().is_unlimited()
    }

    /// Waits until it is served, and returns how many bytes it is granted: 1 to `max`.
    ///
    /// `waited` is called with the length of each wait. The caller [gives back](Self::give_back) unused bytes.
    pub async fn take(&mut self, max: usize, waited: impl Fn(Duration)) -> usize {
        let rate = self.budget.rate();
        if rate.is_unlimited() {
            return max;
        }
        if let Some(granted) = self.take_at_once(rate, max) {
            return granted;
        }
        let start = Instant::now();
        let granted = boxed(self.queue(max)).await;
        waited(start.elapsed());
        granted
    }

    /// Refunds bytes that were granted and not used.
    pub fn give_back(&mut self, bytes: usize) {
        if bytes > 0 && !self.budget.rate().is_unlimited() {
            self.budget.state.lock().bucket.give_back(bytes as u64);
            self.granted_to = self.granted_to.saturating_sub(bytes as u64);
        }
    }

    fn take_at_once(&mut self, rate: Rate, max: usize) -> Option<usize> {
        let mut state = self.budget.state.lock();
        state.earn(&self.budget.limit);
        let free = state.queue.is_empty() && state.bucket.has_credit();
        free.then(|| self.grant(&mut state, rate, max, true))
    }

    async fn queue(&mut self, max: usize) -> usize {
        let request = Request::queue(self.budget, self.granted_to);
        loop {
            match request.next() {
                NextStep::Grant(rate) => {
                    let mut state = self.budget.state.lock();
                    // Under one lock with the removal: no other request may be granted in between.
                    request.leave(&mut state);
                    return if rate.is_unlimited() {
                        max
                    } else {
                        self.grant(&mut state, rate, max, request.position.bulk)
                    };
                }
                NextStep::Sleep(until) => sleep_until(until).await,
                NextStep::Wait => request.wake.notified().await,
            }
        }
    }

    fn grant(&mut self, state: &mut State, rate: Rate, max: usize, in_turn: bool) -> usize {
        let granted = quantum(rate).min(max as u64);
        state.bucket.debit(granted);
        let tag = self.granted_to.max(state.served);
        // A small message that is served while others wait does not advance the tags.
        if in_turn || state.queue.is_empty() {
            state.served = tag;
        }
        self.granted_to = tag + granted;
        usize::try_from(granted).unwrap_or(max)
    }
}

/// A request in the queue, until it is dropped.
struct Request<'a> {
    budget: &'a Budget,
    position: Position,
    wake: Arc<Notify>,
}

/// The next step of a request for credit.
enum NextStep {
    /// Take its grant: it is first, and there is credit or no limit.
    Grant(Rate),
    /// Sleep: it is first, and there will be credit then.
    Sleep(Instant),
    /// Wait to be woken: other requests are before it.
    Wait,
}

impl<'a> Request<'a> {
    fn queue(budget: &'a Budget, granted_to: u64) -> Self {
        let mut state = budget.state.lock();
        state.tickets += 1;
        let tag = granted_to.max(state.served);
        let position = Position {
            bulk: !state.is_sparse(tag, budget.rate()),
            tag,
            ticket: state.tickets,
        };
        let wake = Arc::new(Notify::new());
        state.queue.insert(position, Arc::clone(&wake));
        Self { budget, position, wake }
    }

    fn next(&self) -> NextStep {
        let mut state = self.budget.state.lock();
        let rate = self.budget.rate();
        if state
            .queue
            .first_key_value()
            .is_some_and(|(first, _)| *first != self.position)
        {
            return NextStep::Wait;
        }
        state.earn(&self.budget.limit);
        if rate.is_unlimited() || state.bucket.has_credit() {
            return NextStep::Grant(rate);
        }
        NextStep::Sleep(state.bucket.has_credit_at(rate))
    }

    fn leave(&self, state: &mut State) {
        if state.queue.remove(&self.position).is_some()
            && let Some((_, next)) = state.queue.first_key_value()
        {
            next.notify_one();
        }
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.leave(&mut self.budget.state.lock());
    }
}

impl State {
    /// Returns whether a request with that tag is less than a grant ahead: its tunnel sends less than its share.
    fn is_sparse(&self, tag: u64, rate: Rate) -> bool {
        tag.saturating_sub(self.served) < quantum(rate)
    }

    /// Refills the bucket up to now.
    fn earn(&mut self, limit: &RateLimit) {
        let is_waiting = !self.queue.is_empty();
        self.bucket.refill(limit, is_waiting);
    }
}

/// Returns the bytes of one grant: those of 2 ms, so that the next grant waits no longer, but at least [`MIN_QUANTUM`].
fn quantum(rate: Rate) -> u64 {
    (rate.get() / QUANTA_PER_SECOND).max(MIN_QUANTUM)
}

const QUANTA_PER_SECOND: u64 = 500;
/// The smallest grant, in bytes: at slow rates the overhead of smaller ones would prevail.
const MIN_QUANTUM: u64 = 512;

#[cfg(test)]
mod tests;
