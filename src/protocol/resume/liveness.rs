//! Watches the path of a connection: it is dead if an answer does not come in time.

use std::time::{Duration, Instant};

/// The times by which a side watches the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Silence before a PING if everything is acknowledged.
    pub quiet: Duration,
    /// Silence before a PING if something is unacknowledged: the other side may only be unable to pass bytes on.
    pub unacknowledged: Duration,
    /// The maximum silence while an answer is awaited: an acknowledgement, or a PONG.
    pub answer: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            quiet: Duration::from_secs(10),
            unacknowledged: Duration::from_secs(2),
            answer: Duration::from_secs(4),
        }
    }
}

#[derive(Debug)]
pub(super) struct Liveness {
    timing: Timing,
    /// When bytes last arrived.
    heard: Instant,
    /// The start of the silence while an answer is awaited; `None` if none is.
    awaiting: Option<Instant>,
    /// The number of the PING that was not answered; `None` if there is none.
    pinged: Option<u64>,
    pings: u64,
}

impl Liveness {
    pub(super) fn new(timing: Timing, now: Instant) -> Self {
        Self {
            timing,
            heard: now,
            awaiting: None,
            pinged: None,
            pings: 0,
        }
    }

    /// Notes that bytes arrived. `is_outstanding` is true if something that was sent is not acknowledged yet.
    pub(super) fn heard(&mut self, is_outstanding: bool, now: Instant) {
        self.heard = now;
        let awaits = is_outstanding || self.pinged.is_some();
        self.awaiting = awaits.then_some(now);
    }

    /// Notes that something was sent that has to be answered.
    pub(super) fn sent(&mut self, now: Instant) {
        self.awaiting.get_or_insert(now);
    }

    pub(super) fn answered(&mut self, number: u64) {
        if self.pinged == Some(number) {
            self.pinged = None;
        }
    }

    /// Returns the number of the PING to be sent now, and notes it as sent; `None` if none is due.
    pub(super) fn ping(&mut self, now: Instant) -> Option<u64> {
        if self.ping_at()? > now {
            return None;
        }
        self.pings += 1;
        self.pinged = Some(self.pings);
        self.sent(now);
        self.pinged
    }

    pub(super) fn is_dead(&self, now: Instant) -> bool {
        self.dead_at().is_some_and(|at| at <= now)
    }

    /// Returns when a PING is due, or the connection is dead.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.ping_at().into_iter().chain(self.dead_at()).min()
    }

    /// Returns when a connection that accepts no bytes is dead: no PING can be sent on it.
    pub(super) fn stuck_at(&self) -> Instant {
        let unasked = self.heard + self.timing.quiet + self.timing.answer;
        self.dead_at().map_or(unasked, |at| at.min(unasked))
    }

    fn ping_at(&self) -> Option<Instant> {
        if self.pinged.is_some() {
            return None;
        }
        let quiet = self.heard + self.timing.quiet;
        let awaiting = self.awaiting.map(|since| since + self.timing.unacknowledged);
        Some(awaiting.map_or(quiet, |at| at.min(quiet)))
    }

    fn dead_at(&self) -> Option<Instant> {
        Some(self.awaiting? + self.timing.answer)
    }
}
