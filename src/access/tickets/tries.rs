//! Bounds the wrong tickets of each client network.
//!
//! 130 bits are not guessed at any rate. The bound is for the log, the processor, and a ticket that was made badly.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::limits::clients::network;
use crate::ticket::Key;

/// The wrong tickets of each network, by the generic cell rate algorithm (ITU-T I.371).
#[derive(Debug, Default)]
pub(super) struct Tries(Mutex<HashMap<IpAddr, Wrong>>);

#[derive(Debug)]
struct Wrong {
    /// The theoretical arrival time of the next one.
    due: Instant,
    /// The last one: a client that repeats it guesses nothing, and locks no other one of its network out.
    last: Key,
}

impl Tries {
    /// Whether a ticket of this client's network is looked at.
    pub(super) fn are_left(&self, client: IpAddr) -> bool {
        let wrong = self.0.lock();
        let due = wrong.get(&network(client)).map(|wrong| wrong.due);
        due.is_none_or(|due| due.saturating_duration_since(Instant::now()) < EACH * BURST)
    }

    /// Counts a wrong ticket.
    pub(super) fn count(&self, client: IpAddr, key: Key) {
        let (network, now) = (network(client), Instant::now());
        let mut all = self.0.lock();
        if all.len() >= MOST_NETWORKS && !all.contains_key(&network) {
            all.retain(|_, wrong| wrong.due > now);
            let first = all
                .iter()
                .min_by_key(|(_, wrong)| wrong.due)
                .map(|(network, _)| *network);
            if let Some(first) = first.filter(|_| all.len() >= MOST_NETWORKS) {
                all.remove(&first);
            }
        }
        match all.get_mut(&network) {
            Some(wrong) if wrong.last == key => {}
            Some(wrong) => {
                wrong.due = wrong.due.max(now) + EACH;
                wrong.last = key;
            }
            None => drop(all.insert(
                network,
                Wrong {
                    due: now + EACH,
                    last: key,
                },
            )),
        }
    }
}

/// Of a network, in the long run one in this time: 3 million a year, of 2^130 tickets.
const EACH: Duration = Duration::from_secs(10);
/// At once: an office whose tickets were all taken back.
const BURST: u32 = 100;
/// About 400 KiB of them. Beyond, the one with the fewest wrong tickets is forgotten.
const MOST_NETWORKS: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::tickets::Minted;
    use std::net::Ipv4Addr;

    fn client(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    fn key() -> Key {
        Minted::new().unwrap().key
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_has_a_hundred_wrong_tickets_at_once_and_one_in_ten_seconds_and_others_as_many() {
        let tries = Tries::default();
        for _ in 0..BURST {
            assert!(tries.are_left(client(1)));
            tries.count(client(1), key());
        }
        assert!(!tries.are_left(client(1)));
        assert!(tries.are_left(client(2)));
        tokio::time::advance(EACH).await;
        assert!(tries.are_left(client(1)));
        tries.count(client(1), key());
        assert!(!tries.are_left(client(1)));
        // An IPv6 network is a /64.
        let [one, two] = ["2001:db8::1", "2001:db8::2"].map(|address| address.parse().unwrap());
        (0..BURST).for_each(|_| tries.count(one, key()));
        assert!(!tries.are_left(two));
    }

    #[tokio::test(start_paused = true)]
    async fn a_ticket_that_is_repeated_counts_once() {
        let (tries, same) = (Tries::default(), key());
        for _ in 0..10 * BURST {
            tries.count(client(1), same);
        }
        assert!(tries.are_left(client(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_networks_are_bounded_and_the_one_with_most_wrong_tickets_stays() {
        let tries = Tries::default();
        (0..BURST).for_each(|_| tries.count(client(0), key()));
        for number in 1..10_000 {
            tries.count(client(number), key());
        }
        assert_eq!(tries.0.lock().len(), MOST_NETWORKS);
        assert!(!tries.are_left(client(0)));
    }
}
