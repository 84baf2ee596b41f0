//! The registry of clients: the state that all connections of one client share.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::budget::Budgets;
use super::connect_rate::{Gcra, Quota};
use super::slots::{Slot, Slots};
use super::unfinished::Unfinished;
use super::{ClientCaps, SharedLimits, Size};
use crate::tunnel::outcome::{Denial, Refusal};

/// All clients that are connected, and those that have left and whose connect rate is still remembered.
#[derive(Debug)]
pub struct Clients {
    registry: Arc<Registry>,
}

#[derive(Debug)]
struct Registry {
    state: Mutex<State>,
    quota: ConnectQuota,
}

/// The connect rate of every client, which each connect reads without the lock that all clients share: connects a second,
/// 0 for any number, and in the lower half the burst.
#[derive(Debug)]
struct ConnectQuota(AtomicU64);

#[derive(Debug)]
struct State {
    limits: SharedLimits,
    burst: Size,
    caps: ClientCaps,
    known: HashMap<IpAddr, Known>,
    /// Clients that have left, and when they can be forgotten. In the order in which they left, which is nearly that of
    /// their times: a client is remembered for no longer than its burst takes to be restored.
    left: VecDeque<(IpAddr, Instant)>,
}

/// The entry of an address.
#[derive(Debug)]
struct Known {
    client: Weak<Client>,
    /// Outlives the client: one that disconnects and connects again must not get a new burst.
    connect_rate: Arc<Gcra>,
    /// Whether it is in the queue of those that have left. It may be connected again.
    is_queued: bool,
}

/// One client, for as long as it has connections.
#[derive(Debug)]
pub struct Client {
    /// The budgets that its tunnels share.
    pub budgets: Budgets,
    /// Its connections without an answer.
    pub unfinished: Unfinished,
    tunnels: Arc<Slots>,
    connect_rate: Arc<Gcra>,
    address: IpAddr,
    registry: Arc<Registry>,
}

impl Clients {
    /// An empty registry.
    pub fn new(limits: SharedLimits, burst: Size, caps: ClientCaps) -> Self {
        let state = State {
            limits,
            burst,
            caps,
            known: HashMap::new(),
            left: VecDeque::new(),
        };
        Self {
            registry: Arc::new(Registry {
                state: Mutex::new(state),
                quota: ConnectQuota::new(caps),
            }),
        }
    }

    /// The client of that address: an IPv4 address, or the /64 of an IPv6 one, as a host may take any address in it.
    pub fn client(&self, address: IpAddr) -> Arc<Client> {
        let (address, now) = (network(address), Instant::now());
        let mut state = self.registry.lock();
        state.forget(now);
        let (limits, burst, caps) = (state.limits, state.burst, state.caps);
        let known = state.known.entry(address).or_insert_with(|| Known {
            client: Weak::new(),
            connect_rate: Arc::new(Gcra::new(now)),
            is_queued: false,
        });
        if let Some(client) = known.client.upgrade() {
            return client;
        }
        let client = Arc::new(Client {
            budgets: Budgets::new(limits, burst),
            unfinished: Unfinished::new(caps.unfinished),
            tunnels: Arc::new(Slots::new(caps.tunnels)),
            connect_rate: Arc::clone(&known.connect_rate),
            address,
            registry: Arc::clone(&self.registry),
        });
        known.client = Arc::downgrade(&client);
        client
    }

    /// Changes the limits of all clients, also of those that are connected.
    pub fn set(&self, limits: SharedLimits, burst: Size, caps: ClientCaps) {
        let mut state = self.registry.lock();
        state.limits = limits;
        state.burst = burst;
        state.caps = caps;
        self.registry.quota.set(caps);
        let connected: Vec<_> = state
            .known
            .values()
            .filter_map(|known| known.client.upgrade())
            .collect();
        // This may be the last reference to a client, and its drop takes the lock.
        drop(state);
        for client in connected {
            client.budgets.set(limits, burst);
            client.unfinished.set(caps.unfinished);
            client.tunnels.set(caps.tunnels);
        }
    }
}

impl Client {
    /// Counts a connect.
    ///
    /// # Errors
    /// [`Refusal::ConnectRate`]: the client has reached its connect rate.
    pub fn count_connect(&self) -> Result<(), Refusal> {
        let quota = self.registry.quota.get();
        let conforms = quota.is_none_or(|quota| self.connect_rate.conforms(quota, Instant::now()));
        conforms.then_some(()).ok_or(Refusal::ConnectRate)
    }

    /// Takes one of its slots for tunnels.
    ///
    /// # Errors
    /// [`Refusal::ClientFull`]: none is free.
    pub fn take_slot(&self) -> Result<Slot, Denial> {
        let full = || Denial::of_limit(Refusal::ClientFull, self.tunnels.most());
        self.tunnels.take().ok_or_else(full)
    }
}

impl ConnectQuota {
    fn new(caps: ClientCaps) -> Self {
        Self(AtomicU64::new(Self::packed(caps)))
    }

    fn set(&self, caps: ClientCaps) {
        self.0.store(Self::packed(caps), Ordering::Relaxed);
    }

    /// `None` for any number of connects.
    fn get(&self) -> Option<Quota> {
        let packed = self.0.load(Ordering::Relaxed);
        let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).ok().and_then(NonZeroU32::new);
        let (per_second, burst) = (half(packed >> 32)?, half(packed)?);
        Some(Quota { per_second, burst })
    }

    fn packed(caps: ClientCaps) -> u64 {
        let per_second = caps.connects_per_second.map_or(0, NonZeroU32::get);
        u64::from(per_second) << 32 | u64::from(caps.connects_burst.get())
    }
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Forgets the clients whose burst is restored. Connects from many networks cannot fill the memory: beyond
    /// [`MOST_LEFT`], those that left first are forgotten early.
    fn forget(&mut self, now: Instant) {
        while let Some(&(address, until)) = self.left.front()
            && (until <= now || self.left.len() > MOST_LEFT)
        {
            self.left.pop_front();
            let Some(known) = self.known.get_mut(&address) else {
                continue;
            };
            known.is_queued = false;
            if known.client.strong_count() > 0 {
                continue;
            }
            let clear_at = known.connect_rate.clear_at();
            if clear_at > now && self.left.len() < MOST_LEFT {
                // It has connected again meanwhile.
                known.is_queued = true;
                self.left.push_back((address, clear_at));
            } else {
                self.known.remove(&address);
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.registry.lock();
        let State { known, left, .. } = &mut *state;
        // The address may have connected again meanwhile, as another Client.
        if let Some(known) = known.get_mut(&self.address)
            && known.client.strong_count() == 0
            && !known.is_queued
        {
            known.is_queued = true;
            left.push_back((self.address, self.connect_rate.clear_at()));
        }
        state.forget(now);
    }
}

/// The addresses that one host may take: its IPv4 address, or the /64 of its IPv6 one.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
    }
}

/// The most clients that have left and are remembered: about 10 MiB.
const MOST_LEFT: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::direction::Direction;
    use std::time::Duration;

    fn clients(caps: ClientCaps) -> Clients {
        Clients::new(SharedLimits::default(), Size::bytes(1).unwrap(), caps)
    }

    fn connecting(per_second: u32, burst: u32) -> ClientCaps {
        ClientCaps {
            connects_per_second: NonZeroU32::new(per_second),
            connects_burst: NonZeroU32::new(burst).unwrap(),
            ..ClientCaps::default()
        }
    }

    fn client(clients: &Clients, address: &str) -> Arc<Client> {
        clients.client(address.parse().unwrap())
    }

    fn known(clients: &Clients) -> usize {
        clients.registry.lock().known.len()
    }

    #[test]
    fn an_address_is_one_client_for_as_long_as_it_is_connected() {
        let clients = clients(ClientCaps::default());
        let one = client(&clients, "192.0.2.1");
        assert!(Arc::ptr_eq(&one, &client(&clients, "192.0.2.1")));
        assert!(!Arc::ptr_eq(&one, &client(&clients, "192.0.2.2")));
        let six = client(&clients, "2001:db8::1");
        assert!(Arc::ptr_eq(&six, &client(&clients, "2001:db8::ffff:2")));
        assert!(!Arc::ptr_eq(&six, &client(&clients, "2001:db8:0:1::1")));
        drop((one, six));
        assert_eq!(known(&clients), 0);
    }

    #[test]
    fn changed_limits_reach_connected_clients_and_new_ones() {
        let clients = clients(ClientCaps::default());
        let connected = client(&clients, "192.0.2.1");
        let limits = SharedLimits {
            download: "1MiB/s".parse().unwrap(),
            ..SharedLimits::default()
        };
        let caps = ClientCaps {
            tunnels: NonZeroU32::new(1),
            ..connecting(1, 1)
        };
        clients.set(limits, Size::bytes(1).unwrap(), caps);
        for client in [connected, client(&clients, "192.0.2.2")] {
            assert_eq!(client.budgets.download.rate(), limits.download);
            assert_eq!(client.budgets.upload.rate(), limits.upload);
            let _slot = client.take_slot().unwrap();
            assert_eq!(client.take_slot().unwrap_err().refusal, Refusal::ClientFull);
            client.count_connect().unwrap();
            assert_eq!(client.count_connect().unwrap_err(), Refusal::ConnectRate);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_over_its_connect_rate_is_remembered_until_it_may_connect_again() {
        let clients = clients(connecting(10, 3));
        let connects = |address| client(&clients, address).count_connect().is_ok();
        for _ in 0..3 {
            assert!(connects("192.0.2.1"));
        }
        assert!(!connects("192.0.2.1"));
        // Each client has its own rate.
        assert!(connects("192.0.2.2"));
        assert_eq!(known(&clients), 2);
        tokio::time::advance(Duration::from_millis(100)).await;
        assert!(connects("192.0.2.1"));
        assert!(!connects("192.0.2.1"));
        tokio::time::advance(Duration::from_secs(1)).await;
        // Every connect and every drop forgets.
        drop(client(&clients, "192.0.2.3"));
        assert_eq!(known(&clients), 0);
        assert!(clients.registry.lock().left.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_have_left_never_fill_the_memory() {
        let clients = clients(connecting(1, 100));
        let connected = client(&clients, "192.0.2.1");
        for network in 0..MOST_LEFT as u128 + 1000 {
            let address = IpAddr::from(Ipv6Addr::from_bits(0x2001_0db8 << 96 | network << 64));
            clients.client(address).count_connect().unwrap();
        }
        // An address that connects again and again is in the queue once.
        for _ in 0..90 {
            client(&clients, "192.0.2.9").count_connect().unwrap();
        }
        assert!((MOST_LEFT..=MOST_LEFT + 2).contains(&known(&clients)));
        assert!(clients.registry.lock().left.len() <= MOST_LEFT + 1);
        assert!(Arc::ptr_eq(&connected, &client(&clients, "192.0.2.1")));
        tokio::time::advance(Duration::from_secs(100)).await;
        drop(client(&clients, "192.0.2.9"));
        assert_eq!(known(&clients), 1);
    }
}
