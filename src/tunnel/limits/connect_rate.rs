//! Limits the rate at which each client connects: a number per second in the long run, and a burst after a pause.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;

use super::ClientCaps;
use super::event_rate::{EventCount, EventRate};
use crate::tunnel::outcome::RefusalReason;

/// The connect rates of all clients. What it keeps of a client outlives the client's connections: a reconnect must not
/// bring a new burst.
#[derive(Debug)]
pub struct ConnectRate(Mutex<State>);

#[derive(Debug)]
struct State {
    caps: ClientCaps,
    /// The connects of each network.
    connects: ExpiringMap<IpAddr, EventCount>,
}

/// A map of bounded size, whose entries matter up to some time.
#[derive(Debug)]
pub(super) struct ExpiringMap<K, V> {
    pub(super) entries: HashMap<K, V>,
    /// The entries that the last removal has left.
    kept: usize,
}

impl<K, V> Default for ExpiringMap<K, V> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            kept: 0,
        }
    }
}

impl<K, V> ExpiringMap<K, V> {
    /// Makes room for an entry: at twice the entries of the last time it removes those that no longer matter.
    pub(super) fn make_room(&mut self, matters: impl Fn(&V) -> bool) {
        if self.entries.len() < 2 * self.kept.max(FEW) {
            return;
        }
        self.entries.retain(|_, value| matters(value));
        // Many names cannot fill the memory.
        if self.entries.len() > MAX_KEPT {
            self.entries.clear();
        }
        self.kept = self.entries.len();
    }
}

impl ConnectRate {
    /// Creates the state without any connect.
    pub fn new(caps: ClientCaps) -> Self {
        Self(Mutex::new(State {
            caps,
            connects: ExpiringMap::default(),
        }))
    }

    /// Changes the rate and the burst of all clients.
    pub fn set(&self, caps: ClientCaps) {
        self.0.lock().caps = caps;
    }

    /// Counts a connect from that [network](super::owners::network), unless it is refused.
    ///
    /// # Errors
    /// [`RefusalReason::ConnectRate`]: the client has reached its connect rate.
    pub fn count(&self, network: IpAddr) -> Result<(), RefusalReason> {
        let mut state = self.0.lock();
        let State { caps, connects } = &mut *state;
        let Some(per_second) = caps.connects_per_second else {
            return Ok(());
        };
        connects.make_room(|count| !count.is_clear());
        let rate = EventRate {
            interval: Duration::from_secs(1) / per_second.get(),
            burst: caps.connects_burst.get(),
        };
        let count = connects.entries.entry(network).or_insert_with(EventCount::new);
        if !count.wait(rate).is_zero() {
            return Err(RefusalReason::ConnectRate);
        }
        count.add(rate);
        Ok(())
    }
}

/// Fewer entries are not worth a removal.
const FEW: usize = 1024;
/// The most entries that a removal leaves. With as many new ones, networks take about 10 MiB.
const MAX_KEPT: usize = 65_536;

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;
    use std::num::NonZeroU32;

    use tokio::time::advance;

    use super::*;

    fn rate(per_second: u32, burst: u32) -> ConnectRate {
        ConnectRate::new(caps(per_second, burst))
    }

    fn caps(per_second: u32, burst: u32) -> ClientCaps {
        ClientCaps {
            connects_per_second: NonZeroU32::new(per_second),
            connects_burst: NonZeroU32::new(burst).unwrap(),
            ..ClientCaps::default()
        }
    }

    fn conforming(rate: &ConnectRate, connects: usize) -> usize {
        let address = IpAddr::from([192, 0, 2, 1]);
        (0..connects).filter(|_| rate.count(address).is_ok()).count()
    }

    fn network(number: usize) -> IpAddr {
        Ipv6Addr::from_bits(0x2001_0db8 << 96 | (number as u128) << 64).into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_exact_and_is_restored_with_time() {
        let rate = rate(10, 5);
        for (millis, expected) in [(0, 5), (99, 0), (1, 1), (300, 3), (3_600_000, 5)] {
            advance(Duration::from_millis(millis)).await;
            assert_eq!(conforming(&rate, 100), expected);
        }
        // Each client has its own rate.
        assert!(rate.count(network(0)).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn the_mean_in_the_long_run_is_the_rate() {
        let rate = rate(50, 200);
        let mut conformed = 0;
        for _ in 0..10_000 {
            conformed += conforming(&rate, 1);
            advance(Duration::from_millis(1)).await;
        }
        assert_eq!(conformed, 200 + 50 * 10 - 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connect_that_is_refused_is_not_counted_and_a_changed_rate_holds_at_once() {
        let rate = rate(1, 1);
        assert_eq!(conforming(&rate, 100), 1);
        advance(Duration::from_secs(1)).await;
        assert_eq!(conforming(&rate, 100), 1);
        rate.set(caps(1, 3));
        assert_eq!(conforming(&rate, 100), 2);
        rate.set(ClientCaps {
            connects_per_second: None,
            ..ClientCaps::default()
        });
        assert_eq!(conforming(&rate, 100), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_is_remembered_until_its_burst_is_restored_and_many_never_fill_the_memory() {
        let rate = rate(1, 100);
        assert_eq!(conforming(&rate, 200), 100);
        for number in 0..100 * FEW {
            rate.count(network(number)).unwrap();
        }
        assert!(rate.0.lock().connects.entries.len() <= 2 * MAX_KEPT);
        assert_eq!(conforming(&rate, 1), 0, "its burst is not restored");
        for number in 0..4 * MAX_KEPT {
            rate.count(network(number)).unwrap();
            assert!(rate.0.lock().connects.entries.len() <= 2 * MAX_KEPT);
        }
        advance(Duration::from_secs(100)).await;
        for number in 0..4 * MAX_KEPT {
            rate.count(network(number)).unwrap();
        }
        assert!(rate.0.lock().connects.entries.len() <= 2 * MAX_KEPT);
    }
}
