//! Active grants: the authorization of a user for a target, while tunnels use it or one is being opened.
//!
//! Each grant has a task. The task rechecks it once in the interval, and at once when a change may have revoked it. A
//! missing answer revokes nothing.

mod schedule;

use std::collections::HashMap;
use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedMutexGuard, SetOnce, watch};
use tokio::time::{Instant, sleep, timeout};

use self::schedule::{RecheckClass, RecheckSchedule};
use super::credentials::digest::Digest;
use super::credentials::{Subject, brief};
use super::decision::{AccessDecider, NotAllowed};
use super::options::{Mode, OnExpiry};
use super::reviewer::Right;
use super::reviews::ReviewMode;
use crate::base::boxed::boxed;
use crate::base::random::Backoff;
use crate::policy::allowlist::Target;
use crate::tunnel::outcome::{CloseReason, Refusal, RefusalReason};

/// The grant of one tunnel.
#[derive(Debug)]
pub struct TunnelGrant {
    /// The reason, as its source words it; for the access log.
    pub reason: Box<str>,
    active: Arc<ActiveGrant>,
}

/// The authorization of a user for a target, shared by its tunnels.
#[derive(Debug)]
pub(super) struct ActiveGrant {
    pub(super) subject: Arc<Subject>,
    pub(super) target: Arc<Target>,
    /// Notified when a change may have revoked the grant, and when its last tunnel has ended.
    recheck_wanted: Arc<Notify>,
    /// True if a stale approval has opened a tunnel, until its task has seen that.
    has_stale_approval: AtomicBool,
    revocation: SetOnce<CloseReason>,
    grants: Arc<ActiveGrants>,
}

/// The active grants of a process.
#[derive(Debug)]
pub(super) struct ActiveGrants {
    pub(super) decider: Arc<AccessDecider>,
    grants: Mutex<HashMap<Key, Weak<ActiveGrant>>>,
    schedule: RecheckSchedule,
    /// True if tunnels end when their credential expires.
    closes_on_expiry: AtomicBool,
}

/// The subject, and the address of the target, which the grant keeps alive.
type Key = (Digest, usize);

impl TunnelGrant {
    /// Creates the grant of one tunnel.
    pub(super) fn new(active: Arc<ActiveGrant>, reason: Box<str>) -> Self {
        Self { reason, active }
    }

    /// Returns the name of its user.
    pub fn user_name(&self) -> &str {
        &self.active.subject.user.name
    }

    /// Completes when the grant is revoked, or has expired and `on_expiry` closes its tunnels.
    pub async fn revoked_or_expired(&self) -> CloseReason {
        let expired = async {
            self.active.subject.expired().await;
            if !self.active.grants.closes_on_expiry.load(Ordering::Acquire) {
                pending().await
            }
        };
        tokio::select! {
            biased;
            reason = self.active.revocation.wait() => *reason,
            () = expired => CloseReason::Expired,
        }
    }

    /// Returns the result of `work`, unless the grant ends first.
    ///
    /// # Errors
    /// The error of `work`, or the end of the grant.
    pub async fn while_valid<T>(&self, work: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
        tokio::select! {
            biased;
            reason = self.revoked_or_expired() => Err(match reason == CloseReason::Expired {
                true => RefusalReason::CredentialsRefused.into(),
                false => RefusalReason::NotAuthorized.into(),
            }),
            done = work => done,
        }
    }
}

impl ActiveGrants {
    /// Creates the registry without a grant, and the counters of rechecks at 0.
    pub(super) fn new(decider: Arc<AccessDecider>) -> Arc<Self> {
        for result in ["kept", "denied", "ended", "unknown"] {
            decider.metrics.rechecks.zero([result]);
        }
        Arc::new(Self {
            decider,
            grants: Mutex::default(),
            schedule: RecheckSchedule::new(),
            closes_on_expiry: AtomicBool::default(),
        })
    }

    /// Sets what happens to tunnels whose credential expires, or has expired.
    pub(super) fn set_on_expiry(&self, on_expiry: OnExpiry) {
        let closes = on_expiry == OnExpiry::Close;
        self.closes_on_expiry.store(closes, Ordering::Release);
        for grant in self.all().iter().filter(|grant| closes && grant.subject.has_expired()) {
            grant.revocation.set(CloseReason::Expired).ok();
        }
    }

    /// Returns the active grant of a subject and a target; a new one if there is none or it was revoked.
    pub(super) fn get_or_insert(self: &Arc<Self>, subject: &Subject, target: &Arc<Target>) -> Arc<ActiveGrant> {
        let key = key(subject, target);
        let mut grants = self.grants.lock();
        let known = grants.get(&key).and_then(Weak::upgrade);
        if let Some(grant) = known.as_ref().filter(|grant| !grant.is_revoked()) {
            return Arc::clone(grant);
        }
        let grant = Arc::new(ActiveGrant {
            subject: Arc::new(subject.clone()),
            target: Arc::clone(target),
            recheck_wanted: Arc::default(),
            has_stale_approval: AtomicBool::default(),
            revocation: SetOnce::new(),
            grants: Arc::clone(self),
        });
        grants.insert(key, Arc::downgrade(&grant));
        // `known` is dropped after the lock is released, since its drop takes the lock.
        drop(grants);
        drop(known);
        Recheck::new(&grant).spawn();
        grant
    }

    /// Returns the number of active grants.
    pub(super) fn len(&self) -> usize {
        self.grants.lock().len()
    }

    fn all(&self) -> Vec<Arc<ActiveGrant>> {
        self.grants.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Rechecks the grants that `concerns` selects: at once by local knowledge, and soon by a review.
    pub(super) fn request_recheck_where(&self, concerns: impl Fn(&ActiveGrant) -> bool) {
        for grant in self.all().iter().filter(|grant| concerns(grant)) {
            match self.decider.decide_locally(&grant.subject, &grant.target) {
                Err(NotAllowed::DeniedLocally(_)) => self.revoke(grant),
                Ok(()) | Err(NotAllowed::Denied(_) | NotAllowed::Unknown) => grant.recheck_wanted.notify_one(),
            }
        }
    }

    /// Revokes the grants of the subjects that `applies` selects.
    pub(super) fn end_where(&self, applies: impl Fn(&Subject) -> bool) {
        let all = self.all();
        let due = all.iter().filter(|grant| applies(&grant.subject));
        due.for_each(|grant| self.revoke(grant));
    }

    /// Revokes a grant, which ends its tunnels, if the decision counts.
    fn revoke(&self, grant: &ActiveGrant) {
        let counts = grant.subject.right == Right::Serve || self.decider.config.load().options.mode == Mode::Enforce;
        if counts && !grant.is_revoked() {
            tracing::debug!(user = %brief(&grant.subject.user.name), target = %grant.target.id(), "a right ends");
            grant.revocation.set(CloseReason::AccessRevoked).ok();
        }
    }
}

impl ActiveGrant {
    /// Has it rechecked as soon as reviews are answered again: a stale approval has opened a tunnel.
    pub(super) fn note_stale_approval(&self) {
        self.has_stale_approval.store(true, Ordering::Release);
        self.recheck_wanted.notify_one();
    }

    fn is_revoked(&self) -> bool {
        self.revocation.get().is_some()
    }
}

impl Drop for ActiveGrant {
    fn drop(&mut self) {
        let mut grants = self.grants.grants.lock();
        let key = key(&self.subject, &self.target);
        // The key may belong to a newer grant by now.
        if grants.get(&key).is_some_and(|known| known.strong_count() == 0) {
            grants.remove(&key);
        }
        self.recheck_wanted.notify_one();
    }
}

fn key(subject: &Subject, target: &Arc<Target>) -> Key {
    (subject.digest, Arc::as_ptr(target).addr())
}

/// The task that rechecks one active grant.
struct Recheck {
    grants: Arc<ActiveGrants>,
    grant: Weak<ActiveGrant>,
    recheck_wanted: Arc<Notify>,
    namespace: Box<str>,
    /// See [`RecheckSchedule::draw_phase`].
    phase: f64,
}

/// The state that one recheck leaves for the next.
struct RecheckState {
    answer: RecheckAnswer,
    /// When the last recheck began.
    asked: Instant,
    /// When the next periodic one is due.
    due: Instant,
    /// Consecutive incomplete answers.
    incomplete: u32,
    /// When a stale approval was found to have opened a tunnel; `None` once the grant was kept since then.
    stale_since: Option<Instant>,
    recovered: watch::Receiver<u64>,
}

/// The answer of a recheck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecheckAnswer {
    Kept,
    Denied,
    Unknown,
}

impl Recheck {
    fn new(grant: &Arc<ActiveGrant>) -> Self {
        let grants = Arc::clone(&grant.grants);
        Self {
            phase: grants.schedule.draw_phase(&grant.subject.digest),
            grants,
            grant: Arc::downgrade(grant),
            recheck_wanted: Arc::clone(&grant.recheck_wanted),
            namespace: grant.target.id().namespace.clone(),
        }
    }

    /// Runs the task, and again after a panic: otherwise the grant would never be revoked.
    fn spawn(self) {
        tokio::spawn(async move {
            while AssertUnwindSafe(self.run()).catch_unwind().await.is_err() {
                // The panic may have consumed the notification of a change.
                self.recheck_wanted.notify_one();
                sleep(BETWEEN_PROBES).await;
            }
        });
    }

    async fn run(&self) {
        let mut state = RecheckState {
            answer: RecheckAnswer::Kept,
            asked: Instant::now(),
            due: self.next_due(),
            incomplete: 0,
            stale_since: None,
            recovered: self.grants.decider.reviews.recovered(),
        };
        loop {
            let (class, probe) = self.until_wanted(&mut state).await;
            let is_stale = |grant: Arc<ActiveGrant>| grant.has_stale_approval.swap(false, Ordering::AcqRel);
            match self.grant.upgrade().map(is_stale) {
                Some(false) => {}
                Some(true) => {
                    (state.answer, state.stale_since) = (RecheckAnswer::Unknown, Some(Instant::now()));
                    continue;
                }
                None => return,
            }
            state.recovered.mark_unchanged();
            let is_alive = || self.grant.strong_count() > 0;
            let schedule = &self.grants.schedule;
            let turn = schedule.wait_for_turn(&self.namespace, class, is_alive).await;
            self.forget_changes();
            let Some(answer) = boxed(self.recheck(&mut state)).await else {
                return;
            };
            state.note(answer, self.grants.decider.reviews.is_silent());
            drop((turn, probe));
        }
    }

    /// Waits until a recheck is wanted. Returns its class, and the guard of the probe, if it is one.
    async fn until_wanted(&self, state: &mut RecheckState) -> (RecheckClass, Option<OwnedMutexGuard<()>>) {
        match state.answer {
            RecheckAnswer::Kept => (self.until_due(state).await, None),
            RecheckAnswer::Denied => {
                sleep(BETWEEN_DENIALS).await;
                (RecheckClass::Denied, None)
            }
            RecheckAnswer::Unknown => (RecheckClass::Counted, self.until_retry(state).await),
        }
    }

    /// Waits until the recheck is due, or something has changed since the last one. Returns its class.
    async fn until_due(&self, state: &RecheckState) -> RecheckClass {
        let reviews = &self.grants.decider.reviews;
        let settles = reviews.wait_until_settled(&self.namespace, state.asked);
        let pause = settles.unwrap_or_else(|| state.due.saturating_duration_since(Instant::now()));
        let is_changed = timeout(pause, self.recheck_wanted.notified()).await.is_ok();
        if is_changed && self.grant.strong_count() > 0 {
            sleep(TOGETHER).await;
        }
        match settles.is_none() && !is_changed {
            true => RecheckClass::Periodic,
            false => RecheckClass::Counted,
        }
    }

    /// Waits until a recheck without an answer may be tried again. Returns the guard of the probe, if it is one.
    async fn until_retry(&self, state: &mut RecheckState) -> Option<OwnedMutexGuard<()>> {
        sleep(RETRIES.first).await;
        let pause = RETRIES.after(state.incomplete.saturating_sub(MAX_INCOMPLETE)) - RETRIES.first;
        if timeout(pause, self.recheck_wanted.notified()).await.is_ok() {
            state.incomplete = 0;
            return None;
        }
        tokio::select! {
            () = self.recheck_wanted.notified() => None,
            _ = state.recovered.changed() => None,
            probe = self.grants.schedule.wait_for_probe() => {
                let is_silent = self.grants.decider.reviews.is_silent();
                sleep(if is_silent { BETWEEN_PROBES } else { RETRIES.first }).await;
                Some(probe)
            }
        }
    }

    /// Forgets the changes until now, which will be in the answer. A stale approval since then needs a recheck of its own.
    fn forget_changes(&self) {
        self.recheck_wanted.notified().now_or_never();
        let active = self.grant.upgrade();
        if active.is_some_and(|active| active.has_stale_approval.load(Ordering::Acquire)) {
            self.recheck_wanted.notify_one();
        }
    }

    /// Rechecks the grant; `None` if it has ended. After a stale approval, its credential needs an answer as well.
    async fn recheck(&self, state: &mut RecheckState) -> Option<RecheckAnswer> {
        (state.asked, state.due) = (Instant::now(), self.next_due());
        let mode = match state.answer {
            RecheckAnswer::Denied => ReviewMode::Uncached,
            // An older answer would be more than the interval old at the next recheck.
            RecheckAnswer::Kept | RecheckAnswer::Unknown => {
                ReviewMode::Recheck(state.stale_since.max(state.due.checked_sub(self.interval())))
            }
        };
        // The grant is dropped before the review, which must not keep it alive.
        let active = self.grant.upgrade().filter(|grant| !grant.is_revoked())?;
        let (subject, target) = (Arc::clone(&active.subject), Arc::clone(&active.target));
        drop(active);
        let is_open = self.grants.decider.config.load().options.mode == Mode::Open;
        if is_open && subject.right == Right::Connect {
            return Some(RecheckAnswer::Kept);
        }
        let judged = self.grants.decider.check(&subject, &target, mode).await;
        let (result, last) = match judged {
            Ok((_, is_stale)) if !is_stale || state.stale_since.is_none() => ("kept", Some(RecheckAnswer::Kept)),
            Ok(_) | Err(NotAllowed::Unknown) => ("unknown", Some(RecheckAnswer::Unknown)),
            Err(NotAllowed::Denied(_)) if mode != ReviewMode::Uncached => ("denied", Some(RecheckAnswer::Denied)),
            Err(NotAllowed::Denied(_) | NotAllowed::DeniedLocally(_)) => ("ended", None),
        };
        self.grants.decider.metrics.rechecks.count([result]);
        if last.is_none() {
            let active = self.grant.upgrade()?;
            self.grants.revoke(&active);
            // Without the mode `enforce`, only grants of anchors are revoked.
            return (!active.is_revoked()).then_some(RecheckAnswer::Kept);
        }
        last
    }

    fn interval(&self) -> Duration {
        self.grants.decider.config.load().recheck()
    }

    fn next_due(&self) -> Instant {
        self.grants.schedule.next_due(self.phase, self.interval())
    }
}

impl RecheckState {
    fn note(&mut self, answer: RecheckAnswer, is_silent: bool) {
        let is_incomplete = answer == RecheckAnswer::Unknown && !is_silent;
        self.incomplete = if is_incomplete {
            self.incomplete.saturating_add(1)
        } else {
            0
        };
        self.stale_since = self.stale_since.filter(|_| answer != RecheckAnswer::Kept);
        self.answer = answer;
    }
}

/// The delay before a grant that was denied is reviewed again: a second denial revokes it.
const BETWEEN_DENIALS: Duration = Duration::from_millis(200);
/// The delay between two rechecks while reviews have no answer: one grant at a time. One review a second is no load.
const BETWEEN_PROBES: Duration = Duration::from_secs(1);
/// The delays between two rechecks of a grant while answers are incomplete. Those of an API server that has just started are
/// soon complete; one that answers for others, and not for this grant, may do so for long.
const RETRIES: Backoff = Backoff {
    first: Duration::from_millis(125),
    max: Duration::from_secs(32),
};
/// The consecutive incomplete answers before the delay doubles.
const MAX_INCOMPLETE: u32 = 8;
/// Changes within this time after the first cause one recheck.
const TOGETHER: Duration = Duration::from_millis(50);
