//! Asks which user a credential proves, and what a user may do: from memory, else once for all that ask, within the
//! bounds of the queues.

pub(super) mod cache;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use self::cache::{CachedAnswer, ReviewCache, ReviewResult};
use super::credentials::credential::Credential;
use super::credentials::digest::{Digest, Key};
use super::credentials::guess_limiter::GuessLimiter;
use super::queue::{Permit, QueueLimits, ReviewQueue};
use super::reviewer::{Action, Change, Decision, GUESS_RATE, Review, ReviewError, Verdict, busy};
use super::sources::{AccessConfig, NO_SOURCE, Source};
use super::tickets::watches::Watches;
use super::user::User;
use crate::base::boxed::boxed;
use crate::tunnel::limits::owners::network;
use crate::tunnel::metrics::Metrics;

/// The questions of a process.
#[derive(Debug)]
pub(super) struct Reviews {
    pub(super) key: Key,
    verdicts: Arc<ReviewCache<Verdict>>,
    decisions: Arc<ReviewCache<Decision>>,
    changes: Mutex<Changes>,
    /// Of tokens that the API server reviews. Any client can send some on which it takes seconds.
    tokens: Arc<ReviewQueue>,
    /// Of rights: a known user waits behind no token.
    rights: Arc<ReviewQueue>,
    /// Of passwords, whose checks take as long: they keep no question from the API server.
    pub(super) passwords: Arc<ReviewQueue>,
    /// At passwords, by network and by name.
    password_guesses: Mutex<GuessLimiter>,
    /// At tickets, by network. They cost no hash: however many there are, no wrong password is forgotten for them.
    ticket_guesses: Mutex<GuessLimiter>,
    /// True if the last review of a token had no answer.
    tokens_fail: AtomicBool,
    /// True if the last review of a right had no answer, or no complete one.
    rights_fail: AtomicBool,
    /// True if the last review of a right had no answer at all.
    is_silent: AtomicBool,
    /// Counts how often rights were decided again after they had not been.
    recovered: watch::Sender<u64>,
    /// The watches that take access back.
    pub(super) watches: Arc<Watches>,
    metrics: Metrics,
}

/// The rules by which something is asked, the client on whose behalf, and how.
#[derive(Clone, Debug)]
pub(super) struct ReviewContext {
    pub(super) config: Arc<AccessConfig>,
    pub(super) client: IpAddr,
    pub(super) mode: ReviewMode,
}

/// How something is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReviewMode {
    /// For a request: after others in a queue. What was allowed before stays allowed while there is no answer.
    Login,
    /// For tunnels that run: without a queue, and what has no answer stays unknown. No answer counts that was asked for
    /// before that time.
    Recheck(Option<Instant>),
    /// The same after a denial: no decision of before counts.
    Uncached,
}

impl ReviewMode {
    fn since(self) -> Option<Instant> {
        match self {
            Self::Recheck(since) => since,
            Self::Login | Self::Uncached => None,
        }
    }
}

/// The times of what may have changed answers.
#[derive(Debug, Default)]
struct Changes {
    /// When every verdict was forgotten. No answer that was asked for before is remembered.
    forgotten: Option<Instant>,
    everywhere: Option<Instant>,
    namespaces: HashMap<Box<str>, Instant>,
    /// The ids of users that were deleted.
    deleted_users: VecDeque<(Box<str>, Instant)>,
}

impl Reviews {
    /// Creates the state without any question.
    pub(super) fn new(metrics: &Metrics) -> Arc<Self> {
        for kind in [TOKEN, ACCESS] {
            for result in ["answered", "unavailable"] {
                metrics.access_reviews.zero([kind, result]);
            }
        }
        for answer in ["verdict", "decision", "stale"] {
            metrics.access_cache_hits.zero([answer]);
        }
        Arc::new(Self {
            key: Key::new(),
            verdicts: ReviewCache::new(MAX_PROVED, MAX_REFUSED),
            decisions: ReviewCache::new(MAX_ALLOWED, MAX_DENIED),
            changes: Mutex::default(),
            tokens: ReviewQueue::new(QueueLimits::COSTLY),
            rights: ReviewQueue::new(QueueLimits::COSTLY),
            passwords: ReviewQueue::new(QueueLimits::PASSWORDS),
            password_guesses: Mutex::default(),
            ticket_guesses: Mutex::default(),
            tokens_fail: AtomicBool::default(),
            rights_fail: AtomicBool::default(),
            is_silent: AtomicBool::default(),
            recovered: watch::Sender::default(),
            watches: Arc::default(),
            metrics: metrics.clone(),
        })
    }

    /// Notes that answers may be others by now. A yes stays for the case that there is no newer answer.
    pub(super) fn changed(&self, change: &Change) {
        let now = Instant::now();
        let mut changes = self.changes.lock();
        changes.namespaces.retain(|_, at| at.elapsed() < 2 * FRESH);
        match change {
            Change::Namespace(name) if changes.namespaces.len() < MAX_NAMESPACES => {
                changes.namespaces.insert(name.clone(), now);
            }
            Change::Namespace(_) | Change::Everywhere => changes.everywhere = Some(now),
            Change::UserDeleted(id) => {
                changes.deleted_users.truncate(MAX_GONE - 1);
                changes.deleted_users.push_front((id.clone(), now));
                self.verdicts
                    .remove_where(|verdict| matches!(verdict, Verdict::Authenticated(user) if user.has_id(id)));
            }
        }
    }

    /// Forgets every verdict: what proves users has changed.
    pub(super) fn forget_verdicts(&self) {
        self.changes.lock().forgotten = Some(Instant::now());
        self.verdicts.clear();
    }

    /// Forgets everything: the rules have changed.
    pub(super) fn clear(&self) {
        self.forget_verdicts();
        self.decisions.clear();
    }

    /// Returns the time until every API server knows of the last change in that namespace; `None` if an answer that was
    /// `asked` for then has it.
    pub(super) fn wait_until_settled(&self, namespace: &str, asked: Instant) -> Option<Duration> {
        let settled = self.changes.lock().last(namespace)? + SETTLING_TIME;
        (settled > asked).then(|| settled.saturating_duration_since(Instant::now()))
    }

    /// Returns whether the last review of a right had no answer at all.
    pub(super) fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Relaxed)
    }

    /// Counts how often rights were decided again after they had not been.
    pub(super) fn recovered(&self) -> watch::Receiver<u64> {
        self.recovered.subscribe()
    }

    /// Returns the numbers of answers that are remembered, by the label `cache`.
    pub(super) fn sizes(&self) -> [(&'static str, usize); 4] {
        let ([proved, refused], [allowed, denied]) = (self.verdicts.len(), self.decisions.len());
        [
            ("proved", proved),
            ("refused", refused),
            ("allowed", allowed),
            ("denied", denied),
        ]
    }

    /// Returns whether a password of this client is looked at, right or wrong.
    ///
    /// Guesses at a user from elsewhere do not lock that user out of a network that has sent no wrong password lately.
    pub(super) fn allows_guess(&self, credential: &Credential, client: IpAddr) -> bool {
        match credential {
            Credential::Bearer(_) => true,
            Credential::Basic { user, .. } => allows_password(&self.password_guesses.lock(), user, network(client)),
        }
    }

    /// Asks for the user of the credential.
    pub(super) async fn authenticate(
        self: &Arc<Self>,
        review: &ReviewContext,
        credential: &Credential,
    ) -> ReviewResult<Verdict> {
        let ReviewContext {
            config: rules,
            client,
            mode: how,
        } = review;
        let source = rules.source(credential);
        match &source {
            Source::Nobody(phrase) => return Ok(Verdict::Rejected(phrase.clone())),
            Source::Tickets(tickets, key) => {
                // Locked until it is counted: of two requests at a time only one is the last guess.
                let (mut guesses, network) = (self.ticket_guesses.lock(), network(*client));
                if !guesses.allows(network) {
                    return Err(too_many_guesses());
                }
                // Not remembered: one that is taken back is refused at once.
                let count = || guesses.record_wrong(network, *key);
                return tickets.authenticate(*key, self.watches.are_late(), count);
            }
            Source::Users(..) | Source::Issuer(..) | Source::ApiServer(..) => {}
        }
        let digest = self.key.credential(credential, *client);
        if *how != ReviewMode::Login {
            let max_ages = [rules.recheck() / 2, Duration::ZERO];
            return match self.verdicts.fresh(&digest, max_ages, how.since()) {
                Some(verdict) => Ok(verdict),
                None => boxed(self.review_credential(source, *client, digest)).await,
            };
        }
        // A right password waits for its permit as a wrong one does, and no earlier yes counts without one: where none is
        // checked they would be told apart, and the wrong ones not counted.
        let is_token = matches!(credential, Credential::Bearer(_));
        if let Some(verdict) = is_token.then(|| self.remembered(&digest)).flatten() {
            return Ok(verdict);
        }
        let forgotten = self.changes.lock().forgotten;
        let answer = self.verdicts.run(digest, forgotten, || {
            let (reviewer, review, credential) = (Arc::clone(self), review.clone(), credential.clone());
            async move { reviewer.prove_in_turn(&review, &credential, digest).await }
        });
        if !is_token {
            return answer.await;
        }
        let stale = || self.verdicts.yes(&digest, rules.stale());
        let is_failing = self.tokens_fail.load(Ordering::Relaxed);
        self.or_stale(answer, is_failing, stale, |_| true).await
    }

    /// Returns the fresh verdict on a credential, if there is one.
    fn remembered(&self, credential: &Digest) -> Option<Verdict> {
        let verdict = self.verdicts.fresh(credential, [FRESH; 2], None);
        verdict.inspect(|_| self.metrics.access_cache_hits.count(["verdict"]))
    }

    async fn prove_in_turn(
        &self,
        review: &ReviewContext,
        credential: &Credential,
        digest: Digest,
    ) -> ReviewResult<Verdict> {
        let ReviewContext {
            config: rules, client, ..
        } = review;
        let source = rules.source(credential);
        let _permit = self.permit(&source, *client).await?;
        // Guesses that waited beside it may have been wrong.
        if !self.allows_guess(credential, *client) {
            return Err(too_many_guesses());
        }
        if let Some(verdict) = self.remembered(&digest) {
            return Ok(verdict);
        }
        let verdict = self.review_credential(source, *client, digest).await?;
        if let Credential::Basic { user, .. } = credential {
            let (mut guesses, network) = (self.password_guesses.lock(), network(*client));
            // The one that was hashed beside it may have been the last guess.
            let is_allowed = allows_password(&guesses, user, network);
            // A password that was sent for that name before is no guess.
            if matches!(verdict, Verdict::Rejected(_)) && guesses.record_wrong(&**user, digest) {
                guesses.record_wrong(network, digest);
            }
            if !is_allowed {
                return Err(too_many_guesses());
            }
        }
        Ok(verdict)
    }

    /// Takes the permit to judge a credential. A token of an OIDC issuer needs none: its signature costs less than the TLS
    /// handshake before it, and a wait for the issuer's keys is bounded there.
    async fn permit(&self, source: &Source<'_>, client: IpAddr) -> ReviewResult<Option<Permit>> {
        let queue = match source {
            Source::Users(..) => &self.passwords,
            Source::ApiServer(..) => &self.tokens,
            Source::Issuer(..) | Source::Tickets(..) | Source::Nobody(_) => return Ok(None),
        };
        queue.enter(client).await.map(Some).ok_or_else(busy)
    }

    /// Asks the source for the user of the credential, on behalf of a client, and remembers the answer.
    async fn review_credential(&self, source: Source<'_>, client: IpAddr, digest: Digest) -> ReviewResult<Verdict> {
        let asked = Instant::now();
        let verdict = match source {
            Source::Users(users, user, password) => users.verify(user, password).await?,
            Source::Issuer(verifier, jwt) => verifier.verify(&jwt, SystemTime::now(), client).await?,
            Source::ApiServer(reviewer, token) => {
                let answer = self.count_review(TOKEN, reviewer.review_token(token)).await;
                self.tokens_fail.store(answer.is_err(), Ordering::Relaxed);
                answer?
            }
            Source::Tickets(..) | Source::Nobody(_) => Verdict::Rejected(NO_SOURCE.into()),
        };
        let changes = self.changes.lock();
        let verdict = match verdict {
            Verdict::Authenticated(user) if changes.is_deleted(&user) => Verdict::Rejected(GONE.into()),
            verdict @ (Verdict::Authenticated(_) | Verdict::Rejected(_)) => verdict,
        };
        if changes.forgotten.is_none_or(|forgotten| asked >= forgotten) {
            let (is_yes, expires, size) = match &verdict {
                Verdict::Authenticated(user) => (true, user.expires.map(instant), user.size()),
                Verdict::Rejected(phrase) => (false, None, phrase.len()),
            };
            let known = CachedAnswer {
                value: verdict.clone(),
                asked,
                expires,
                size,
            };
            self.verdicts.put(digest, is_yes, known);
        }
        Ok(verdict)
    }

    /// Asks whether the user may do that.
    pub(super) async fn authorize(
        self: &Arc<Self>,
        review: &ReviewContext,
        user: &Arc<User>,
        action: &Action,
    ) -> ReviewResult<Decision> {
        let digest = self.key.right(user, action);
        let changed = self.changes.lock().last(&action.namespace);
        // Another API server, or its cache, may have learnt of the change later than the watch.
        let settled = changed.map(|changed| changed + SETTLING_TIME);
        let since = settled.max(review.mode.since());
        let remembered = self.decisions.fresh(&digest, [FRESH, FRESH_DENIAL], since);
        if let Some(decision) = remembered.filter(|_| review.mode != ReviewMode::Uncached) {
            self.metrics.access_cache_hits.count(["decision"]);
            return Ok(decision);
        }
        if review.mode != ReviewMode::Login {
            return self.review_access(&review.config, user, action).await;
        }
        let answer = self.decisions.run(digest, changed, || {
            let (reviewer, review) = (Arc::clone(self), review.clone());
            let (user, action) = (Arc::clone(user), action.clone());
            async move {
                let _permit = reviewer.rights.enter(review.client).await.ok_or_else(busy)?;
                reviewer.review_access(&review.config, &user, &action).await
            }
        });
        let stale = || self.decisions.yes(&digest, review.config.stale());
        let is_failing = self.rights_fail.load(Ordering::Relaxed);
        // Not said for sure: what was allowed before stays allowed as without an answer.
        self.or_stale(answer, is_failing, stale, Decision::is_sure).await
    }

    /// Asks the API server whether the user may do that, and remembers the answer. A no that is not complete is not
    /// remembered, and takes no yes back.
    async fn review_access(&self, rules: &AccessConfig, user: &User, action: &Action) -> ReviewResult<Decision> {
        let Some(reviewer) = &rules.sources.reviewer else {
            return Err(ReviewError::new("unconfigured", "there is no API server to ask"));
        };
        let asked = Instant::now();
        let answer = self.count_review(ACCESS, reviewer.review_access(user, action)).await;
        self.is_silent.store(answer.is_err(), Ordering::Relaxed);
        let is_sure = answer.as_ref().is_ok_and(Decision::is_sure);
        if self.rights_fail.swap(!is_sure, Ordering::Relaxed) && is_sure {
            self.recovered.send_modify(|times| *times += 1);
        }
        let decision = answer?;
        let forgotten = self.changes.lock().forgotten;
        if is_sure && forgotten.is_none_or(|forgotten| asked >= forgotten) {
            let known = CachedAnswer {
                value: decision.clone(),
                asked,
                expires: None,
                size: decision.reason.len(),
            };
            self.decisions
                .put(self.key.right(user, action), decision.allowed, known);
        }
        Ok(decision)
    }

    /// Waits for an answer; while the API server `is_failing`, for a moment if there is a yes of before. That yes counts if
    /// the answer is not sure.
    async fn or_stale<T>(
        &self,
        answer: impl Future<Output = ReviewResult<T>>,
        is_failing: bool,
        stale: impl Fn() -> Option<T>,
        is_sure: impl Fn(&T) -> bool,
    ) -> ReviewResult<T> {
        let answer = if is_failing && stale().is_some() {
            timeout(STALE_WAIT, answer).await.unwrap_or_else(|_| Err(busy()))
        } else {
            answer.await
        };
        if answer.as_ref().is_ok_and(is_sure) {
            return answer;
        }
        let Some(stale) = stale() else {
            return answer;
        };
        self.metrics.access_cache_hits.count(["stale"]);
        Ok(stale)
    }

    /// Awaits the answer to a question, and counts it.
    async fn count_review<T>(&self, kind: &'static str, question: Review<'_, T>) -> ReviewResult<T> {
        let start = Instant::now();
        let answer = question.await;
        let duration = &self.metrics.access_review_duration;
        duration.observe(start.elapsed().as_secs_f64());
        let result = match &answer {
            Ok(_) => "answered",
            Err(unavailable) => {
                tracing::debug!(
                    kind,
                    failure = unavailable.kind,
                    "no answer of the API server: {unavailable}"
                );
                "unavailable"
            }
        };
        self.metrics.access_reviews.count([kind, result]);
        answer
    }
}

impl Changes {
    /// The last change in a namespace.
    fn last(&self, namespace: &str) -> Option<Instant> {
        self.everywhere.max(self.namespaces.get(namespace).copied())
    }

    /// Returns whether the user was deleted a moment ago: the API server goes on to prove it for 10 s.
    fn is_deleted(&self, user: &User) -> bool {
        let is_recent = |at: &Instant| at.elapsed() < GONE_FOR;
        self.deleted_users
            .iter()
            .any(|(id, at)| user.has_id(id) && is_recent(at))
    }
}

/// By name whether or not a user has it: names are no oracle.
fn allows_password(guesses: &GuessLimiter, user: &str, network: IpAddr) -> bool {
    guesses.is_clear(network) || (guesses.allows(network) && guesses.allows(user))
}

fn too_many_guesses() -> ReviewError {
    ReviewError::new(GUESS_RATE, "too many wrong guesses")
}

/// Returns when that time comes, on the clock that is not set.
pub(super) fn instant(time: SystemTime) -> Instant {
    let left = time.duration_since(SystemTime::now()).unwrap_or_default();
    // A time that the clock cannot show is later than any tunnel's end.
    Instant::now()
        .checked_add(left)
        .unwrap_or_else(|| Instant::now() + CENTURY)
}

/// The values of the label `kind`.
const TOKEN: &str = "token";
const ACCESS: &str = "access";
const GONE: &str = "the user of the token was deleted";
/// The age up to which an answer counts without another question. The API server remembers its own for 10 s as well.
const FRESH: Duration = Duration::from_secs(10);
/// The same of a right that is denied: the user may just be given it.
const FRESH_DENIAL: Duration = Duration::from_secs(5);
/// The time after which a change is looked at once more, and up to which no answer is remembered as fresh.
pub(crate) const SETTLING_TIME: Duration = Duration::from_secs(2);
/// The wait for an answer of an API server that had none for the last question, where a yes of before takes its place.
const STALE_WAIT: Duration = Duration::from_secs(1);
/// Longer than the API server proves a user that was deleted.
const GONE_FOR: Duration = Duration::from_secs(60);
const MAX_GONE: usize = 1024;
/// Namespaces with changes of their own; beyond, a change is one everywhere.
const MAX_NAMESPACES: usize = 1024;
/// Bytes of each kind of answer, as they are counted here: with what the allocator adds less than 8 MiB together, as
/// `tests/access_memory.rs` measures. They hold about 1,600 users with ten groups each, 3,600 refused credentials, and
/// 3,800 and 1,500 rights; what does not fit is asked again.
const MAX_PROVED: usize = 7 << 18;
const MAX_REFUSED: usize = 1 << 20;
const MAX_ALLOWED: usize = 5 << 18;
const MAX_DENIED: usize = 1 << 19;
const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
