//! Shares one rate among many tunnels: in equal parts, and with small messages before bulk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::bucket::{Bucket, Limit};
use super::{Rate, SharedLimits, Size};
use crate::direction::Direction;

/// One rate for one direction of all tunnels of a target, of a client or of the process.
///
/// Start-time fair queueing (Goyal, Vin and Cheng, 1996): a request is tagged with the bytes that its tunnel has been
/// granted, or with the tag of the request served last if that is larger, and the smallest tag is served first. A tunnel
/// in bulk runs ahead of the others by each grant, so the busy ones alternate. That alone would have a keystroke wait
/// for a grant to each of them. So, as in fq_codel (RFC 8290), tunnels that are less than a grant ahead come first:
/// those that send less than their share. Which kind a tunnel is shows in what it sends, and what one tunnel does not
/// ask for is shared by the others.
#[derive(Debug)]
pub struct Budget {
    limit: Limit,
    state: Mutex<State>,
}

/// The budgets of both directions.
#[derive(Debug)]
pub struct Budgets {
    upload: Budget,
    download: Budget,
}

impl Budgets {
    /// Full budgets.
    pub fn new(limits: SharedLimits, burst: Size) -> Self {
        Self {
            upload: Budget::new(limits.upload, burst),
            download: Budget::new(limits.download, burst),
        }
    }

    /// Changes both; tunnels that wait follow soon.
    pub fn set(&self, limits: SharedLimits, burst: Size) {
        self.upload.set(limits.upload, burst);
        self.download.set(limits.download, burst);
    }

    /// The budget of one direction.
    pub fn of(&self, direction: Direction) -> &Budget {
        match direction {
            Direction::Upload => &self.upload,
            Direction::Download => &self.download,
        }
    }
}

#[derive(Debug)]
struct State {
    /// In debt when the last grant was larger than the credit: a grant is never cut to crumbs.
    bucket: Bucket,
    /// The largest tag of a request that was served in turn.
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
    /// A full budget.
    pub fn new(rate: Rate, burst: Size) -> Self {
        let limit = Limit::new(rate, burst);
        let state = State {
            bucket: Bucket::full(&limit),
            served: 0,
            tickets: 0,
            queue: BTreeMap::new(),
        };
        Self {
            limit,
            state: Mutex::new(state),
        }
    }

    /// Changes it; tunnels that wait follow within [`LONGEST_WAIT`](super::bucket::LONGEST_WAIT).
    pub fn set(&self, rate: Rate, burst: Size) {
        self.limit.set(rate, burst);
    }

    /// The rate in force.
    pub fn rate(&self) -> Rate {
        self.limit.rate()
    }

    /// The share of one tunnel.
    pub fn share(&self) -> Share<'_> {
        Share {
            budget: self,
            granted_to: 0,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
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
    /// Waits until it is served, and returns how many bytes it is granted: 1 to `most`.
    ///
    /// `waited` is called with the length of each wait. What is not used is [given back](Self::give_back).
    pub async fn take(&mut self, most: usize, waited: impl Fn(Duration)) -> usize {
        let rate = self.budget.rate();
        if rate.is_unlimited() {
            return most;
        }
        if let Some(granted) = self.take_at_once(rate, most) {
            return granted;
        }
        let start = Instant::now();
        let granted = Box::pin(self.queue(most)).await;
        waited(start.elapsed());
        granted
    }

    /// Returns what was granted and not used.
    pub fn give_back(&mut self, bytes: usize) {
        if bytes > 0 && !self.budget.rate().is_unlimited() {
            self.budget.lock().bucket.give_back(bytes as u64);
            self.granted_to = self.granted_to.saturating_sub(bytes as u64);
        }
    }

    fn take_at_once(&mut self, rate: Rate, most: usize) -> Option<usize> {
        let mut state = self.budget.lock();
        state.earn(&self.budget.limit);
        let free = state.queue.is_empty() && state.bucket.has_credit();
        free.then(|| self.grant(&mut state, rate, most, true))
    }

    async fn queue(&mut self, most: usize) -> usize {
        let request = Request::queue(self.budget, self.granted_to);
        loop {
            match request.next() {
                Next::Grant(rate) => {
                    let mut state = self.budget.lock();
                    // Under one lock with the removal: no other request may be granted in between.
                    request.leave(&mut state);
                    return if rate.is_unlimited() {
                        most
                    } else {
                        self.grant(&mut state, rate, most, request.position.bulk)
                    };
                }
                Next::Sleep(until) => sleep_until(until).await,
                Next::Wait => request.wake.notified().await,
            }
        }
    }

    fn grant(&mut self, state: &mut State, rate: Rate, most: usize, in_turn: bool) -> usize {
        let granted = quantum(rate).min(most as u64);
        state.bucket.spend(granted);
        let tag = self.granted_to.max(state.served);
        // A small message that is served before waiting bulk does not move the tags on.
        if in_turn || state.queue.is_empty() {
            state.served = tag;
        }
        self.granted_to = tag + granted;
        usize::try_from(granted).unwrap_or(most)
    }
}

/// A request in the queue, until it is dropped.
struct Request<'a> {
    budget: &'a Budget,
    position: Position,
    wake: Arc<Notify>,
}

/// What a request has to do next.
enum Next {
    /// Take its grant: it is first, and there is credit.
    Grant(Rate),
    /// Sleep: it is first, and there will be credit then.
    Sleep(Instant),
    /// Wait to be woken: other requests are before it.
    Wait,
}

impl<'a> Request<'a> {
    fn queue(budget: &'a Budget, granted_to: u64) -> Self {
        let mut state = budget.lock();
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

    fn next(&self) -> Next {
        let mut state = self.budget.lock();
        let rate = self.budget.rate();
        if state
            .queue
            .first_key_value()
            .is_some_and(|(first, _)| *first != self.position)
        {
            return Next::Wait;
        }
        state.earn(&self.budget.limit);
        if rate.is_unlimited() || state.bucket.has_credit() {
            return Next::Grant(rate);
        }
        Next::Sleep(state.bucket.has_credit_at(rate))
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
        self.leave(&mut self.budget.lock());
    }
}

impl State {
    /// Whether a tunnel with that tag has lately been granted less than its share.
    fn is_sparse(&self, tag: u64, rate: Rate) -> bool {
        tag.saturating_sub(self.served) < quantum(rate)
    }

    /// Earns up to now.
    fn earn(&mut self, limit: &Limit) {
        let is_waiting = !self.queue.is_empty();
        self.bucket.earn(limit, is_waiting);
    }
}

/// The bytes of one grant: 2 ms of the rate, so that the next request waits no longer than that.
fn quantum(rate: Rate) -> u64 {
    (rate.get() / QUANTA_PER_SECOND).max(SMALLEST_QUANTUM)
}

const QUANTA_PER_SECOND: u64 = 500;
/// The smallest grant, in bytes, for slow rates: less would be all overhead.
const SMALLEST_QUANTUM: u64 = 512;

#[cfg(test)]
mod tests {
    use super::super::bucket::LONGEST_WAIT;
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    fn budget(rate: &str, burst: &str) -> Budget {
        Budget::new(rate.parse().unwrap(), burst.parse().unwrap())
    }

    /// Takes as much as it is granted, in pieces of at most `most`, until dropped. Counts the bytes into `had`.
    async fn take_all(budget: &Budget, most: usize, had: &Cell<u64>) {
        let mut share = budget.share();
        loop {
            let granted = share.take(most, |_| ()).await;
            assert!((1..=most).contains(&granted));
            had.set(had.get() + granted as u64);
        }
    }

    fn assert_within(value: u64, expected: u64, percent: u64) {
        assert!(
            value.abs_diff(expected) * 100 <= expected * percent,
            "{value} is not within {percent} % of {expected}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn busy_tunnels_get_equal_shares_whatever_they_ask_for_at_a_time() {
        for (rate, n) in [("64KiB/s", 3_u64), ("10MiB/s", 8), ("1GiB/s", 5)] {
            // The burst goes to the first tunnel.
            let budget = budget(rate, "4KiB");
            let had: Vec<_> = (0..n).map(|_| Cell::new(0)).collect();
            let sizes = [1500, 65_536, 262_144, 9000];
            let all = futures_of(
                had.iter()
                    .zip(sizes.iter().cycle())
                    .map(|(had, &most)| take_all(&budget, most, had)),
            );
            tokio::time::timeout(Duration::from_secs(20), all).await.unwrap_err();
            let rate = budget.rate().get();
            let total: u64 = had.iter().map(Cell::get).sum();
            assert_within(total - budget.limit.burst(), rate * 20, 2);
            for had in &had {
                assert_within(had.get(), rate * 20 / n, 10);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_one_tunnel_does_not_use_is_shared_by_the_others() {
        let budget = budget("10MiB/s", "64KiB");
        let (slow, fast) = (Cell::new(0), Cell::new(0));
        let trickle = async {
            let mut share = budget.share();
            loop {
                let granted = share.take(65_536, |_| ()).await;
                share.give_back(granted - 100);
                slow.set(slow.get() + 100);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let both = async { tokio::join!(trickle, take_all(&budget, 65_536, &fast)) };
        tokio::time::timeout(Duration::from_secs(10), both).await.unwrap_err();
        assert_within(slow.get() + fast.get(), 100 << 20, 2);
        assert!(slow.get() >= 80_000, "{}", slow.get());
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_of_small_messages_does_not_queue_behind_bulk() {
        let budget = Rc::new(budget("1MiB/s", "64KiB"));
        let local = tokio::task::LocalSet::new();
        for _ in 0..20 {
            let budget = Rc::clone(&budget);
            local.spawn_local(async move { take_all(&budget, 65_536, &Cell::new(0)).await });
        }
        let waits = local.run_until(async {
            let mut share = budget.share();
            let mut waits = Vec::new();
            tokio::time::sleep(Duration::from_secs(1)).await;
            for _ in 0..200 {
                let start = Instant::now();
                let granted = share.take(65_536, |_| ()).await;
                share.give_back(granted - 64);
                waits.push(start.elapsed());
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            waits
        });
        let longest = waits.await.into_iter().max().unwrap();
        assert!(longest <= Duration::from_millis(6), "{longest:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_given_up_leaves_the_queue_to_the_next() {
        let budget = budget("1KiB/s", "1KiB");
        let (one, other) = (Cell::new(0), Cell::new(0));
        budget.share().take(1024, |_| ()).await;
        for _ in 0..50 {
            let impatient = tokio::time::timeout(Duration::from_millis(3), take_all(&budget, 1024, &one));
            impatient.await.unwrap_err();
        }
        let patient = tokio::time::timeout(Duration::from_secs(10), take_all(&budget, 1024, &other));
        patient.await.unwrap_err();
        assert!(other.get() >= 9 * 1024, "{}", other.get());
        assert!(budget.lock().queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_rate_reaches_requests_that_wait() {
        let budget = budget("1B/s", "1B");
        budget.share().take(1, |_| ()).await;
        let start = Instant::now();
        let mut shares: Vec<_> = (0..10).map(|_| budget.share()).collect();
        let waiting = futures_of(
            shares
                .iter_mut()
                .map(|share| async { assert!(share.take(4096, |_| ()).await > 0) }),
        );
        let change = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            budget.set(Rate::UNLIMITED, Size::bytes(1).unwrap());
        };
        tokio::join!(waiting, change);
        assert!(
            start.elapsed() <= Duration::from_millis(500) + LONGEST_WAIT,
            "{:?}",
            start.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn unlimited_costs_nothing_and_a_pause_saves_the_burst_only() {
        let budget = budget("unlimited", "64KiB");
        let mut share = budget.share();
        assert_eq!(share.take(1 << 20, |_| ()).await, 1 << 20);
        budget.set("1MiB/s".parse().unwrap(), "64KiB".parse().unwrap());
        tokio::time::advance(Duration::from_secs(60)).await;
        let (start, mut at_once) = (Instant::now(), 0);
        while start.elapsed() == Duration::ZERO {
            at_once += share.take(4096, |_| ()).await;
        }
        assert!((60 << 10..=72 << 10).contains(&at_once), "{at_once}");
    }

    async fn futures_of(all: impl Iterator<Item = impl Future<Output = ()>>) {
        let mut all: Vec<_> = all.map(Box::pin).collect();
        std::future::poll_fn(|context| {
            all.retain_mut(|future| future.as_mut().poll(context).is_pending());
            if all.is_empty() {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        })
        .await;
    }
}
