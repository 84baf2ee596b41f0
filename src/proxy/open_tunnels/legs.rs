//! The two connections of a tunnel, and what the kernel last said of them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::net::sock_diag::{Ends, SockDiag, TcpInfo, Unknown};

/// The round trip of a connection, and what was sent again on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trip {
    /// The smoothed round-trip time.
    pub rtt: Duration,
    /// Segments that were sent again.
    pub retransmits: u32,
}

/// What was last seen of the connections of a tunnel: the client's and the target's.
#[derive(Debug, Default)]
pub(crate) struct LastSeen {
    /// Microseconds of the round trip and, in the lower half, retransmits; 0 before the first look.
    trips: [AtomicU64; 2],
    has_ended: AtomicBool,
}

impl LastSeen {
    /// Asks for both connections, and notes those that are known.
    pub(crate) fn look(&self, ends: [Option<Ends>; 2], diag: &SockDiag) -> [Result<TcpInfo, Unknown>; 2] {
        let seen = diag.look_up_all(ends);
        for (trip, seen) in self.trips.iter().zip(&seen) {
            if let Ok(info) = seen {
                trip.store(packed(info), Ordering::Relaxed);
            }
        }
        seen
    }

    /// The same, once: when a side has ended, as later there may be no connection to ask for.
    pub(crate) fn look_at_end(&self, ends: [Option<Ends>; 2], diag: &SockDiag) {
        if !self.has_ended.swap(true, Ordering::Relaxed) {
            let _seen = self.look(ends, diag);
        }
    }

    /// What was noted last.
    pub(crate) fn trips(&self) -> [Option<Trip>; 2] {
        self.trips.each_ref().map(|trip| unpacked(trip.load(Ordering::Relaxed)))
    }
}

fn packed(info: &TcpInfo) -> u64 {
    let micros = u64::try_from(info.rtt.as_micros()).unwrap_or(u64::MAX);
    (micros.min(u32::MAX.into()) << 32) | u64::from(info.retransmits)
}

fn unpacked(trip: u64) -> Option<Trip> {
    (trip != 0).then(|| Trip {
        rtt: Duration::from_micros(trip >> 32),
        retransmits: u32::try_from(trip & u64::from(u32::MAX)).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trip_is_noted_to_the_microsecond() {
        for (micros, retransmits) in [(1, 0), (123_456, 7), (u32::MAX, u32::MAX)] {
            let rtt = Duration::from_micros(micros.into());
            let info = TcpInfo {
                rtt,
                retransmits,
                ..TcpInfo::default()
            };
            assert_eq!(unpacked(packed(&info)), Some(Trip { rtt, retransmits }));
        }
        assert_eq!(LastSeen::default().trips(), [None, None]);
    }
}
