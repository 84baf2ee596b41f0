//! Knows the clients that have connections, and what all tunnels of one client share.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::budget::Budgets;
use super::connect_rate::{Gcra, Quota};
use super::slots::{Slot, Slots};
use super::unfinished::Unfinished;
use super::{ClientCaps, SharedLimits, Size};
use crate::outcome::Refusal;

/// The clients that are here now, and those that have come too often to be forgotten at once.
#[derive(Debug)]
pub struct Clients {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limits: SharedLimits,
    burst: Size,
    caps: ClientCaps,
    known: HashMap<IpAddr, Known>,
    /// Those that have gone, and when they can be forgotten. In the order in which they went, which is nearly that of
    /// their times: nobody is remembered for longer than a burst takes to come back.
    gone: VecDeque<(IpAddr, Instant)>,
}

/// What is known of an address.
#[derive(Debug)]
struct Known {
    client: Weak<Client>,
    /// Outlives the client: who closes and comes again must not begin anew.
    pace: Arc<Gcra>,
    /// Whether it stands among those that have gone. It may have come back since.
    gone: bool,
}

/// One client, as long as somebody holds it.
#[derive(Debug)]
pub struct Client {
    /// What its tunnels share.
    pub budgets: Budgets,
    /// Those of its connections whose request is not complete.
    pub unfinished: Unfinished,
    tunnels: Arc<Slots>,
    pace: Arc<Gcra>,
    address: IpAddr,
    shared: Arc<Shared>,
}

impl Clients {
    /// Nobody yet.
    pub fn new(limits: SharedLimits, burst: Size, caps: ClientCaps) -> Self {
        let state = State {
            limits,
            burst,
            caps,
            known: HashMap::new(),
            gone: VecDeque::new(),
        };
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
            }),
        }
    }

    /// The client of that address: an IPv4 address, or the /64 of an IPv6 one, as a host may take any address in it.
    pub fn client(&self, address: IpAddr) -> Arc<Client> {
        let (address, now) = (network(address), Instant::now());
        let mut state = self.shared.lock();
        state.forget(now);
        let (limits, burst, caps) = (state.limits, state.burst, state.caps);
        let known = state.known.entry(address).or_insert_with(|| Known {
            client: Weak::new(),
            pace: Arc::new(Gcra::new(now)),
            gone: false,
        });
        if let Some(client) = known.client.upgrade() {
            return client;
        }
        let client = Arc::new(Client {
            budgets: Budgets::new(limits, burst),
            unfinished: Unfinished::new(caps.unfinished),
            tunnels: Arc::new(Slots::new(caps.tunnels)),
            pace: Arc::clone(&known.pace),
            address,
            shared: Arc::clone(&self.shared),
        });
        known.client = Arc::downgrade(&client);
        client
    }

    /// Changes the limits of all clients, those that are here included.
    pub fn set(&self, limits: SharedLimits, burst: Size, caps: ClientCaps) {
        let mut state = self.shared.lock();
        state.limits = limits;
        state.burst = burst;
        state.caps = caps;
        let here: Vec<_> = state
            .known
            .values()
            .filter_map(|known| known.client.upgrade())
            .collect();
        // The last holder of a client may be this one, and its drop takes the lock.
        drop(state);
        for client in here {
            client.budgets.set(limits, burst);
            client.unfinished.set(caps.unfinished);
            client.tunnels.set(caps.tunnels);
        }
    }
}

impl Client {
    /// Counts that it has connected.
    ///
    /// # Errors
    /// [`Refusal::ConnectRate`]: it has done so too often.
    pub fn connects(&self) -> Result<(), Refusal> {
        let ClientCaps {
            connects_per_second,
            connects_burst: burst,
            ..
        } = self.shared.lock().caps;
        let kept =
            connects_per_second.is_none_or(|per_second| self.pace.keeps(Quota { per_second, burst }, Instant::now()));
        kept.then_some(()).ok_or(Refusal::ConnectRate)
    }

    /// Takes one of its slots for tunnels.
    ///
    /// # Errors
    /// [`Refusal::ClientFull`]: none is free.
    pub fn take_slot(&self) -> Result<Slot, Refusal> {
        self.tunnels.take().ok_or(Refusal::ClientFull)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Forgets those that have gone for long enough. Whoever owns many networks cannot fill the memory with them: the
    /// first of too many are forgiven.
    fn forget(&mut self, now: Instant) {
        while let Some(&(address, until)) = self.gone.front()
            && (until <= now || self.gone.len() > MOST_GONE)
        {
            self.gone.pop_front();
            let Some(known) = self.known.get_mut(&address) else {
                continue;
            };
            known.gone = false;
            if known.client.strong_count() > 0 {
                continue;
            }
            let owes_until = known.pace.forgotten();
            if owes_until > now && self.gone.len() < MOST_GONE {
                // It has been back meanwhile.
                known.gone = true;
                self.gone.push_back((address, owes_until));
            } else {
                self.known.remove(&address);
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.shared.lock();
        let State { known, gone, .. } = &mut *state;
        // It may have come back meanwhile, as another one.
        if let Some(known) = known.get_mut(&self.address)
            && known.client.strong_count() == 0
            && !known.gone
        {
            known.gone = true;
            gone.push_back((self.address, self.pace.forgotten()));
        }
        state.forget(now);
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
    }
}

/// About 10 MiB of addresses.
const MOST_GONE: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direction::Direction;
    use std::num::NonZeroU32;
    use std::time::Duration;

    fn clients(caps: ClientCaps) -> Clients {
        Clients::new(SharedLimits::default(), Size::bytes(1).unwrap(), caps)
    }

    fn paced(per_second: u32, burst: u32) -> ClientCaps {
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
        clients.shared.lock().known.len()
    }

    #[test]
    fn a_client_is_one_as_long_as_it_is_here() {
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
    fn changed_limits_reach_those_who_are_here_and_those_who_come() {
        let clients = clients(ClientCaps::default());
        let here = client(&clients, "192.0.2.1");
        let limits = SharedLimits {
            download: "1MiB/s".parse().unwrap(),
            ..SharedLimits::default()
        };
        let caps = ClientCaps {
            tunnels: NonZeroU32::new(1),
            ..paced(1, 1)
        };
        clients.set(limits, Size::bytes(1).unwrap(), caps);
        for client in [here, client(&clients, "192.0.2.2")] {
            assert_eq!(client.budgets.of(Direction::Download).rate(), limits.download);
            assert_eq!(client.budgets.of(Direction::Upload).rate(), limits.upload);
            let _slot = client.take_slot().unwrap();
            assert_eq!(client.take_slot().unwrap_err(), Refusal::ClientFull);
            client.connects().unwrap();
            assert_eq!(client.connects().unwrap_err(), Refusal::ConnectRate);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_come_too_often_is_remembered_until_it_may_come_again() {
        let clients = clients(paced(10, 3));
        let comes = |address| client(&clients, address).connects().is_ok();
        for _ in 0..3 {
            assert!(comes("192.0.2.1"));
        }
        assert!(!comes("192.0.2.1"));
        // The rate is of each by itself.
        assert!(comes("192.0.2.2"));
        assert_eq!(known(&clients), 2);
        tokio::time::advance(Duration::from_millis(100)).await;
        assert!(comes("192.0.2.1"));
        assert!(!comes("192.0.2.1"));
        tokio::time::advance(Duration::from_secs(1)).await;
        // Whoever comes or goes sweeps.
        drop(client(&clients, "192.0.2.3"));
        assert_eq!(known(&clients), 0);
        assert!(clients.shared.lock().gone.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_have_gone_never_fill_the_memory() {
        let clients = clients(paced(1, 100));
        let stays = client(&clients, "192.0.2.1");
        for network in 0..MOST_GONE as u128 + 1000 {
            let address = IpAddr::from(Ipv6Addr::from_bits(0x2001_0db8 << 96 | network << 64));
            clients.client(address).connects().unwrap();
        }
        // One address that comes and goes stands in the queue once.
        for _ in 0..90 {
            client(&clients, "192.0.2.9").connects().unwrap();
        }
        assert!((MOST_GONE..=MOST_GONE + 2).contains(&known(&clients)));
        assert!(clients.shared.lock().gone.len() <= MOST_GONE + 1);
        assert!(Arc::ptr_eq(&stays, &client(&clients, "192.0.2.1")));
        tokio::time::advance(Duration::from_secs(100)).await;
        drop(client(&clients, "192.0.2.9"));
        assert_eq!(known(&clients), 1);
    }
}
