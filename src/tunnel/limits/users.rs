//! The registry of users: the state that all tunnels of one user share, wherever that user connects from.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::budget::Budgets;
use super::slots::{Slot, Slots};
use super::{SharedLimits, Size, UserCaps};
use crate::tunnel::outcome::{Denial, Refusal};

/// The users that have tunnels.
#[derive(Debug)]
pub struct Users {
    registry: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    limits: SharedLimits,
    burst: Size,
    caps: UserCaps,
    known: HashMap<Box<str>, Weak<User>>,
}

/// One user, for as long as it has tunnels.
#[derive(Debug)]
pub struct User {
    /// The budgets that its tunnels share.
    pub budgets: Budgets,
    tunnels: Arc<Slots>,
    name: Box<str>,
    registry: Arc<Mutex<State>>,
}

impl Users {
    /// An empty registry.
    pub fn new(limits: SharedLimits, burst: Size, caps: UserCaps) -> Self {
        Self {
            registry: Arc::new(Mutex::new(State {
                limits,
                burst,
                caps,
                known: HashMap::new(),
            })),
        }
    }

    /// The user of that name.
    pub fn user(&self, name: &str) -> Arc<User> {
        let mut state = self.registry.lock();
        if let Some(user) = state.known.get(name).and_then(Weak::upgrade) {
            return user;
        }
        let user = Arc::new(User {
            budgets: Budgets::new(state.limits, state.burst),
            tunnels: Arc::new(Slots::new(state.caps.tunnels)),
            name: name.into(),
            registry: Arc::clone(&self.registry),
        });
        state.known.insert(name.into(), Arc::downgrade(&user));
        user
    }

    /// Changes the limits of all users, also of those that have tunnels.
    pub fn set(&self, limits: SharedLimits, burst: Size, caps: UserCaps) {
        let mut state = self.registry.lock();
        state.limits = limits;
        state.burst = burst;
        state.caps = caps;
        let connected: Vec<_> = state.known.values().filter_map(Weak::upgrade).collect();
        // This may be the last reference to a user, and its drop takes the lock.
        drop(state);
        for user in connected {
            user.budgets.set(limits, burst);
            user.tunnels.set(caps.tunnels);
        }
    }
}

impl User {
    /// Takes one of its slots for tunnels.
    ///
    /// # Errors
    /// [`Refusal::UserFull`]: none is free.
    pub fn take_slot(&self) -> Result<Slot, Denial> {
        let full = || Denial::of_limit(Refusal::UserFull, self.tunnels.most());
        self.tunnels.take().ok_or_else(full)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut state = self.registry.lock();
        // The user may have come again meanwhile.
        if state
            .known
            .get(&self.name)
            .is_some_and(|known| known.strong_count() == 0)
        {
            state.known.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::direction::Direction;
    use std::num::NonZeroU32;

    #[test]
    fn a_user_is_one_for_as_long_as_it_has_tunnels_and_follows_changed_limits() {
        let caps = |tunnels| UserCaps {
            tunnels: NonZeroU32::new(tunnels),
        };
        let users = Users::new(SharedLimits::default(), Size::MEBIBYTE, caps(2));
        let alice = users.user("alice");
        assert!(Arc::ptr_eq(&alice, &users.user("alice")));
        assert!(!Arc::ptr_eq(&alice, &users.user("Alice")));
        let _slots = [alice.take_slot().unwrap(), users.user("alice").take_slot().unwrap()];
        assert_eq!(alice.take_slot().unwrap_err().refusal, Refusal::UserFull);
        drop(users.user("bob").take_slot().unwrap());
        let limits = SharedLimits {
            download: "1MiB/s".parse().unwrap(),
            ..SharedLimits::default()
        };
        users.set(limits, Size::MEBIBYTE, caps(3));
        let _third = alice.take_slot().unwrap();
        assert_eq!(alice.take_slot().unwrap_err().refusal, Refusal::UserFull);
        assert_eq!(alice.budgets.download.rate(), limits.download);
        assert_eq!(users.registry.lock().known.len(), 1);
        drop(alice);
        assert!(users.registry.lock().known.is_empty());
    }
}
