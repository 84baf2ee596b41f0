//! The checks that are due: pairs that wait for one, pairs that were denied once, and the changes behind them.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use super::Pair;
use crate::policy::access::reviewer::Change;
use crate::tunnel::metrics::Metrics;

/// What is to be checked.
#[derive(Debug)]
pub(in crate::policy::access) struct Due {
    checks: Mutex<Checks>,
    /// Notified for each check.
    more: Notify,
    changes: Mutex<Changes>,
    /// Notified for each change.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Checks {
    /// By the namespaces of their targets, which take turns: changes in one, however many there are, delay no other one.
    pairs: HashMap<Box<str>, VecDeque<Weak<Pair>>>,
    /// The namespaces that have pairs, in the order of their turns.
    turns: VecDeque<Box<str>>,
    /// Pairs that were denied once, and when they are asked about again.
    denied: VecDeque<(Instant, Weak<Pair>)>,
    /// Pairs without an answer, by when they are asked about again, and their numbers.
    unanswered: BTreeMap<(Instant, u64), Weak<Pair>>,
    /// Checks that may be made at once.
    credit: f64,
    earned: Option<Instant>,
}

/// The scope of changes.
#[derive(Clone, Debug, Default)]
pub(in crate::policy::access) struct Changes {
    everywhere: bool,
    namespaces: HashSet<Box<str>>,
}

impl Due {
    /// Nothing.
    pub(in crate::policy::access) fn new(metrics: &Metrics) -> Self {
        for result in ["kept", "denied", "ended", "unknown"] {
            metrics.access_rechecks.zero([result]);
        }
        Self {
            checks: Mutex::default(),
            more: Notify::new(),
            changes: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Has a pair checked.
    pub(in crate::policy::access) fn push(&self, pair: &Arc<Pair>) {
        if pair.becomes_due() {
            self.checks.lock().push(pair);
            self.more.notify_one();
        }
    }

    /// Has a pair checked again later, as there was no answer: for two seconds soon, since an API server that has just come
    /// back says no less than it will, and after half a minute in the end. If it `was_asked`, and else when
    /// [`push_all_unanswered`](Self::push_all_unanswered) is called.
    pub(in crate::policy::access) fn push_unanswered(&self, pair: &Arc<Pair>, times: u32, was_asked: bool) {
        let doubled = if was_asked {
            times.saturating_sub(SOON)
        } else {
            MOST_DOUBLED
        };
        let until = Instant::now() + FIRST_WAIT * (1 << doubled.min(MOST_DOUBLED));
        let mut checks = self.checks.lock();
        // It waits there once.
        if let Some(before) = pair.wait_until(Some(until)) {
            checks.unanswered.remove(&(before, pair.number));
        }
        checks.unanswered.insert((until, pair.number), Arc::downgrade(pair));
        if !was_asked {
            checks.credit += 1.0;
        }
        drop(checks);
        self.more.notify_one();
    }

    /// Has all pairs without an answer checked.
    pub(in crate::policy::access) fn push_all_unanswered(&self) {
        let mut checks = self.checks.lock();
        for pair in std::mem::take(&mut checks.unanswered).into_values() {
            checks.end_wait(&pair);
            self.more.notify_one();
        }
    }

    /// Has a pair that was denied checked once more, a moment later.
    pub(in crate::policy::access) fn push_denied(&self, pair: &Arc<Pair>) {
        let due = Instant::now() + BETWEEN_DENIALS;
        self.checks.lock().denied.push_back((due, Arc::downgrade(pair)));
        self.more.notify_one();
    }

    /// Notes a change.
    pub(in crate::policy::access) fn add(&self, change: &Change) {
        self.changes.lock().add(change);
        self.changed.notify_one();
    }

    /// Completes when there is a change.
    pub(in crate::policy::access) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The changes that there are, and those that come within a moment.
    pub(in crate::policy::access) async fn take_changes(&self) -> Changes {
        sleep(TOGETHER).await;
        std::mem::take(&mut *self.changes.lock())
    }

    /// The next pair, and whether it was denied already.
    pub(in crate::policy::access) async fn next(&self) -> (Arc<Pair>, bool) {
        loop {
            let until = match self.checks.lock().take(Instant::now()) {
                Ok((pair, was_denied)) => match pair.upgrade() {
                    Some(pair) => return (pair, was_denied),
                    None => continue,
                },
                Err(until) => until,
            };
            tokio::select! {
                () = self.more.notified() => {}
                () = sleep_until(until) => {}
            }
        }
    }
}

impl Checks {
    /// What is to be checked now, or when to look again.
    fn take(&mut self, now: Instant) -> Result<(Weak<Pair>, bool), Instant> {
        if let Some((_, pair)) = self.denied.pop_front_if(|(due, _)| *due <= now) {
            return Ok((pair, true));
        }
        while let Some(first) = self.unanswered.first_entry().filter(|first| first.key().0 <= now) {
            let pair = first.remove();
            self.end_wait(&pair);
        }
        let denied = self.denied.front().map(|(due, _)| *due);
        let unanswered = self.unanswered.keys().next().map(|(due, _)| *due);
        let due = denied
            .into_iter()
            .chain(unanswered)
            .min()
            .unwrap_or(now + LONGEST_SLEEP);
        if self.turns.is_empty() {
            return Err(due);
        }
        let earned = self.earned.replace(now);
        let earned = earned.map_or(BURST, |last| (now - last).as_secs_f64() * CHECKS_A_SECOND);
        self.credit = (self.credit + earned).min(BURST);
        if self.credit < 1.0 {
            let wait = Duration::from_secs_f64((1.0 - self.credit) / CHECKS_A_SECOND);
            return Err(due.min(now + wait));
        }
        self.credit -= 1.0;
        self.pop().map(|pair| (pair, false)).ok_or(due)
    }

    fn end_wait(&mut self, pair: &Weak<Pair>) {
        if let Some(pair) = pair.upgrade() {
            pair.wait_until(None);
            if pair.becomes_due() {
                self.push(&pair);
            }
        }
    }

    fn push(&mut self, pair: &Arc<Pair>) {
        let namespace = &pair.target.id().namespace;
        let queue = self.pairs.entry(namespace.clone()).or_default();
        if queue.is_empty() {
            self.turns.push_back(namespace.clone());
        }
        queue.push_back(Arc::downgrade(pair));
    }

    /// The next pair of the namespace whose turn it is.
    fn pop(&mut self) -> Option<Weak<Pair>> {
        let namespace = self.turns.pop_front()?;
        let queue = self.pairs.get_mut(&namespace)?;
        let pair = queue.pop_front();
        if queue.is_empty() {
            self.pairs.remove(&namespace);
        } else {
            self.turns.push_back(namespace);
        }
        pair
    }
}

impl Changes {
    /// Each of them.
    pub(in crate::policy::access) fn iter(&self) -> impl Iterator<Item = Change> {
        let everywhere = self.everywhere.then_some(Change::Everywhere);
        self.namespaces.iter().cloned().map(Change::Namespace).chain(everywhere)
    }

    fn add(&mut self, change: &Change) {
        match change {
            Change::Namespace(name) if self.namespaces.len() < MOST_NAMESPACES => {
                self.namespaces.insert(name.clone());
            }
            Change::Namespace(_) | Change::Everywhere => self.everywhere = true,
            Change::UserGone(_) => {}
        }
    }

    /// Whether they may have ended the right of a pair.
    pub(in crate::policy::access) fn concerns(&self, pair: &Pair) -> bool {
        self.everywhere || self.namespaces.contains(&pair.target.id().namespace)
    }
}

/// Between two denials of a pair.
const BETWEEN_DENIALS: Duration = Duration::from_millis(200);
/// The wait after each of the first checks without an answer. It is doubled with each further one, up to 32 s.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const SOON: u32 = 8;
const MOST_DOUBLED: u32 = 7;
/// Changes that come within this time of each other are one.
const TOGETHER: Duration = Duration::from_millis(50);
/// The longest sleep without a check that is due.
pub(in crate::policy::access) const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// Checks at once, as many as there are pairs on a busy day, and a second in the long run if changes never end.
const BURST: f64 = 4096.0;
const CHECKS_A_SECOND: f64 = 50.0;
/// Namespaces in one sweep; beyond, it is of all.
const MOST_NAMESPACES: usize = 1024;
