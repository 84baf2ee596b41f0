//! The checks that are due: pairs that wait for one, pairs that were denied once, and the changes behind them.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use super::grants::Pair;
use super::reviewer::Change;
use crate::metrics::Metrics;

/// What is to be checked.
#[derive(Debug)]
pub(super) struct Due {
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
    /// Pairs without an answer, by when they are asked about again, and a number that tells those of one moment apart.
    unanswered: BTreeMap<(Instant, u64), Weak<Pair>>,
    number: u64,
    /// Checks that may be made at once.
    credit: f64,
    earned: Option<Instant>,
}

/// The scope of changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    everywhere: bool,
    namespaces: HashSet<Box<str>>,
}

impl Due {
    /// Nothing.
    pub(super) fn new(metrics: &Metrics) -> Self {
        for result in ["kept", "denied", "ended", "unknown"] {
            metrics.access_recheck_may_end(result);
        }
        Self {
            checks: Mutex::default(),
            more: Notify::new(),
            changes: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Has a pair checked.
    pub(super) fn push(&self, pair: &Arc<Pair>) {
        if pair.becomes_due() {
            self.checks.lock().push(pair);
            self.more.notify_one();
        }
    }

    /// Has a pair checked again later, as there was no answer: after a second at first, and after half a minute in the end.
    /// A right that was taken back while the API server was away so ends soon after it is back.
    pub(super) fn push_unanswered(&self, pair: &Arc<Pair>, times: u32) {
        // It waits there once. A change that concerns it has it checked before.
        if !pair.awaits_answer() {
            return;
        }
        let wait = FIRST_WAIT * (1 << times.saturating_sub(1).min(MOST_DOUBLED));
        let mut checks = self.checks.lock();
        checks.number += 1;
        let due = (Instant::now() + wait, checks.number);
        checks.unanswered.insert(due, Arc::downgrade(pair));
        drop(checks);
        self.more.notify_one();
    }

    /// Has a pair that was denied checked once more, a moment later.
    pub(super) fn push_denied(&self, pair: &Arc<Pair>) {
        let due = Instant::now() + BETWEEN_DENIALS;
        self.checks.lock().denied.push_back((due, Arc::downgrade(pair)));
        self.more.notify_one();
    }

    /// Notes a change.
    pub(super) fn add(&self, change: &Change) {
        self.changes.lock().add(change);
        self.changed.notify_one();
    }

    /// Completes when there is a change.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The changes that there are, and those that come within a moment.
    pub(super) async fn take_changes(&self) -> Changes {
        sleep(TOGETHER).await;
        std::mem::take(&mut *self.changes.lock())
    }

    /// The next pair, and whether it was denied already.
    pub(super) async fn next(&self) -> (Arc<Pair>, bool) {
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
            if let Some(pair) = first.remove().upgrade().filter(|pair| pair.ends_wait()) {
                self.push(&pair);
            }
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
    pub(super) fn iter(&self) -> impl Iterator<Item = Change> {
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
    pub(super) fn concerns(&self, pair: &Pair) -> bool {
        self.everywhere || self.namespaces.contains(&pair.target.id().namespace)
    }
}

/// Between two denials of a pair.
const BETWEEN_DENIALS: Duration = Duration::from_millis(200);
/// The wait for an answer after the first check without one. It is doubled with each further one, up to 32 s.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const MOST_DOUBLED: u32 = 5;
/// Changes that come within this time of each other are one.
const TOGETHER: Duration = Duration::from_millis(50);
/// The longest sleep without a check that is due.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// Checks at once, as many as there are pairs on a busy day, and a second in the long run if changes never end.
const BURST: f64 = 4096.0;
const CHECKS_A_SECOND: f64 = 50.0;
/// Namespaces in one sweep; beyond, it is of all.
const MOST_NAMESPACES: usize = 1024;
