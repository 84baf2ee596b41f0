//! Counts the bytes of a relay while it moves them, and tells when the tunnel was last active.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::activity_rule::{History, Traffic};
use crate::net::sock_diag::TcpInfo;
use crate::tunnel::direction::{Both, Direction};

/// Bytes and throttled time of one tunnel, passed on to the totals of its target as they happen.
#[derive(Debug)]
pub struct Meter {
    tunnel: Totals,
    target: Arc<Totals>,
    born: Instant,
    /// When a byte was last written, in milliseconds after `born`.
    moved_at: AtomicU64,
    /// Writes, by direction.
    messages: Both<AtomicU32>,
    /// As [`is_window_closed`](Self::is_window_closed).
    closed_windows: Both<AtomicBool>,
    activity: Mutex<ActivityHistory>,
}

/// The use of a tunnel so far.
#[derive(Debug)]
struct ActivityHistory {
    history: History,
    was_active: bool,
    last_active: Instant,
}

/// A tunnel's current and last use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// True if its last minute was active, or the current one is.
    pub is_active: bool,
    /// The time of the last byte of its last active minute; without one, the start. The minute in progress counts
    /// if it is active already, or the one before was.
    pub last_active: Instant,
}

impl Meter {
    /// Creates a meter at zero, whose tunnel was active just now.
    pub fn new(target: Arc<Totals>) -> Self {
        let born = Instant::now();
        Self {
            tunnel: Totals::default(),
            target,
            born,
            moved_at: AtomicU64::new(0),
            messages: Default::default(),
            closed_windows: Default::default(),
            activity: Mutex::new(ActivityHistory {
                history: History::default(),
                was_active: true,
                last_active: born,
            }),
        }
    }

    /// Counts bytes that were written to the receiving side.
    pub fn record(&self, direction: Direction, bytes: usize) {
        self.tunnel.add(direction, bytes as u64);
        self.target.add(direction, bytes as u64);
        self.messages[direction].fetch_add(1, Ordering::Relaxed);
        self.moved_at
            .store(whole_millis(self.born.elapsed()), Ordering::Relaxed);
    }

    /// Counts a wait of a direction for its limits.
    pub fn throttled(&self, direction: Direction, waited: Duration) {
        self.tunnel.throttle(direction, waited);
        self.target.throttle(direction, waited);
    }

    /// Notes which sides keep their receive windows closed, as a suspended ssh does. When the relay is polled next, it
    /// turns off TCP_USER_TIMEOUT towards them. To be called every [`WINDOW_INTERVAL`]. Returns whether anything has
    /// changed.
    pub fn note_windows(&self, client: &TcpInfo, target: &TcpInfo) -> bool {
        let note = |(direction, receiver): (_, &TcpInfo)| {
            let is_closed = receiver.is_window_closed();
            self.closed_windows[direction].swap(is_closed, Ordering::Relaxed) != is_closed
        };
        [(Direction::Download, client), (Direction::Upload, target)]
            .map(note)
            .contains(&true)
    }

    /// Returns whether the receiver of a direction kept its window closed when that was noted last.
    pub fn is_window_closed(&self, direction: Direction) -> bool {
        self.closed_windows[direction].load(Ordering::Relaxed)
    }

    /// Returns the bytes written so far in a direction.
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.tunnel.bytes(direction)
    }

    /// Returns the messages and bytes written so far.
    pub fn totals(&self) -> Traffic {
        Traffic {
            messages: Direction::ALL.map(|direction| self.messages[direction].load(Ordering::Relaxed)),
            bytes: Direction::ALL.map(|direction| self.bytes(direction)),
        }
    }

    /// Returns the sum of the waits of a direction for its limits.
    pub fn throttled_time(&self, direction: Direction) -> Duration {
        self.tunnel.throttled(direction)
    }

    /// Returns when a byte was last written in either direction, to the millisecond; the start if none was.
    pub fn last_moved(&self) -> Instant {
        self.born + Duration::from_millis(self.moved_at.load(Ordering::Relaxed))
    }

    /// Returns the use of the tunnel now. The time since `last_active` is its idle time.
    pub fn activity(&self) -> Activity {
        let mut used = self.activity.lock();
        let moved = self.totals();
        let is_active_already = used.history.is_already_active(moved);
        // After an active minute, the use goes on until the next one is over.
        if is_active_already || used.was_active && used.history.has_moved(moved) {
            used.last_active = self.last_moved();
        }
        Activity {
            is_active: used.was_active || is_active_already,
            last_active: used.last_active,
        }
    }

    /// Ends a minute, as the [rule](super::activity_rule) counts them.
    pub fn end_minute(&self) {
        let mut used = self.activity.lock();
        used.was_active = used.history.end_minute(self.totals());
        if used.was_active {
            used.last_active = self.last_moved();
        }
    }
}

/// The sums over all tunnels of a target, or those of one tunnel.
#[derive(Debug, Default)]
pub struct Totals {
    bytes: Both<AtomicU64>,
    throttled_nanos: Both<AtomicU64>,
}

impl Totals {
    /// Returns the bytes written so far.
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.bytes[direction].load(Ordering::Relaxed)
    }

    /// Returns the sum of the waits of a direction for its limits.
    pub fn throttled(&self, direction: Direction) -> Duration {
        Duration::from_nanos(self.throttled_nanos[direction].load(Ordering::Relaxed))
    }

    fn add(&self, direction: Direction, bytes: u64) {
        self.bytes[direction].fetch_add(bytes, Ordering::Relaxed);
    }

    fn throttle(&self, direction: Direction, waited: Duration) {
        let nanos = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.throttled_nanos[direction].fetch_add(nanos, Ordering::Relaxed);
    }
}

fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Between two samples of the windows: half of TCP_USER_TIMEOUT.
pub(crate) const WINDOW_INTERVAL: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_of_a_tunnel_show_at_once_in_the_totals_of_its_target() {
        let target = Arc::new(Totals::default());
        let (one, two) = (Meter::new(Arc::clone(&target)), Meter::new(Arc::clone(&target)));
        let start = one.last_moved();
        tokio::time::advance(Duration::from_millis(1500)).await;
        one.record(Direction::Upload, 5);
        two.record(Direction::Upload, 7);
        two.record(Direction::Download, 1);
        two.throttled(Direction::Download, Duration::from_millis(20));
        assert_eq!((one.bytes(Direction::Upload), one.bytes(Direction::Download)), (5, 0));
        assert_eq!(
            (target.bytes(Direction::Upload), target.bytes(Direction::Download)),
            (12, 1)
        );
        assert_eq!(target.throttled(Direction::Download), Duration::from_millis(20));
        assert_eq!(one.last_moved() - start, Duration::from_millis(1500));
    }
}
