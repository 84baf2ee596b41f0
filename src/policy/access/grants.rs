//! The rights that are in use: each user with tunnels to a target, or with one that is being opened, is a pair.

pub(crate) mod recheck_queue;

use std::collections::{BTreeMap, HashMap};
use std::future::{Future, pending};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Notify, SetOnce};
use tokio::time::{Instant, sleep_until};

use super::evidence::Subject;
use super::evidence::digest::Digest;
use super::options::AtExpiry;
use crate::policy::allowlist::Target;
use crate::tunnel::outcome::{Denial, Reason, Refusal};

/// The right of one tunnel.
#[derive(Debug)]
pub struct Grant {
    /// Why, in the words of what decided; for the access log.
    pub reason: Box<str>,
    pair: Arc<Pair>,
}

/// A user and a target. Its tunnels share it.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) subject: Subject,
    pub(super) target: Arc<Target>,
    /// Whether it is about to be checked.
    is_due: AtomicBool,
    /// When it is asked about again, as there was no answer.
    waits_until: Mutex<Option<Instant>>,
    /// The checks without an answer since the last one with an answer.
    unanswered: AtomicU32,
    end: SetOnce<Reason>,
    pub(super) number: u64,
    registry: Arc<Pairs>,
}

/// All pairs.
#[derive(Debug)]
pub(super) struct Pairs {
    state: Mutex<State>,
    /// Notified when there is a first one.
    some: Notify,
    /// Whether tunnels end with their credential.
    closes_at_expiry: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    known: HashMap<Key, Weak<Pair>>,
    /// By age, to be checked one after the other.
    order: BTreeMap<u64, Weak<Pair>>,
    next: u64,
    /// The last one that was checked.
    checked: u64,
}

/// The subject, and the address of the target, which the pair keeps alive.
type Key = (Digest, usize);

impl Grant {
    /// The right of this pair.
    pub(super) fn new(pair: Arc<Pair>, reason: Box<str>) -> Self {
        Self { reason, pair }
    }

    /// The name of its user.
    pub fn user_name(&self) -> &str {
        &self.pair.subject.user.name
    }

    /// Completes when the right is taken back, or has expired.
    pub async fn ended(&self) -> Reason {
        let expired = async {
            if let Some(expires) = self.pair.subject.expires {
                sleep_until(expires).await;
                if self.pair.registry.closes_at_expiry.load(Ordering::Acquire) {
                    return;
                }
            }
            pending().await
        };
        tokio::select! {
            biased;
            reason = self.pair.end.wait() => *reason,
            () = expired => Reason::Expired,
        }
    }

    /// The result of `work`, unless the right ends first.
    ///
    /// # Errors
    /// The error of `work`, or the end of the right.
    pub async fn while_valid<T>(&self, work: impl Future<Output = Result<T, Denial>>) -> Result<T, Denial> {
        tokio::select! {
            biased;
            reason = self.ended() => Err(match reason == Reason::Expired {
                true => Refusal::CredentialsRefused.into(),
                false => Refusal::NotAuthorized.into(),
            }),
            done = work => done,
        }
    }
}

impl Pair {
    /// Takes the right back, and ends the tunnels.
    pub(super) fn end(&self) {
        self.end.set(Reason::Unauthorized).ok();
    }

    /// Whether the right was taken back.
    pub(super) fn has_ended(&self) -> bool {
        self.end.get().is_some()
    }

    /// Notes that it is about to be checked. Whether it was not before.
    pub(super) fn becomes_due(&self) -> bool {
        !self.is_due.swap(true, Ordering::AcqRel)
    }

    /// Notes that it is being checked: what changes from now on needs another check.
    pub(super) fn begins_check(&self) {
        self.is_due.store(false, Ordering::Release);
    }

    /// Notes when it is asked about again, and returns what was noted before.
    pub(super) fn wait_until(&self, until: Option<Instant>) -> Option<Instant> {
        std::mem::replace(&mut *self.waits_until.lock(), until)
    }

    /// Notes whether a check had an answer, and returns how many had none since the last one that had.
    pub(super) fn answered(&self, is_answer: bool) -> u32 {
        if is_answer {
            self.unanswered.store(0, Ordering::Relaxed);
            0
        } else {
            self.unanswered.fetch_add(1, Ordering::Relaxed).saturating_add(1)
        }
    }

    fn key(&self) -> Key {
        key(&self.subject, &self.target)
    }
}

fn key(subject: &Subject, target: &Arc<Target>) -> Key {
    (subject.digest, Arc::as_ptr(target).addr())
}

impl Pairs {
    /// None.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            some: Notify::new(),
            closes_at_expiry: AtomicBool::default(),
        })
    }

    /// What happens to tunnels whose credential expires, or has expired.
    pub(super) fn set_at_expiry(&self, at_expiry: AtExpiry) {
        let closes = at_expiry == AtExpiry::Close;
        self.closes_at_expiry.store(closes, Ordering::Release);
        let now = Instant::now();
        let has_expired = |pair: &&Arc<Pair>| pair.subject.expires.is_some_and(|expires| expires <= now);
        for pair in self.all().iter().filter(has_expired).filter(|_| closes) {
            pair.end.set(Reason::Expired).ok();
        }
    }

    /// The pair of a subject and a target; another one if that right was taken back.
    pub(super) fn pair(self: &Arc<Self>, subject: &Subject, target: &Arc<Target>) -> Arc<Pair> {
        let key = key(subject, target);
        let mut state = self.state.lock();
        let known = state.known.get(&key).and_then(Weak::upgrade);
        match known {
            Some(pair) if !pair.has_ended() => pair,
            // Not dropped before the lock is free: its drop takes it.
            ended => {
                let number = state.next;
                state.next += 1;
                let pair = Arc::new(Pair {
                    subject: subject.clone(),
                    target: Arc::clone(target),
                    is_due: AtomicBool::new(false),
                    waits_until: Mutex::default(),
                    unanswered: AtomicU32::new(0),
                    end: SetOnce::new(),
                    number,
                    registry: Arc::clone(self),
                });
                state.known.insert(key, Arc::downgrade(&pair));
                state.order.insert(number, Arc::downgrade(&pair));
                drop(state);
                drop(ended);
                self.some.notify_one();
                pair
            }
        }
    }

    /// The number of pairs.
    pub(super) fn len(&self) -> usize {
        self.state.lock().order.len()
    }

    /// Completes when there is a pair.
    pub(super) async fn wait(&self) {
        while self.len() == 0 {
            self.some.notified().await;
        }
    }

    /// All pairs.
    pub(super) fn all(&self) -> Vec<Arc<Pair>> {
        self.state.lock().order.values().filter_map(Weak::upgrade).collect()
    }

    /// The next pair in the order of age, after the last one the first.
    pub(super) fn next(&self) -> Option<Arc<Pair>> {
        let mut state = self.state.lock();
        let behind = (Bound::Excluded(state.checked), Bound::Unbounded);
        let next = state
            .order
            .range(behind)
            .next()
            .or_else(|| state.order.first_key_value());
        let (number, pair) = next.map(|(number, pair)| (*number, pair.upgrade()))?;
        state.checked = number;
        pair
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let mut state = self.registry.state.lock();
        state.order.remove(&self.number);
        let key = self.key();
        // There may be another one by now.
        if state.known.get(&key).is_some_and(|known| known.strong_count() == 0) {
            state.known.remove(&key);
        }
    }
}
