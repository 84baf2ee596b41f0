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
    /// The same of a byte of the user's.
    used_at: AtomicU64,
    /// Writes of the user's bytes, and these bytes, by direction.
    messages: Both<AtomicU32>,
    used: Both<AtomicU64>,
    /// As [`set_own`](Self::set_own).
    is_own: Both<AtomicBool>,
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
            used_at: AtomicU64::new(0),
            messages: Default::default(),
            used: Default::default(),
            is_own: Default::default(),
            closed_windows: Default::default(),
            activity: Mutex::new(ActivityHistory {
                history: History::default(),
                was_active: true,
                last_active: born,
            }),
        }
    }

    /// Returns the meter of a tunnel whose session was last used `idle` ago, as its client says. Until the tunnel shows
    /// a session or a plain client, its bytes count as the session's own.
    pub fn idle_for(mut self, idle: Duration) -> Self {
        if !idle.is_zero() {
            let used = self.activity.get_mut();
            used.last_active = self.born.checked_sub(idle).unwrap_or(self.born);
            used.was_active = idle < MINUTE;
            for direction in Direction::ALL {
                self.set_own(direction, true);
            }
        }
        self
    }

    /// Sets whether the next bytes of a direction are a session's own: its handshake, and frames without bytes of the
    /// user's, such as PING and ACK. They are no use of the tunnel.
    pub fn set_own(&self, direction: Direction, is_own: bool) {
        self.is_own[direction].store(is_own, Ordering::Relaxed);
    }

    /// Counts bytes that were written to the receiving side.
    pub fn record(&self, direction: Direction, bytes: usize) {
        let now = whole_millis(self.born.elapsed());
        self.tunnel.add(direction, bytes as u64);
        self.target.add(direction, bytes as u64);
        self.moved_at.store(now, Ordering::Relaxed);
        if !self.is_own[direction].load(Ordering::Relaxed) {
            self.messages[direction].fetch_add(1, Ordering::Relaxed);
            self.used[direction].fetch_add(bytes as u64, Ordering::Relaxed);
            self.used_at.store(now, Ordering::Relaxed);
        }
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

    /// Returns the user's messages and bytes written so far.
    fn used(&self) -> Traffic {
        Traffic {
            messages: Direction::ALL.map(|direction| self.messages[direction].load(Ordering::Relaxed)),
            bytes: Direction::ALL.map(|direction| self.used[direction].load(Ordering::Relaxed)),
        }
    }

    /// Returns when a byte of the user's was last written.
    fn last_used(&self) -> Instant {
        self.born + Duration::from_millis(self.used_at.load(Ordering::Relaxed))
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
        let moved = self.used();
        let is_active_already = used.history.is_already_active(moved);
        // After an active minute, the use goes on until the next one is over.
        if is_active_already || used.was_active && used.history.has_moved(moved) {
            used.last_active = self.last_used();
        }
        Activity {
            is_active: used.was_active || is_active_already,
            last_active: used.last_active,
        }
    }

    /// Ends a minute, as the [rule](super::activity_rule) counts them.
    pub fn end_minute(&self) {
        let mut used = self.activity.lock();
        used.was_active = used.history.end_minute(self.used());
        if used.was_active {
            used.last_active = self.last_used();
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

const MINUTE: Duration = Duration::from_mins(1);
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
