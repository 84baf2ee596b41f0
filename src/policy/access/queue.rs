//! Limits the concurrent reviews of all clients and of each network: a flood from one starves no other.
//!
//! The network whose last request was longest ago is next, so a newcomer does not wait for those that have just asked.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::policy::access::files::passwords::MAX_HASHED;
use crate::tunnel::limits::owners::network;

/// The permits of reviews, and the requests that wait for one.
#[derive(Debug)]
pub(super) struct ReviewQueue {
    limits: QueueLimits,
    state: Mutex<State>,
}

/// The limits of running reviews, and of requests that wait for one.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueLimits {
    /// Reviews at a time, of all clients.
    pub(super) in_flight: usize,
    /// Reviews at a time of one network.
    pub(super) in_flight_per_network: usize,
    /// Requests that wait, of all clients.
    pub(super) waiting: usize,
    /// Requests that wait, of one network.
    pub(super) waiting_per_network: usize,
    /// The longest wait.
    pub(super) timeout: Duration,
}

impl QueueLimits {
    /// The limits of reviews that cost the API server 1 ms of CPU time or more: eight at a time occupy all its CPUs.
    pub(super) const COSTLY: Self = Self {
        in_flight: 8,
        in_flight_per_network: 2,
        waiting: 64,
        waiting_per_network: 8,
        timeout: Duration::from_secs(3),
    };

    /// The limits of passwords. After a change of the file a whole office may log in, and each hash takes tenths of a
    /// second.
    pub(super) const PASSWORDS: Self = Self {
        in_flight: MAX_HASHED,
        in_flight_per_network: 2,
        waiting: 256,
        waiting_per_network: 64,
        timeout: Duration::from_secs(10),
    };
}

#[derive(Debug, Default)]
struct State {
    /// The networks that have a permit, a waiting request or a recent request.
    networks: HashMap<IpAddr, Network>,
    /// The requests that wait, in the order of their turns.
    waiting: BTreeMap<Turn, (IpAddr, oneshot::Sender<Permit>)>,
    /// The number of permits in use.
    in_flight: usize,
    /// The number of requests so far.
    requests: u64,
}

#[derive(Debug, Default)]
struct Network {
    /// The number of its permits.
    in_flight: usize,
    /// The number of its requests that wait.
    waiting: usize,
    /// The number of its last request; 0 if that is forgotten.
    last: u64,
}

/// The number of the same network's previous request, and that of the request itself.
type Turn = (u64, u64);

/// The permission for one review, until it is dropped.
#[derive(Debug)]
#[must_use = "dropping the permit admits the next request"]
pub(super) struct Permit {
    queue: Arc<ReviewQueue>,
    network: IpAddr,
}

impl ReviewQueue {
    /// Creates an empty queue.
    pub(super) fn new(limits: QueueLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            state: Mutex::default(),
        })
    }

    /// Takes a permit on behalf of a client, at once or after others. `None` if the queue is full, or the request is
    /// evicted or waits too long.
    pub(super) async fn enter(self: &Arc<Self>, client: IpAddr) -> Option<Permit> {
        let (grant, granted) = oneshot::channel();
        let turn = self.state.lock().add(network(client), grant, &self.limits)?;
        let _left = LeaveOnDrop { queue: self, turn };
        self.serve();
        timeout(self.limits.timeout, granted).await.ok()?.ok()
    }

    /// Gives free permits to those that wait.
    fn serve(self: &Arc<Self>) {
        loop {
            let Some((network, grant)) = self.state.lock().next_waiting(&self.limits) else {
                return;
            };
            let queue = Arc::clone(self);
            // If the request has just left, its permit is dropped, which serves the next one.
            grant.send(Permit { queue, network }).ok();
        }
    }
}

impl State {
    /// Adds a request to those that wait; `None` if no permit is free for it, and there is no room.
    fn add(&mut self, network: IpAddr, grant: oneshot::Sender<Permit>, limits: &QueueLimits) -> Option<Turn> {
        if self.networks.len() >= MAX_NETWORKS {
            let oldest = self.requests.saturating_sub(MIN_MEMORY);
            self.networks
                .retain(|_, own| own.in_flight + own.waiting > 0 || own.last > oldest);
        }
        let own = self.networks.entry(network).or_default();
        let turn = (own.last, self.requests + 1);
        let is_free = self.in_flight < limits.in_flight && own.in_flight < limits.in_flight_per_network;
        if !is_free {
            let has_room = own.waiting < limits.waiting_per_network;
            if !has_room || (self.waiting.len() >= limits.waiting && !self.evict_newest(turn)) {
                return None;
            }
        }
        self.requests += 1;
        let own = self.networks.entry(network).or_default();
        own.last = self.requests;
        own.waiting += 1;
        self.waiting.insert(turn, (network, grant));
        Some(turn)
    }

    /// Evicts the last waiting request if its turn is after this one. Returns whether it did.
    fn evict_newest(&mut self, turn: Turn) -> bool {
        let last = self.waiting.last_key_value().map(|(last, _)| *last);
        last.is_some_and(|last| last > turn && self.remove(last).is_some())
    }

    fn remove(&mut self, turn: Turn) -> Option<(IpAddr, oneshot::Sender<Permit>)> {
        let (network, grant) = self.waiting.remove(&turn)?;
        self.networks.entry(network).or_default().waiting -= 1;
        Some((network, grant))
    }

    /// Takes the first request that a permit is free for.
    fn next_waiting(&mut self, limits: &QueueLimits) -> Option<(IpAddr, oneshot::Sender<Permit>)> {
        if self.in_flight >= limits.in_flight {
            return None;
        }
        let asking = |network| self.networks.get(network).map_or(0, |own| own.in_flight);
        let mut waiting = self.waiting.iter();
        let (turn, _) = waiting.find(|(_, (network, _))| asking(network) < limits.in_flight_per_network)?;
        let (network, grant) = self.remove(*turn)?;
        self.in_flight += 1;
        self.networks.entry(network).or_default().in_flight += 1;
        Some((network, grant))
    }
}

/// Leaves the queue when the wait ends, whatever ends it.
struct LeaveOnDrop<'a> {
    queue: &'a ReviewQueue,
    turn: Turn,
}

impl Drop for LeaveOnDrop<'_> {
    fn drop(&mut self) {
        self.queue.state.lock().remove(self.turn);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        {
            let mut state = self.queue.state.lock();
            state.in_flight -= 1;
            state.networks.entry(self.network).or_default().in_flight -= 1;
        }
        self.queue.serve();
    }
}

/// The networks that are remembered: about 300 KiB. Beyond, those that asked longest ago are forgotten.
const MAX_NETWORKS: usize = 4096;
/// The number of latest requests whose networks are always remembered.
const MIN_MEMORY: u64 = 2048;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tokio::sync::Semaphore;
    use tokio::task::{JoinHandle, yield_now};
    use tokio::time::{Instant, sleep};

    fn client(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    fn enter(queue: &Arc<ReviewQueue>, number: u32) -> JoinHandle<Option<Permit>> {
        let queue = Arc::clone(queue);
        tokio::spawn(async move { queue.enter(client(number)).await })
    }

    async fn settle() {
        for _ in 0..100 {
            yield_now().await;
        }
    }

    fn is_idle(queue: &ReviewQueue) -> bool {
        let state = queue.state.lock();
        state.in_flight == 0 && state.waiting.is_empty()
    }

    #[tokio::test(start_paused = true)]
    async fn one_network_has_two_questions_and_eight_that_wait_and_others_none_the_less() {
        let queue = ReviewQueue::new(QueueLimits::COSTLY);
        let flood: Vec<_> = (0..100).map(|_| enter(&queue, 1)).collect();
        settle().await;
        assert_eq!(queue.state.lock().in_flight, 2);
        assert_eq!(queue.state.lock().waiting.len(), 8);
        let other = queue.enter(client(2)).await.unwrap();
        assert_eq!(flood.iter().filter(|request| request.is_finished()).count(), 92);
        drop(other);
        // Each that is served lets the next one ask.
        let mut served = 0;
        for request in flood {
            served += usize::from(request.await.unwrap().is_some());
        }
        assert_eq!(served, 10);
        assert!(is_idle(&queue));
    }

    /// Takes every permit, on behalf of networks that are no others' here.
    async fn fill(queue: &Arc<ReviewQueue>) -> Vec<Permit> {
        let mut held = Vec::new();
        for number in 0..u32::try_from(queue.limits.in_flight).unwrap() {
            held.push(queue.enter(client(1_000_000 + number)).await.unwrap());
        }
        held
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_takes_the_first_request_of_another_network() {
        let queue = ReviewQueue::new(QueueLimits::COSTLY);
        let held = fill(&queue).await;
        let flood: Vec<_> = (0..64).map(|request| enter(&queue, request % 8)).collect();
        settle().await;
        assert_eq!(queue.state.lock().waiting.len(), 64);
        let newcomer = enter(&queue, 100);
        settle().await;
        assert_eq!(queue.state.lock().waiting.len(), 64);
        assert_eq!(flood.iter().filter(|request| request.is_finished()).count(), 1);
        drop(held);
        for request in flood {
            drop(request.await.unwrap());
        }
        assert!(newcomer.await.unwrap().is_some());
        settle().await;
        assert!(is_idle(&queue));
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_takes_a_newcomer_in_place_of_a_network_that_was_served_lately() {
        let queue = ReviewQueue::new(QueueLimits::COSTLY);
        for number in 0..64 {
            drop(queue.enter(client(number)).await);
        }
        let held = fill(&queue).await;
        let others: Vec<_> = (0..64).map(|number| enter(&queue, number)).collect();
        settle().await;
        let newcomer = enter(&queue, 100);
        settle().await;
        let finished = others.iter().map(JoinHandle::is_finished);
        assert_eq!(finished.collect::<Vec<_>>(), [vec![false; 63], vec![true]].concat());
        // Nor does the one that has made room make room for itself.
        assert!(queue.enter(client(63)).await.is_none());
        drop(held);
        assert!(newcomer.await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn the_network_that_was_served_longest_ago_is_next_whether_it_has_waited_since_or_not() {
        for limits in [QueueLimits::COSTLY, QueueLimits::PASSWORDS] {
            let queue = ReviewQueue::new(limits);
            // Each asks again after each answer, and waits for nothing between.
            for number in (0..60).chain(0..60) {
                drop(queue.enter(client(number)).await);
            }
            let mut held = fill(&queue).await;
            let flood: Vec<_> = (0..60).rev().map(|number| enter(&queue, number)).collect();
            settle().await;
            let newcomer = enter(&queue, 100);
            settle().await;
            drop(held.pop());
            settle().await;
            assert!(newcomer.is_finished() && !flood.iter().any(JoinHandle::is_finished));
            drop((held, newcomer.await));
            let mut served = 0;
            for request in flood.into_iter().rev() {
                served += usize::from(request.await.unwrap().is_some());
            }
            assert_eq!(served, 60);
        }
    }

    /// Sixty networks with five wrong passwords a second each, of which two are checked at a time, 80 ms each.
    #[tokio::test(start_paused = true)]
    async fn a_newcomer_does_not_wait_for_sixty_networks_with_more_passwords_than_can_be_checked() {
        let queue = ReviewQueue::new(QueueLimits::PASSWORDS);
        let processors = Arc::new(Semaphore::new(2));
        let login = |number: u32| {
            let (queue, processors) = (Arc::clone(&queue), Arc::clone(&processors));
            tokio::spawn(async move {
                let start = Instant::now();
                let _permit = queue.enter(client(number)).await?;
                let _processor = processors.acquire().await.ok()?;
                sleep(Duration::from_millis(80)).await;
                Some(start.elapsed())
            })
        };
        let mut newcomers = Vec::new();
        for round in 0..150 {
            (0..60).for_each(|number| drop(login(number)));
            sleep(Duration::from_millis(200)).await;
            newcomers.push(login(1_000 + round));
        }
        let mut waits = Vec::new();
        for newcomer in newcomers {
            waits.push(newcomer.await.unwrap().unwrap());
        }
        // Before each of the sixty was served once, they are newcomers as well.
        let (first, later) = waits.split_at(13);
        assert!(
            first.iter().all(|wait| *wait <= Duration::from_millis(60 * 40 + 80)),
            "{first:?}"
        );
        assert!(
            later.iter().all(|wait| *wait <= Duration::from_millis(160)),
            "{later:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn networks_that_were_served_are_remembered_within_a_bound() {
        let queue = ReviewQueue::new(QueueLimits::COSTLY);
        for number in 0..3 * u32::try_from(MAX_NETWORKS).unwrap() {
            drop(queue.enter(client(number)).await);
        }
        let state = queue.state.lock();
        assert!(state.networks.len() <= MAX_NETWORKS, "{}", state.networks.len());
        assert!(state.networks.len() >= MAX_NETWORKS / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_after_three_seconds_and_one_that_is_left_is_forgotten() {
        let queue = ReviewQueue::new(QueueLimits::COSTLY);
        let held = [queue.enter(client(1)).await, queue.enter(client(1)).await];
        let start = Instant::now();
        let left = enter(&queue, 1);
        settle().await;
        left.abort();
        assert!(left.await.is_err());
        assert!(queue.enter(client(1)).await.is_none());
        assert_eq!(start.elapsed(), QueueLimits::COSTLY.timeout);
        assert!(queue.state.lock().waiting.is_empty());
        drop(held);
        assert!(is_idle(&queue));
    }
}
