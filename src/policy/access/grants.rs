//! Active grants: the authorization of a user for a target, while tunnels use it or one is being opened.
//!
//! Each grant has a task. The task rechecks it once in the interval, and at once when a change may have revoked it. A
//! missing answer revokes nothing.

mod turns;

use std::collections::HashMap;
use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, SetOnce, watch};
use tokio::time::{Instant, sleep, timeout};

use self::turns::{RecheckClass, Turns};
use super::credentials::digest::Digest;
use super::credentials::{Subject, brief};
use super::decision::{AccessDecider, NotAllowed};
use super::options::{Mode, OnExpiry};
use super::reviewer::Right;
use super::reviews::ReviewMode;
use crate::base::boxed::boxed;
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
    look: Arc<Notify>,
    /// True if an earlier approval has opened a tunnel, until its task has seen that.
    is_doubtful: AtomicBool,
    revocation: SetOnce<CloseReason>,
    registry: Arc<ActiveGrants>,
}

/// The active grants of a process.
#[derive(Debug)]
pub(super) struct ActiveGrants {
    pub(super) judge: Arc<AccessDecider>,
    grants: Mutex<HashMap<Key, Weak<ActiveGrant>>>,
    turns: Turns,
    /// Held by the one recheck that finds out whether reviews are answered again.
    scout: Semaphore,
    /// True if tunnels end when their credential expires.
    closes_on_expiry: AtomicBool,
    begun: Instant,
    /// The number of grants so far.
    made: AtomicU32,
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
            if !self.active.registry.closes_on_expiry.load(Ordering::Acquire) {
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
    pub(super) fn new(judge: Arc<AccessDecider>) -> Arc<Self> {
        for result in ["kept", "denied", "ended", "unknown"] {
            judge.metrics.access_rechecks.zero([result]);
        }
        Arc::new(Self {
            judge,
            grants: Mutex::default(),
            turns: Turns::new(),
            scout: Semaphore::new(1),
            closes_on_expiry: AtomicBool::default(),
            begun: Instant::now(),
            made: AtomicU32::new(0),
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
            look: Arc::default(),
            is_doubtful: AtomicBool::default(),
            revocation: SetOnce::new(),
            registry: Arc::clone(self),
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
            match self.judge.decide_locally(&grant.subject, &grant.target) {
                Err(NotAllowed::DeniedLocally(_)) => self.revoke(grant),
                Ok(()) | Err(NotAllowed::Denied(_) | NotAllowed::Unknown) => grant.look.notify_one(),
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
        let counts = grant.subject.right == Right::Serve || self.judge.config.load().options.mode == Mode::Enforce;
        if counts && !grant.is_revoked() {
            tracing::debug!(user = %brief(&grant.subject.user.name), target = %grant.target.id(), "a right ends");
            grant.revocation.set(CloseReason::AccessRevoked).ok();
        }
    }
}

impl ActiveGrant {
    /// Has it rechecked as soon as reviews are answered again: an earlier approval has opened a tunnel.
    pub(super) fn doubt(&self) {
        self.is_doubtful.store(true, Ordering::Release);
        self.look.notify_one();
    }

    fn is_revoked(&self) -> bool {
        self.revocation.get().is_some()
    }
}

impl Drop for ActiveGrant {
    fn drop(&mut self) {
        let mut grants = self.registry.grants.lock();
        let key = key(&self.subject, &self.target);
        // The key may belong to a newer grant by now.
        if grants.get(&key).is_some_and(|known| known.strong_count() == 0) {
            grants.remove(&key);
        }
        self.look.notify_one();
    }
}

fn key(subject: &Subject, target: &Arc<Target>) -> Key {
    (subject.digest, Arc::as_ptr(target).addr())
}

/// The task that rechecks one active grant.
struct Recheck {
    registry: Arc<ActiveGrants>,
    grant: Weak<ActiveGrant>,
    look: Arc<Notify>,
    namespace: Box<str>,
    /// The fraction of the period after which the recheck is due. The fractions of a subject's grants differ by at most
    /// [`SPREAD`].
    phase: f64,
}

/// The answer of the last recheck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecheckState {
    Kept,
    Denied,
    Unknown,
}

impl Recheck {
    fn new(grant: &Arc<ActiveGrant>) -> Self {
        let registry = Arc::clone(&grant.registry);
        // Multiples of the golden ratio are spread evenly, however many there are.
        let order = (f64::from(registry.made.fetch_add(1, Ordering::Relaxed)) * 0.618_034).fract();
        Self {
            phase: grant.subject.digest.fraction() + SPREAD * order,
            registry,
            grant: Arc::downgrade(grant),
            look: Arc::clone(&grant.look),
            namespace: grant.target.id().namespace.clone(),
        }
    }

    /// Runs the task, and again after a panic: otherwise the grant would never be revoked.
    fn spawn(self) {
        tokio::spawn(async move {
            while AssertUnwindSafe(self.run()).catch_unwind().await.is_err() {
                // The panic may have consumed the notification of a change.
                self.look.notify_one();
                sleep(BETWEEN_SCOUTS).await;
            }
        });
    }

    async fn run(&self) {
        let questions = &self.registry.judge.reviews;
        let (mut last, mut recovered) = (RecheckState::Kept, questions.recovered());
        // Consecutive incomplete answers.
        let (mut asked, mut incomplete) = (Instant::now(), 0_u32);
        let (mut due, mut doubted) = (self.next_due(), None);
        loop {
            let (mut scout, mut pace) = (None, RecheckClass::Counted);
            match last {
                RecheckState::Kept => pace = self.until_due(asked, due).await,
                RecheckState::Denied => {
                    pace = RecheckClass::Denied;
                    sleep(BETWEEN_DENIALS).await;
                }
                RecheckState::Unknown => scout = self.until_retry(&mut incomplete, &mut recovered).await,
            }
            let is_alive = || self.grant.strong_count() > 0;
            if !is_alive() {
                return;
            }
            let active = self.grant.upgrade();
            if active.is_some_and(|active| active.is_doubtful.swap(false, Ordering::AcqRel)) {
                (last, doubted) = (RecheckState::Unknown, Some(Instant::now()));
                continue;
            }
            recovered.mark_unchanged();
            let _turn = self.registry.turns.wait(&self.namespace, pace, is_alive).await;
            // Changes until now are in the answer.
            self.look.notified().now_or_never();
            // A doubt since then needs a recheck of its own.
            if self
                .grant
                .upgrade()
                .is_some_and(|active| active.is_doubtful.load(Ordering::Acquire))
            {
                self.look.notify_one();
            }
            asked = Instant::now();
            due = self.next_due();
            let how = match last {
                RecheckState::Denied => ReviewMode::Uncached,
                // An older answer would be more than the interval old at the next recheck.
                RecheckState::Kept | RecheckState::Unknown => {
                    ReviewMode::Recheck(doubted.max(due.checked_sub(self.interval())))
                }
            };
            match boxed(self.recheck_once(how, doubted.is_some())).await {
                Some(answer) => last = answer,
                None => return,
            }
            let is_incomplete = last == RecheckState::Unknown && !questions.is_silent();
            incomplete = if is_incomplete { incomplete.saturating_add(1) } else { 0 };
            doubted = doubted.filter(|_| last != RecheckState::Kept);
            drop(scout);
        }
    }

    /// Waits until a recheck without an answer may be tried again. Returns the permit of the scout, if it is one.
    async fn until_retry(
        &self,
        incomplete: &mut u32,
        recovered: &mut watch::Receiver<u64>,
    ) -> Option<SemaphorePermit<'_>> {
        sleep(SOON).await;
        let backoff = SOON * (2_u32.pow(incomplete.saturating_sub(MAX_INCOMPLETE).min(MAX_DOUBLINGS)) - 1);
        if timeout(backoff, self.look.notified()).await.is_ok() {
            *incomplete = 0;
            return None;
        }
        tokio::select! {
            () = self.look.notified() => None,
            _ = recovered.changed() => None,
            permit = self.registry.scout.acquire() => {
                let is_silent = self.registry.judge.reviews.is_silent();
                sleep(if is_silent { BETWEEN_SCOUTS } else { SOON }).await;
                permit.ok()
            }
        }
    }

    /// Waits until the recheck is due, or something has changed since the last one. Returns its class.
    async fn until_due(&self, asked: Instant, due: Instant) -> RecheckClass {
        let settles = self.registry.judge.reviews.wait_until_settled(&self.namespace, asked);
        let pause = settles.unwrap_or_else(|| due.saturating_duration_since(Instant::now()));
        let is_changed = timeout(pause, self.look.notified()).await.is_ok();
        if is_changed && self.grant.strong_count() > 0 {
            sleep(TOGETHER).await;
        }
        match settles.is_none() && !is_changed {
            true => RecheckClass::Periodic,
            false => RecheckClass::Counted,
        }
    }

    /// Rechecks the grant; `None` if it has ended. If it `is_doubtful`, its credential needs an answer as well.
    async fn recheck_once(&self, how: ReviewMode, is_doubtful: bool) -> Option<RecheckState> {
        // The grant is dropped before the review, which must not keep it alive.
        let active = self.grant.upgrade().filter(|grant| !grant.is_revoked())?;
        let (subject, target) = (Arc::clone(&active.subject), Arc::clone(&active.target));
        drop(active);
        let is_open = self.registry.judge.config.load().options.mode == Mode::Open;
        if is_open && subject.right == Right::Connect {
            return Some(RecheckState::Kept);
        }
        let judged = self.registry.judge.check(&subject, &target, how).await;
        let (result, last) = match judged {
            Ok((_, is_stale)) if !(is_stale && is_doubtful) => ("kept", Some(RecheckState::Kept)),
            Ok(_) | Err(NotAllowed::Unknown) => ("unknown", Some(RecheckState::Unknown)),
            Err(NotAllowed::Denied(_)) if how != ReviewMode::Uncached => ("denied", Some(RecheckState::Denied)),
            Err(NotAllowed::Denied(_) | NotAllowed::DeniedLocally(_)) => ("ended", None),
        };
        self.registry.judge.metrics.access_rechecks.count([result]);
        if last.is_none() {
            let active = self.grant.upgrade()?;
            self.registry.revoke(&active);
            // Without the mode `enforce`, only grants of anchors are revoked.
            return (!active.is_revoked()).then_some(RecheckState::Kept);
        }
        last
    }

    fn interval(&self) -> Duration {
        self.registry.judge.config.load().recheck()
    }

    /// Returns when the next periodic recheck is due.
    fn next_due(&self) -> Instant {
        // Shorter than the interval: an answer for all grants of a subject counts until the next recheck of each grant.
        let period = self.interval().mul_f64(1.0 - SPREAD);
        let periods = self.registry.begun.elapsed().as_secs_f64() / period.as_secs_f64();
        // Not 0: after rounding, a time that has just passed may be due again.
        Instant::now() + period.mul_f64((1.0 - (periods - self.phase).rem_euclid(1.0)).max(0.01))
    }
}

/// The part of the interval over which the grants of one credential are spread: the review of the first counts for all.
const SPREAD: f64 = 0.01;
/// The delay before a grant that was denied is reviewed again: a second denial revokes it.
const BETWEEN_DENIALS: Duration = Duration::from_millis(200);
/// The delay between two rechecks while reviews have no answer: one grant at a time. One review a second is no load.
const BETWEEN_SCOUTS: Duration = Duration::from_secs(1);
/// The same while answers are incomplete: those of an API server that has just started are soon complete.
const SOON: Duration = Duration::from_millis(125);
/// After this many consecutive incomplete answers, the delay doubles up to 32 s: an API server that answers for others,
/// and not for this grant, may do so for long.
const MAX_INCOMPLETE: u32 = 8;
const MAX_DOUBLINGS: u32 = 8;
/// Changes within this time after the first cause one recheck.
const TOGETHER: Duration = Duration::from_millis(50);
