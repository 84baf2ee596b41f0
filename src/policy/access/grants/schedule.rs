//! The schedule of the rechecks: when each is due, and the order of those that wait for a turn.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Mutex as Gate, OwnedMutexGuard, Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep};

use crate::policy::access::credentials::digest::Digest;
use crate::tunnel::limits::event_rate::{EventCount, EventRate};

/// The schedule of all rechecks of a process.
///
/// Of each line, one recheck at a time waits for a turn. Each namespace has a line, and one more for grants that were
/// denied once. Thus changes in one namespace, however many, do not delay the rechecks of another.
#[derive(Debug)]
pub(super) struct RecheckSchedule {
    turns: Semaphore,
    lines: Mutex<HashMap<Line, Weak<Gate<()>>>>,
    /// The rechecks after changes.
    counted: Mutex<EventCount>,
    begun: Instant,
    /// The number of grants so far.
    grants: AtomicU32,
}

/// A line of rechecks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Line {
    /// The grants of a namespace.
    Namespace(Box<str>),
    /// The grants of a namespace that were denied once.
    Denied(Box<str>),
    /// The grants without an answer, of which one at a time finds out whether reviews are answered again.
    Probe,
}

/// How a recheck waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecheckClass {
    /// Counts against the rate: a change may have revoked the grant.
    Counted,
    /// Does not count: the interval bounds it.
    Periodic,
    /// Does not count, and has a line of its own: the grant was denied once.
    Denied,
}

impl RecheckSchedule {
    /// Creates the state in which all turns are free.
    pub(super) fn new() -> Self {
        Self {
            turns: Semaphore::new(MAX_CHECKED),
            lines: Mutex::default(),
            counted: Mutex::new(EventCount::new()),
            begun: Instant::now(),
            grants: AtomicU32::new(0),
        }
    }

    /// Returns the phase of a new grant: the fraction of the period after which it is due. The fractions of a subject's
    /// grants differ by at most [`SPREAD`].
    pub(super) fn draw_phase(&self, subject: &Digest) -> f64 {
        // Multiples of the golden ratio are spread evenly, however many there are.
        let order = (f64::from(self.grants.fetch_add(1, Ordering::Relaxed)) * 0.618_034).fract();
        subject.fraction() + SPREAD * order
    }

    /// Returns when the next periodic recheck is due.
    pub(super) fn next_due(&self, phase: f64, interval: Duration) -> Instant {
        // Shorter than the interval: an answer for all grants of a subject counts until the next recheck of each grant.
        let period = interval.mul_f64(1.0 - SPREAD);
        let periods = self.begun.elapsed().as_secs_f64() / period.as_secs_f64();
        // Not 0: after rounding, a time that has just passed may be due again.
        Instant::now() + period.mul_f64((1.0 - (periods - phase).rem_euclid(1.0)).max(0.01))
    }

    /// Waits for a turn, which ends when the permit is dropped; `None` if the grant has ended.
    pub(super) async fn wait_for_turn(
        &self,
        namespace: &str,
        class: RecheckClass,
        is_alive: impl Fn() -> bool,
    ) -> Option<SemaphorePermit<'_>> {
        let line = match class {
            RecheckClass::Counted | RecheckClass::Periodic => Line::Namespace(namespace.into()),
            RecheckClass::Denied => Line::Denied(namespace.into()),
        };
        let head = self.reach_head(line).await;
        if !is_alive() {
            return None;
        }
        let turn = self.turns.acquire().await.ok();
        drop(head);
        if class == RecheckClass::Counted {
            sleep(self.count()).await;
        }
        turn
    }

    /// Waits to be the one grant that finds out whether reviews are answered again, until the guard is dropped.
    pub(super) async fn wait_for_probe(&self) -> OwnedMutexGuard<()> {
        self.reach_head(Line::Probe).await
    }

    fn reach_head(&self, line: Line) -> impl Future<Output = OwnedMutexGuard<()>> + use<> {
        let mut lines = self.lines.lock();
        if let Some(gate) = lines.get(&line).and_then(Weak::upgrade) {
            return gate.lock_owned();
        }
        lines.retain(|_, gate| gate.strong_count() > 0);
        let gate = Arc::<Gate<()>>::default();
        lines.insert(line, Arc::downgrade(&gate));
        gate.lock_owned()
    }

    /// Counts a recheck after a change, and returns the wait before it.
    fn count(&self) -> Duration {
        let mut counted = self.counted.lock();
        let wait = counted.wait(RATE);
        counted.add(RATE);
        wait
    }
}

/// The part of the interval over which the grants of one credential are spread: the review of the first counts for all.
const SPREAD: f64 = 0.01;
/// Rechecks that run at a time.
const MAX_CHECKED: usize = 4;
/// Rechecks after changes: the active grants of a busy day at once, and 50 a second while changes never end.
const RATE: EventRate = EventRate {
    interval: Duration::from_millis(20),
    burst: 4096,
};
