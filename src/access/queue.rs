//! Bounds the questions that are asked at a time, of all clients and of each: a flood from one address starves no other.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::limits::clients::network;

/// The permits of questions, and the requests that wait for one.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    asking: usize,
    networks: HashMap<IpAddr, Share>,
    waiting: VecDeque<Waiting>,
    next: u64,
}

/// What the clients of one network ask and wait for.
#[derive(Debug, Default)]
struct Share {
    asking: usize,
    waiting: usize,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    network: IpAddr,
    grant: oneshot::Sender<Permit>,
}

/// The right to ask, until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it lets the next one ask"]
pub(super) struct Permit {
    queue: Arc<Queue>,
    network: IpAddr,
}

impl Queue {
    /// Takes a permit in behalf of a client, at once or after others. `None` when the queue is full or the wait too long.
    pub(super) async fn enter(self: &Arc<Self>, client: IpAddr) -> Option<Permit> {
        let network = network(client);
        let (number, granted) = {
            let mut state = self.state.lock();
            if state.asking < MOST_ASKING && state.share(network).asking < MOST_ASKING_OF_ONE {
                state.begin(network);
                drop(state);
                return Some(self.permit(network));
            }
            state.wait(network)?
        };
        let _left = Left { queue: self, number };
        timeout(LONGEST_WAIT, granted).await.ok()?.ok()
    }

    fn permit(self: &Arc<Self>, network: IpAddr) -> Permit {
        Permit {
            queue: Arc::clone(self),
            network,
        }
    }

    /// Gives free permits to those that wait.
    fn serve(self: &Arc<Self>) {
        loop {
            let Some(next) = self.state.lock().next_waiting() else {
                return;
            };
            // It has left in this moment: its permit is dropped, and the next one is served.
            next.grant.send(self.permit(next.network)).ok();
        }
    }
}

impl State {
    fn share(&mut self, network: IpAddr) -> &mut Share {
        self.networks.entry(network).or_default()
    }

    fn begin(&mut self, network: IpAddr) {
        self.asking += 1;
        self.share(network).asking += 1;
    }

    fn wait(&mut self, network: IpAddr) -> Option<(u64, oneshot::Receiver<Permit>)> {
        let own = self.share(network).waiting;
        if own >= MOST_WAITING_OF_ONE || (self.waiting.len() >= MOST_WAITING && !self.displace(own)) {
            self.tidy(network);
            return None;
        }
        let (grant, granted) = oneshot::channel();
        let number = self.next;
        self.next += 1;
        self.share(network).waiting += 1;
        self.waiting.push_back(Waiting { number, network, grant });
        Some((number, granted))
    }

    /// Ends the youngest wait of the network with the most, if that has more than one that has `own`.
    fn displace(&mut self, own: usize) -> bool {
        let most = self.networks.iter().max_by_key(|(_, share)| share.waiting);
        let Some((&network, _)) = most.filter(|(_, share)| share.waiting > own + 1) else {
            return false;
        };
        let youngest = self.waiting.iter().rposition(|waiting| waiting.network == network);
        youngest.is_some_and(|index| self.leave(index).is_some())
    }

    /// The first one of the networks that ask least, if a permit is free for it.
    fn next_waiting(&mut self) -> Option<Waiting> {
        if self.asking >= MOST_ASKING {
            return None;
        }
        let asking = |waiting: &Waiting| self.networks.get(&waiting.network).map_or(0, |share| share.asking);
        let first = self.waiting.iter().enumerate();
        let (index, least) = first
            .map(|(index, waiting)| (index, asking(waiting)))
            .min_by_key(|(_, asking)| *asking)?;
        if least >= MOST_ASKING_OF_ONE {
            return None;
        }
        let next = self.leave(index)?;
        self.begin(next.network);
        Some(next)
    }

    fn leave(&mut self, index: usize) -> Option<Waiting> {
        let left = self.waiting.remove(index)?;
        self.share(left.network).waiting -= 1;
        self.tidy(left.network);
        Some(left)
    }

    /// Forgets a network that neither asks nor waits.
    fn tidy(&mut self, network: IpAddr) {
        let share = self.share(network);
        if share.asking == 0 && share.waiting == 0 {
            self.networks.remove(&network);
        }
    }
}

/// Leaves the queue when the wait ends, whatever ends it.
struct Left<'a> {
    queue: &'a Queue,
    number: u64,
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        let index = state.waiting.iter().position(|waiting| waiting.number == self.number);
        let left = index.and_then(|index| state.leave(index));
        drop(state);
        drop(left);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        {
            let mut state = self.queue.state.lock();
            state.asking -= 1;
            state.share(self.network).asking -= 1;
            state.tidy(self.network);
        }
        self.queue.serve();
    }
}

/// Questions at a time, of all clients: at about 1 ms each that is more than an API server's processor has.
const MOST_ASKING: usize = 8;
/// Questions at a time of one network.
const MOST_ASKING_OF_ONE: usize = 2;
/// Requests that wait, of all clients and of one network.
const MOST_WAITING: usize = 64;
const MOST_WAITING_OF_ONE: usize = 8;
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tokio::task::{JoinHandle, yield_now};

    fn client(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    fn enter(queue: &Arc<Queue>, number: u32) -> JoinHandle<Option<Permit>> {
        let queue = Arc::clone(queue);
        tokio::spawn(async move { queue.enter(client(number)).await })
    }

    async fn settle() {
        for _ in 0..100 {
            yield_now().await;
        }
    }

    fn is_idle(queue: &Queue) -> bool {
        let state = queue.state.lock();
        state.asking == 0 && state.waiting.is_empty() && state.networks.is_empty()
    }

    #[tokio::test(start_paused = true)]
    async fn one_network_has_two_questions_and_eight_that_wait_and_others_none_the_less() {
        let queue = Arc::new(Queue::default());
        let flood: Vec<_> = (0..100).map(|_| enter(&queue, 1)).collect();
        settle().await;
        assert_eq!(queue.state.lock().asking, 2);
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

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_takes_the_first_request_of_another_network() {
        let queue = Arc::new(Queue::default());
        let mut held = Vec::new();
        for number in 0..4 {
            for _ in 0..2 {
                held.push(queue.enter(client(number)).await.unwrap());
            }
        }
        let flood: Vec<_> = (0..8)
            .flat_map(|number| (0..8).map(move |_| number))
            .map(|number| enter(&queue, number))
            .collect();
        settle().await;
        assert_eq!(queue.state.lock().waiting.len(), 64);
        let newcomer = enter(&queue, 100);
        settle().await;
        assert_eq!(queue.state.lock().waiting.len(), 64);
        assert_eq!(flood.iter().filter(|request| request.is_finished()).count(), 1);
        // The networks without a question of their own come first, so that it waits for one question of each.
        drop(held);
        for (index, request) in flood.into_iter().enumerate() {
            if index == 16 {
                settle().await;
                assert!(newcomer.is_finished());
            }
            drop(request.await.unwrap());
        }
        assert!(newcomer.await.unwrap().is_some());
        settle().await;
        assert!(is_idle(&queue));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_after_three_seconds_and_one_that_is_left_is_forgotten() {
        let queue = Arc::new(Queue::default());
        let held = [queue.enter(client(1)).await, queue.enter(client(1)).await];
        let start = tokio::time::Instant::now();
        let left = enter(&queue, 1);
        settle().await;
        left.abort();
        assert!(left.await.is_err());
        assert!(queue.enter(client(1)).await.is_none());
        assert_eq!(start.elapsed(), LONGEST_WAIT);
        assert!(queue.state.lock().waiting.is_empty());
        drop(held);
        assert!(is_idle(&queue));
    }
}
