//! The limits that all tunnels of one client, or of one user, share.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::OwnerLimits;
use super::budget::Budgets;
use super::connect_rate::ExpiringMap;
use super::slots::Slots;
use super::unfinished::UnfinishedSet;
use crate::tunnel::direction::Both;

/// The clients that have connections, or the users that have tunnels.
#[derive(Debug)]
pub struct LimitOwners(Arc<Mutex<State>>);

/// The name of a limit owner.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OwnerName {
    /// A client: the [network] of its address.
    Client(IpAddr),
    /// A user, wherever that user connects from.
    User(Box<str>),
}

#[derive(Debug)]
struct State {
    limits: OwnerLimits,
    by_name: HashMap<OwnerName, Weak<LimitOwner>>,
    /// When the budgets of owners that have left will be full: one that comes back must not get a new burst.
    refills: ExpiringMap<OwnerName, Both<Instant>>,
}

/// A client or a user, for as long as it has connections or tunnels.
#[derive(Debug)]
pub struct LimitOwner {
    /// The budgets that its tunnels share.
    pub budgets: Budgets,
    /// Its unfinished connections.
    pub unfinished: UnfinishedSet,
    /// Its SSH connections before their login.
    pub logins: UnfinishedSet,
    /// A slot for each of its tunnels.
    pub tunnels: Arc<Slots>,
    /// A slot for each of its connections of anchors.
    pub anchors: Arc<Slots>,
    /// The slot for a list of names.
    pub listings: Arc<Slots>,
    name: OwnerName,
    state: Arc<Mutex<State>>,
}

impl LimitOwners {
    /// Creates a registry without owners.
    pub fn new(limits: OwnerLimits) -> Self {
        Self(Arc::new(Mutex::new(State {
            limits,
            by_name: HashMap::new(),
            refills: ExpiringMap::default(),
        })))
    }

    /// Returns the owner of that name, and adds it if it is new.
    pub fn get(&self, name: OwnerName) -> Arc<LimitOwner> {
        let mut state = self.0.lock();
        if let Some(owner) = state.by_name.get(&name).and_then(Weak::upgrade) {
            return owner;
        }
        let limits = state.limits;
        let owner = Arc::new(LimitOwner {
            budgets: match state.refills.entries.remove(&name) {
                Some(times) => Budgets::with_fill_times(limits.rates, limits.burst, &times),
                None => Budgets::new(limits.rates, limits.burst),
            },
            unfinished: UnfinishedSet::new(limits.unfinished),
            logins: UnfinishedSet::new(LOGINS),
            tunnels: Arc::new(Slots::new(limits.tunnels)),
            anchors: Arc::new(Slots::new(limits.anchors)),
            listings: Arc::new(Slots::exactly(1)),
            name: name.clone(),
            state: Arc::clone(&self.0),
        });
        state.by_name.insert(name, Arc::downgrade(&owner));
        owner
    }

    /// Changes the limits of all owners, also of those that have tunnels.
    pub fn set(&self, limits: OwnerLimits) {
        let mut state = self.0.lock();
        if (state.limits.rates, state.limits.burst) != (limits.rates, limits.burst) {
            // Times that other rates would take.
            state.refills = ExpiringMap::default();
        }
        state.limits = limits;
        let owners: Vec<_> = state.by_name.values().filter_map(Weak::upgrade).collect();
        // `owners` may hold the last reference to an owner, whose drop takes the lock.
        drop(state);
        for owner in owners {
            owner.budgets.set(limits.rates, limits.burst);
            owner.unfinished.set(limits.unfinished);
            owner.tunnels.set(limits.tunnels);
            owner.anchors.set(limits.anchors);
        }
    }
}

impl Drop for LimitOwner {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        // A new owner may have taken the name since.
        let known = state.by_name.get(&self.name);
        if known.is_none_or(|known| known.strong_count() > 0) {
            return;
        }
        state.by_name.remove(&self.name);
        let filled = self.budgets.fill_times();
        let now = Instant::now();
        let matters = |filled: &Both<Instant>| filled.upload > now || filled.download > now;
        if matters(&filled) {
            state.refills.make_room(matters);
            state.refills.entries.insert(self.name.clone(), filled);
        }
    }
}

/// Returns the network of one host: its IPv4 address, or the /64 of its IPv6 address.
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
    }
}

/// The SSH connections of a client before their login. A team may log in at once from one address; an attacker needs eight
/// to fill the process's set.
const LOGINS: Option<NonZeroU32> = NonZeroU32::new(64);

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;
    use crate::tunnel::limits::{Limits, SharedLimits};

    fn client(owners: &LimitOwners, address: &str) -> Arc<LimitOwner> {
        owners.get(OwnerName::Client(network(address.parse().unwrap())))
    }

    fn user(owners: &LimitOwners, name: &str) -> Arc<LimitOwner> {
        owners.get(OwnerName::User(name.into()))
    }

    fn known(owners: &LimitOwners) -> usize {
        owners.0.lock().by_name.len()
    }

    #[test]
    fn an_owner_is_one_for_as_long_as_it_is_held() {
        let owners = LimitOwners::new(Limits::default().client_limits());
        let one = client(&owners, "192.0.2.1");
        assert!(Arc::ptr_eq(&one, &client(&owners, "192.0.2.1")));
        assert!(!Arc::ptr_eq(&one, &client(&owners, "192.0.2.2")));
        let six = client(&owners, "2001:db8::1");
        assert!(Arc::ptr_eq(&six, &client(&owners, "2001:db8::ffff:2")));
        assert!(!Arc::ptr_eq(&six, &client(&owners, "2001:db8:0:1::1")));
        let alice = user(&owners, "alice");
        assert!(Arc::ptr_eq(&alice, &user(&owners, "alice")));
        assert!(!Arc::ptr_eq(&alice, &user(&owners, "Alice")));
        drop((one, six, alice));
        assert_eq!(known(&owners), 0);
    }

    /// Returns the bytes that the owner gets at once.
    async fn burst(owner: &LimitOwner) -> usize {
        let (start, mut share, mut granted) = (Instant::now(), owner.budgets.download.share(), 0);
        loop {
            let next = share.take(1024, |_| {}).await;
            if start.elapsed() > Duration::ZERO {
                share.give_back(next);
                return granted;
            }
            granted += next;
        }
    }

    async fn burst_or_all(owner: &LimitOwner) {
        if !owner.budgets.download.rate().is_unlimited() {
            burst(owner).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_that_comes_back_has_the_credit_that_it_has_left() {
        let mut limits = Limits::default().client_limits();
        (limits.rates.download, limits.burst) = ("1MiB/s".parse().unwrap(), "2MiB".parse().unwrap());
        let owners = LimitOwners::new(limits);
        assert_eq!(burst(&client(&owners, "192.0.2.1")).await, 2 << 20);
        let again = burst(&client(&owners, "192.0.2.1")).await;
        assert!(again < 128 * 1024, "{again}");
        assert_eq!(burst(&client(&owners, "192.0.2.2")).await, 2 << 20);
        // Half of the burst has been earned.
        advance(Duration::from_secs(1)).await;
        let again = burst(&client(&owners, "192.0.2.1")).await;
        assert!((900 * 1024..1200 * 1024).contains(&again), "{again}");
        advance(Duration::from_secs(10)).await;
        assert_eq!(burst(&client(&owners, "192.0.2.1")).await, 2 << 20);
        drop(client(&owners, "192.0.2.2"));
        assert_eq!(owners.0.lock().by_name.len(), 0);
        for rate in ["100MiB/s", "unlimited", "1MiB/s"] {
            burst_or_all(&client(&owners, "192.0.2.1")).await;
            limits.rates.download = rate.parse().unwrap();
            owners.set(limits);
        }
        let again = burst(&client(&owners, "192.0.2.1")).await;
        assert!(again >= 2 << 20, "changed limits forget what was left: {again}");
    }

    #[test]
    fn changed_limits_reach_the_owners_that_are_held_and_new_ones() {
        let owners = LimitOwners::new(Limits::default().user_limits());
        let held = [client(&owners, "192.0.2.1"), user(&owners, "alice")];
        let limits = OwnerLimits {
            rates: SharedLimits {
                download: "1MiB/s".parse().unwrap(),
                ..SharedLimits::default()
            },
            tunnels: NonZeroU32::new(1),
            ..Limits::default().client_limits()
        };
        owners.set(limits);
        let new = [client(&owners, "192.0.2.2"), user(&owners, "bob")];
        for owner in held.into_iter().chain(new) {
            assert_eq!(owner.budgets.download.rate(), limits.rates.download);
            assert_eq!(owner.budgets.upload.rate(), limits.rates.upload);
            let _slot = owner.tunnels.take().unwrap();
            assert!(owner.tunnels.take().is_none());
        }
    }
}
