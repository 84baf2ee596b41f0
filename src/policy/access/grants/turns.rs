//! The order of the rechecks: namespaces take turns, and beyond a burst changes cause at most 50 a second.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Mutex as Line, Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep};

/// The turns of rechecks.
///
/// Each namespace has one place among those that wait for a turn, and one more for grants that were denied once. Thus
/// changes in one namespace, however many, do not delay the rechecks of another.
#[derive(Debug)]
pub(super) struct Turns {
    turns: Semaphore,
    lines: Mutex<HashMap<Place, Weak<Line<()>>>>,
    /// The theoretical arrival time of the next recheck, by the generic cell rate algorithm (ITU-T I.371).
    due: Mutex<Instant>,
}

/// How a recheck counts against the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecheckClass {
    /// Counts: a change may have revoked the grant.
    Counted,
    /// Does not count: the interval bounds it.
    Periodic,
    /// Does not count, and has a place of its own: the grant was denied once.
    Denied,
}

/// A namespace, and whether it is the place of grants that were denied once.
type Place = (Box<str>, bool);

impl Turns {
    /// Creates the state in which all turns are free.
    pub(super) fn new() -> Self {
        Self {
            turns: Semaphore::new(MAX_CHECKED),
            lines: Mutex::default(),
            due: Mutex::new(Instant::now()),
        }
    }

    /// Waits for a turn, which ends when the permit is dropped; `None` if the grant has ended.
    pub(super) async fn wait(
        &self,
        namespace: &str,
        pace: RecheckClass,
        is_alive: impl Fn() -> bool,
    ) -> Option<SemaphorePermit<'_>> {
        let line = self.line((namespace.into(), pace == RecheckClass::Denied));
        let place = line.lock().await;
        if !is_alive() {
            return None;
        }
        let turn = self.turns.acquire().await.ok();
        drop(place);
        if pace == RecheckClass::Counted {
            sleep(self.excess()).await;
        }
        turn
    }

    fn line(&self, key: Place) -> Arc<Line<()>> {
        let mut lines = self.lines.lock();
        if let Some(line) = lines.get(&key).and_then(Weak::upgrade) {
            return line;
        }
        lines.retain(|_, line| line.strong_count() > 0);
        let line = Arc::default();
        lines.insert(key, Arc::downgrade(&line));
        line
    }

    /// Counts a recheck, and returns the wait before it.
    fn excess(&self) -> Duration {
        let (mut due, now) = (self.due.lock(), Instant::now());
        *due = (*due).max(now) + EACH;
        due.duration_since(now).saturating_sub(EACH * BURST)
    }
}

/// Rechecks that run at a time.
const MAX_CHECKED: usize = 4;
/// Rechecks that count and are not delayed: the active grants of a busy day.
const BURST: u32 = 4096;
/// The interval of rechecks beyond the burst, while changes never end.
const EACH: Duration = Duration::from_millis(20);
