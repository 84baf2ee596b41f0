//! Rates of events: a number in the long run and a burst after a pause, or a number in each period.

use std::time::Duration;

use tokio::time::Instant;

/// A rate of events, by the generic cell rate algorithm in its virtual scheduling form (ITU-T I.371).
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventRate {
    /// The interval in which one event of the burst is regained.
    pub(crate) interval: Duration,
    /// The most events at once.
    pub(crate) burst: u32,
}

/// The events of one source: the theoretical arrival time of the next one, at which the whole burst is there again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EventCount(Instant);

impl EventCount {
    /// Creates the state without any event.
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    /// Returns whether no event counts any more.
    pub(crate) fn is_clear(self) -> bool {
        self.0 <= Instant::now()
    }

    /// Returns how long it takes until the rate allows the next event; zero if it does now.
    pub(crate) fn wait(self, rate: EventRate) -> Duration {
        let debt = self.0.saturating_duration_since(Instant::now());
        debt.saturating_sub(rate.interval.saturating_mul(rate.burst.saturating_sub(1)))
    }

    /// Counts an event, whether the rate allows it or not.
    pub(crate) fn add(&mut self, rate: EventRate) {
        self.0 = self.0.max(Instant::now()) + rate.interval;
    }
}

/// A count of events in periods that follow each other. Unlike a rate, it allows none until the next period.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EventWindow {
    started: Option<Instant>,
    count: u32,
}

impl EventWindow {
    /// Returns whether the period has ended, or none has begun.
    pub(crate) fn is_over(self, period: Duration) -> bool {
        self.started.is_none_or(|started| started.elapsed() >= period)
    }

    /// Counts an event, and returns whether it is one of the first `max` of its period.
    pub(crate) fn admit(&mut self, max: u32, period: Duration) -> bool {
        if self.is_over(period) {
            (self.started, self.count) = (Some(Instant::now()), 0);
        }
        self.count = self.count.saturating_add(1);
        self.count <= max
    }

    /// Returns how many events of the period were not admitted.
    pub(crate) fn refused(self, max: u32) -> u32 {
        self.count.saturating_sub(max)
    }
}
