//! Knows the clients that have connections, and what all tunnels of one client share.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::budget::Budgets;
use crate::limits::{SharedLimits, Size};

/// The clients that are here now.
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
    present: HashMap<IpAddr, Weak<Client>>,
}

/// One client, as long as somebody holds it.
#[derive(Debug)]
pub struct Client {
    /// What its tunnels share.
    pub budgets: Budgets,
    address: IpAddr,
    shared: Arc<Shared>,
}

impl Clients {
    /// Nobody yet.
    pub fn new(limits: SharedLimits, burst: Size) -> Self {
        let state = State {
            limits,
            burst,
            present: HashMap::new(),
        };
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
            }),
        }
    }

    /// The client of that address: an IPv4 address, or the /64 of an IPv6 one, as a host may take any address in it.
    pub fn client(&self, address: IpAddr) -> Arc<Client> {
        let address = network(address);
        let mut state = self.shared.lock();
        if let Some(client) = state.present.get(&address).and_then(Weak::upgrade) {
            return client;
        }
        let client = Arc::new(Client {
            budgets: Budgets::new(state.limits, state.burst),
            address,
            shared: Arc::clone(&self.shared),
        });
        state.present.insert(address, Arc::downgrade(&client));
        client
    }

    /// Changes the limits of all clients, those that are here included.
    pub fn set(&self, limits: SharedLimits, burst: Size) {
        let mut state = self.shared.lock();
        state.limits = limits;
        state.burst = burst;
        let present: Vec<_> = state.present.values().filter_map(Weak::upgrade).collect();
        // The last holder of a client may be this one, and its drop takes the lock.
        drop(state);
        for client in present {
            client.budgets.set(limits, burst);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        // It may have come back meanwhile, as another one.
        if state
            .present
            .get(&self.address)
            .is_some_and(|client| client.strong_count() == 0)
        {
            state.present.remove(&self.address);
        }
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Direction;

    fn client(clients: &Clients, address: &str) -> Arc<Client> {
        clients.client(address.parse().unwrap())
    }

    #[test]
    fn a_client_is_one_as_long_as_it_is_here() {
        let clients = Clients::new(SharedLimits::default(), Size::bytes(1).unwrap());
        let one = client(&clients, "192.0.2.1");
        assert!(Arc::ptr_eq(&one, &client(&clients, "192.0.2.1")));
        assert!(!Arc::ptr_eq(&one, &client(&clients, "192.0.2.2")));
        let six = client(&clients, "2001:db8::1");
        assert!(Arc::ptr_eq(&six, &client(&clients, "2001:db8::ffff:2")));
        assert!(!Arc::ptr_eq(&six, &client(&clients, "2001:db8:0:1::1")));
        drop((one, six));
        assert!(clients.shared.lock().present.is_empty());
    }

    #[test]
    fn changed_limits_reach_those_who_are_here_and_those_who_come() {
        let clients = Clients::new(SharedLimits::default(), Size::bytes(1).unwrap());
        let here = client(&clients, "192.0.2.1");
        let limits = SharedLimits {
            download: "1MiB/s".parse().unwrap(),
            ..SharedLimits::default()
        };
        clients.set(limits, Size::bytes(1).unwrap());
        for client in [here, client(&clients, "192.0.2.2")] {
            assert_eq!(client.budgets.of(Direction::Download).rate(), limits.download);
            assert_eq!(client.budgets.of(Direction::Upload).rate(), limits.upload);
        }
    }
}
