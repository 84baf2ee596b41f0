//! Shares one rate among many tunnels: equal parts for all who want one, and small messages before bulk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::bucket::{Bucket, Limit};
use super::{Rate, SharedLimits, Size};
use crate::direction::Direction;

/// One rate for all tunnels of a target, of a client or of the process, one direction of them.
///
/// Start-time fair queueing (Goyal, Vin and Cheng, 1996): a request is tagged with the bytes that its tunnel has had,
/// or with those of the tunnel served last if that is more, and the smallest tag is served first. Who sends in bulk
/// runs ahead of the others by what it is granted, so the busy ones take turns. That alone would let a keystroke wait
/// for everybody's turn, so, as in fq_codel (RFC 8290), tunnels that are less than a grant ahead come first: those
/// that send less than their part. Nobody has to say which kind it is, and what one does not ask for the others get.
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

    /// Changes both; those who wait follow soon.
    pub fn set(&self, limits: SharedLimits, burst: Size) {
        self.upload.set(limits.upload, burst);
        self.download.set(limits.download, burst);
    }

    /// That of one direction.
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
    tickets: u64,
    waiting: BTreeMap<Position, Arc<Notify>>,
}

/// Where a request stands in the queue: by what it is, then by its tag, then by arrival.
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
            waiting: BTreeMap::new(),
        };
        Self {
            limit,
            state: Mutex::new(state),
        }
    }

    /// Changes it; those who wait follow within [`LONGEST_WAIT`](super::bucket::LONGEST_WAIT).
    pub fn set(&self, rate: Rate, burst: Size) {
        self.limit.set(rate, burst);
    }

    /// The rate in force.
    pub fn rate(&self) -> Rate {
        self.limit.rate()
    }

    /// One tunnel's part in it.
    pub fn share(&self) -> Share<'_> {
        Share { budget: self, had: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// One tunnel's part in a budget.
#[derive(Debug)]
pub struct Share<'a> {
    budget: &'a Budget,
    /// The tag of its next request: what it has had, on the clock of those who were served.
    had: u64,
}

impl Share<'_> {
    /// Waits for its turn, and says how many bytes it has been granted: 1 to `most`.
    ///
    /// `waited` is told of every wait. What is not used is [given back](Self::give_back).
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
            self.had = self.had.saturating_sub(bytes as u64);
        }
    }

    fn take_at_once(&mut self, rate: Rate, most: usize) -> Option<usize> {
        let mut state = self.budget.lock();
        state.earn(&self.budget.limit);
        let free = state.waiting.is_empty() && state.bucket.has_credit();
        free.then(|| self.grant(&mut state, rate, most, true))
    }

    async fn queue(&mut self, most: usize) -> usize {
        let place = Place::of(self.budget, self.had);
        loop {
            match place.turn() {
                Turn::Now(rate) => {
                    let mut state = self.budget.lock();
                    // Under one lock with the removal: nobody may slip in between.
                    place.leave(&mut state);
                    return if rate.is_unlimited() {
                        most
                    } else {
                        self.grant(&mut state, rate, most, place.position.bulk)
                    };
                }
                Turn::At(time) => sleep_until(time).await,
                Turn::Later => place.wake.notified().await,
            }
        }
    }

    fn grant(&mut self, state: &mut State, rate: Rate, most: usize, in_turn: bool) -> usize {
        let granted = quantum(rate).min(most as u64);
        state.bucket.spend(granted);
        let tag = self.had.max(state.served);
        // While bulk waits its clock stands still for those who go before it.
        if in_turn || state.waiting.is_empty() {
            state.served = tag;
        }
        self.had = tag + granted;
        usize::try_from(granted).unwrap_or(most)
    }
}

/// A place in the queue; dropped, it makes room.
struct Place<'a> {
    budget: &'a Budget,
    position: Position,
    wake: Arc<Notify>,
}

enum Turn {
    Now(Rate),
    /// It is first, and there is credit then.
    At(Instant),
    /// Others are before it; it will be woken.
    Later,
}

impl<'a> Place<'a> {
    fn of(budget: &'a Budget, had: u64) -> Self {
        let mut state = budget.lock();
        state.tickets += 1;
        let tag = had.max(state.served);
        let position = Position {
            bulk: !state.is_sparse(tag, budget.rate()),
            tag,
            ticket: state.tickets,
        };
        let wake = Arc::new(Notify::new());
        state.waiting.insert(position, Arc::clone(&wake));
        Self { budget, position, wake }
    }

    fn turn(&self) -> Turn {
        let mut state = self.budget.lock();
        let rate = self.budget.rate();
        if state
            .waiting
            .first_key_value()
            .is_some_and(|(first, _)| *first != self.position)
        {
            return Turn::Later;
        }
        state.earn(&self.budget.limit);
        if rate.is_unlimited() || state.bucket.has_credit() {
            return Turn::Now(rate);
        }
        Turn::At(state.bucket.has_credit_at(rate))
    }

    fn leave(&self, state: &mut State) {
        if state.waiting.remove(&self.position).is_some()
            && let Some((_, next)) = state.waiting.first_key_value()
        {
            next.notify_one();
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.leave(&mut self.budget.lock());
    }
}

impl State {
    /// Whether a tunnel with that tag has had less than its part lately.
    fn is_sparse(&self, tag: u64, rate: Rate) -> bool {
        tag.saturating_sub(self.served) < quantum(rate)
    }

    /// Earns up to now.
    fn earn(&mut self, limit: &Limit) {
        let is_waiting = !self.waiting.is_empty();
        self.bucket.earn(limit, is_waiting);
    }
}

/// What a request is granted at a time: 2 ms of the rate, so that whoever is next waits no longer than that.
fn quantum(rate: Rate) -> u64 {
    (rate.get() / QUANTA_PER_SECOND).max(SMALLEST_QUANTUM)
}

const QUANTA_PER_SECOND: u64 = 500;
/// A slow rate is granted this much at a time, in bytes: less would be all overhead.
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

    /// Takes as much as it gets, in pieces of at most `most`, until dropped; counts into `had`.
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
    async fn busy_tunnels_get_equal_parts_whatever_they_ask_for_at_a_time() {
        for (rate, n) in [("64KiB/s", 3_u64), ("10MiB/s", 8), ("1GiB/s", 5)] {
            // The burst goes to whoever comes first.
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
    async fn what_one_does_not_use_the_others_get() {
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
    async fn who_gives_up_waiting_leaves_its_place_to_the_next() {
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
        assert!(budget.lock().waiting.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_rate_reaches_those_who_wait() {
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
