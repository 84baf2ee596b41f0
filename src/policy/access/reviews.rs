//! Authenticates credentials and authorizes users: from the cache, else by one review for all requests that need it, within the
//! limits of the queues.

pub(super) mod cache;
mod outage_signs;
mod rights;

use std::future::pending;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep};

use self::cache::{CENTURY, CachedAnswer, Changes, ReviewCache, ReviewResult, instant};
use self::outage_signs::OutageSigns;
use super::credentials::credential::Credential;
use super::credentials::digest::{Digest, Key};
use super::credentials::guess_limiter::GuessLimiter;
use super::queue::{Permit, QueueLimits, ReviewQueue};
use super::reviewer::{Change, Decision, NoAnswer, Review, ReviewError, Verdict, busy};
use super::sources::{AccessConfig, NO_SOURCE, Source};
use super::tickets::Watches;
use crate::base::boxed::boxed;
use crate::policy::access::metrics::AccessMetrics;
use crate::tunnel::limits::owners::network;

/// The reviews of a process.
#[derive(Debug)]
pub(super) struct Reviews {
    pub(super) key: Key,
    verdicts: Arc<ReviewCache<Verdict>>,
    decisions: Arc<ReviewCache<Decision>>,
    /// The approvals for listings, apart so that they evict none of a login, which counts in an outage.
    listed: Arc<ReviewCache<Decision>>,
    changes: Mutex<Changes>,
    /// The queue of tokens. Any client can send tokens that take the API server seconds.
    tokens: Arc<ReviewQueue>,
    /// The queue of rights, apart so that no known user waits for tokens.
    rights: Arc<ReviewQueue>,
    /// The queue of passwords, apart because hashing one takes long and must not delay reviews by the API server.
    pub(super) passwords: Arc<ReviewQueue>,
    /// The permits of reviews for all listings: fewer than those of rights that a network has, so that no login waits for them.
    listing_reviews: Arc<Semaphore>,
    /// The permits of listings, which take memory for each target.
    pub(super) listings: Arc<Semaphore>,
    /// Wrong passwords, by network and by name.
    password_guesses: Mutex<GuessLimiter>,
    /// Wrong tickets, by network: kept apart because a flood of these cheap guesses must not evict wrong passwords.
    ticket_guesses: Mutex<GuessLimiter>,
    /// The signs of an API server that answers nothing.
    signs: Mutex<OutageSigns>,
    /// True if the last review of a right had no answer, or not a final one.
    rights_fail: AtomicBool,
    /// True if the API server gave no answer to the last recheck of a token.
    tokens_fail: AtomicBool,
    /// True if the last review of a right, or the last recheck of a token, had no answer at all.
    is_silent: AtomicBool,
    /// The number of recoveries: final answers about rights or rechecked tokens, each after a review without one.
    recovered: watch::Sender<u64>,
    /// The watches that revoke access.
    pub(super) watches: Arc<Watches>,
    metrics: AccessMetrics,
}

/// The configuration of a review, the client it is for, and its mode.
#[derive(Clone, Debug)]
pub(super) struct ReviewContext {
    pub(super) config: Arc<AccessConfig>,
    pub(super) client: IpAddr,
    pub(super) mode: ReviewMode,
    /// Set once an earlier approval has counted, for want of an answer.
    pub(super) is_stale: Arc<AtomicBool>,
}

/// The mode of a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReviewMode {
    /// For a request: queued. Tokens and rights that were approved before stay so while there is no answer.
    Login,
    /// For one of the many rights of a listing: as for a request, but with few permits, and without a wait in an outage.
    Listing,
    /// For running tunnels: not queued, and what has no answer stays unknown. Answers from before that time do not
    /// count.
    Recheck(Option<Instant>),
    /// The second recheck, after a denial: no cached decision counts.
    Uncached,
}

impl ReviewMode {
    fn since(self) -> Option<Instant> {
        match self {
            Self::Recheck(since) => since,
            Self::Login | Self::Listing | Self::Uncached => None,
        }
    }
}

impl Reviews {
    /// Creates the state without any answer.
    pub(super) fn new(metrics: &AccessMetrics) -> Arc<Self> {
        for kind in [TOKEN, ACCESS] {
            for result in ["answered", "unavailable"] {
                metrics.reviews.zero([kind, result]);
            }
        }
        for answer in ["verdict", "decision", "stale"] {
            metrics.cache_hits.zero([answer]);
        }
        Arc::new(Self {
            key: Key::new(),
            verdicts: ReviewCache::new(MAX_PROVED, MAX_REFUSED),
            decisions: ReviewCache::new(MAX_ALLOWED, MAX_DENIED),
            listed: ReviewCache::new(MAX_LISTED, 0),
            changes: Mutex::default(),
            tokens: ReviewQueue::new(QueueLimits::COSTLY),
            rights: ReviewQueue::new(QueueLimits::COSTLY),
            passwords: ReviewQueue::new(QueueLimits::PASSWORDS),
            listing_reviews: Arc::new(Semaphore::new(MAX_LISTING_REVIEWS)),
            listings: Arc::new(Semaphore::new(MAX_LISTINGS)),
            password_guesses: Mutex::default(),
            ticket_guesses: Mutex::default(),
            signs: Mutex::default(),
            rights_fail: AtomicBool::default(),
            tokens_fail: AtomicBool::default(),
            is_silent: AtomicBool::default(),
            recovered: watch::Sender::default(),
            watches: Arc::default(),
            metrics: metrics.clone(),
        })
    }

    /// Notes that answers may have changed, and forgets the approvals that it concerns: no outage brings one back.
    pub(super) fn changed(&self, change: &Change) {
        let (mut changes, decisions) = (self.changes.lock(), [&self.decisions, &self.listed]);
        match change {
            Change::Everywhere => decisions.iter().for_each(|cache| cache.remove_where(|_| true)),
            Change::Namespace(name) => decisions
                .iter()
                .for_each(|cache| cache.remove_where(|known| known.namespace == *name)),
            Change::UserDeleted(id) => self
                .verdicts
                .remove_where(|known| matches!(&known.value, Verdict::Authenticated(user) if user.has_id(id))),
        }
        changes.note(change);
    }

    /// Forgets every verdict, after a change of what proves users.
    pub(super) fn forget_verdicts(&self) {
        self.changes.lock().forgotten = Some(Instant::now());
        self.verdicts.clear();
    }

    /// Forgets everything, after a change of the configuration.
    pub(super) fn clear(&self) {
        self.forget_verdicts();
        self.decisions.clear();
        self.listed.clear();
    }

    /// Returns the time until the last change in that namespace has settled. `None` without a change, or if an answer that
    /// was `asked` for at that time reflects the change.
    pub(super) fn wait_until_settled(&self, namespace: &str, asked: Instant) -> Option<Duration> {
        let settled = self.changes.lock().settled(namespace)?;
        (settled > asked).then(|| settled.saturating_duration_since(Instant::now()))
    }

    /// Returns whether the last review of a right, or the last recheck of a token, had no answer at all.
    pub(super) fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Relaxed)
    }

    /// Returns a receiver of the number of recoveries.
    pub(super) fn recovered(&self) -> watch::Receiver<u64> {
        self.recovered.subscribe()
    }

    /// Returns the numbers of cached answers, by the label `cache`.
    pub(super) fn sizes(&self) -> [(&'static str, usize); 4] {
        let ([proved, refused], [allowed, denied]) = (self.verdicts.len(), self.decisions.len());
        let [listed, _] = self.listed.len();
        [
            ("proved", proved),
            ("refused", refused),
            ("allowed", allowed + listed),
            ("denied", denied),
        ]
    }

    /// Authenticates the user of a credential.
    pub(super) async fn authenticate(
        self: &Arc<Self>,
        review: &ReviewContext,
        credential: &Credential,
    ) -> ReviewResult<Verdict> {
        let (config, client) = (&review.config, review.client);
        let source = config.source(credential);
        match &source {
            Source::Refused(phrase) => return Ok(Verdict::Rejected(phrase.clone())),
            Source::Tickets(tickets, key) => {
                // Locked until it is counted: of two concurrent requests only one is the last guess.
                let (mut guesses, network) = (self.ticket_guesses.lock(), network(client));
                if !guesses.allows(network) {
                    return Err(too_many_guesses());
                }
                // Not cached: a revoked ticket is refused at once.
                let count = || guesses.record_wrong(network, *key);
                return tickets.authenticate(*key, self.watches.are_out_of_date(), count);
            }
            // Not cached, and nothing is counted: nobody guesses a key whose signature has to be made.
            Source::Ssh => {
                return config
                    .sources
                    .verify_ssh(credential, client, self.watches.are_out_of_date());
            }
            Source::Users(..) | Source::Issuer(..) | Source::ApiServer(..) => {}
        }
        let digest = self.key.credential(credential, client);
        let is_password = matches!(source, Source::Users(..));
        if review.mode != ReviewMode::Login {
            let (max_age, since) = match is_password {
                // Until the file changes, which forgets all verdicts: hashes take the time of logins.
                true => (CENTURY, None),
                false => (config.recheck() / 2, review.mode.since()),
            };
            return match self.verdicts.fresh(&digest, [max_age, Duration::ZERO], since) {
                Some(verdict) => Ok(verdict),
                None => boxed(self.recheck_credential(&source, client, digest)).await,
            };
        }
        self.check_guesses(&source, client)?;
        // A right password waits for its permit like a wrong one, even if it was approved before. Otherwise a full
        // queue would refuse only wrong passwords, and so tell guesses apart without counting them.
        if let Some(verdict) = (!is_password).then(|| self.remembered(&digest)).flatten() {
            return Ok(verdict);
        }
        let forgotten = self.changes.lock().forgotten;
        let answer = self.verdicts.run(digest, forgotten, || {
            let (reviewer, source) = (Arc::clone(self), source.clone());
            async move { reviewer.prove_in_turn(&source, client, digest).await }
        });
        // An issuer's token needs no earlier approval: if its key is not one of those in effect, the key was removed.
        if !matches!(source, Source::ApiServer(..)) {
            return answer.await;
        }
        let stale = || self.verdicts.yes(&digest, config.stale());
        self.or_stale(review, answer, stale, |_| true).await
    }

    /// Checks that a password of this client may be guessed.
    ///
    /// Guesses at users from elsewhere do not lock those users out of a network without recent wrong passwords.
    fn check_guesses(&self, source: &Source, client: IpAddr) -> ReviewResult<()> {
        if let Source::Users(_, user, _) = source
            && !allows_password(&self.password_guesses.lock(), user, network(client))
        {
            return Err(too_many_guesses());
        }
        Ok(())
    }

    /// Returns the fresh verdict on a credential, if there is one.
    fn remembered(&self, credential: &Digest) -> Option<Verdict> {
        let verdict = self.verdicts.fresh(credential, [FRESH; 2], None);
        verdict.inspect(|_| self.metrics.cache_hits.count(["verdict"]))
    }

    async fn prove_in_turn(&self, source: &Source, client: IpAddr, digest: Digest) -> ReviewResult<Verdict> {
        // The configuration is from before the wait.
        let begun = Instant::now();
        let _permit = self.permit(source, client).await?;
        // While this guess waited, wrong ones may have used up the limit.
        self.check_guesses(source, client)?;
        if let Some(verdict) = self.remembered(&digest) {
            return Ok(verdict);
        }
        let verdict = self.review_credential(source, client, digest, begun).await?;
        if let Source::Users(_, user, _) = source {
            let (mut guesses, network) = (self.password_guesses.lock(), network(client));
            // A guess that was hashed at the same time may have used up the limit.
            let is_allowed = allows_password(&guesses, user, network);
            // A repeated wrong password for that name is no further guess.
            if matches!(verdict, Verdict::Rejected(_)) && guesses.record_wrong(&**user, digest) {
                guesses.record_wrong(network, digest);
            }
            if !is_allowed {
                return Err(too_many_guesses());
            }
        }
        Ok(verdict)
    }

    /// Takes the permit to check a credential. A token of an OIDC issuer needs none: its signature costs less than the
    /// TLS handshake before it, and the issuer's keys limit the tokens that wait for them.
    async fn permit(&self, source: &Source, client: IpAddr) -> ReviewResult<Option<Permit>> {
        let queue = match source {
            Source::Users(..) => &self.passwords,
            Source::ApiServer(..) => &self.tokens,
            Source::Issuer(..) | Source::Tickets(..) | Source::Ssh | Source::Refused(_) => return Ok(None),
        };
        queue.enter(client).await.map(Some).ok_or_else(busy)
    }

    /// Authenticates the user of a credential again. Where each target names its users, no review of a right would notice an
    /// outage and its end.
    async fn recheck_credential(&self, source: &Source, client: IpAddr, digest: Digest) -> ReviewResult<Verdict> {
        let verdict = self.review_credential(source, client, digest, Instant::now()).await;
        let has_failed = verdict.is_err();
        if matches!(source, Source::ApiServer(..))
            && (self.tokens_fail.swap(has_failed, Ordering::Relaxed) || has_failed)
        {
            self.is_silent.store(has_failed, Ordering::Relaxed);
            self.recovered.send_if_modified(|times| {
                *times += u64::from(!has_failed);
                !has_failed
            });
        }
        verdict
    }

    /// Authenticates the user of a credential by its source, and caches the answer, unless all were forgotten since the
    /// request has `begun`.
    async fn review_credential(
        &self,
        source: &Source,
        client: IpAddr,
        digest: Digest,
        begun: Instant,
    ) -> ReviewResult<Verdict> {
        let asked = Instant::now();
        let verdict = match source {
            Source::Users(users, user, password) => users.verify(user, password).await?,
            Source::Issuer(verifier, jwt) => verifier.verify(jwt, SystemTime::now(), client).await?,
            Source::ApiServer(reviewer, token, jwt) => {
                let answer = reviewer.review_token(token, jwt.as_deref());
                self.count_review(TOKEN, answer).await?
            }
            Source::Tickets(..) | Source::Ssh | Source::Refused(_) => Verdict::Rejected(NO_SOURCE.into()),
        };
        let changes = self.changes.lock();
        let verdict = match verdict {
            Verdict::Authenticated(user) if changes.is_deleted(&user) => Verdict::Rejected(GONE.into()),
            verdict @ (Verdict::Authenticated(_) | Verdict::Rejected(_)) => verdict,
        };
        if changes.forgotten.is_none_or(|forgotten| begun >= forgotten) {
            let (is_yes, expires, size) = match &verdict {
                Verdict::Authenticated(user) => (true, user.expires.map(instant), user.size()),
                Verdict::Rejected(phrase) => (false, None, phrase.len()),
            };
            let known = CachedAnswer {
                value: verdict.clone(),
                asked,
                expires,
                namespace: Box::default(),
                size,
            };
            self.verdicts.put(digest, is_yes, known);
        }
        Ok(verdict)
    }

    /// Waits for an answer. Only the silence of the API server, or an answer of it that is not final, lets a stale
    /// approval count: no queue and no wait of this side does. While the API server is away, the wait is 1 s.
    async fn or_stale<T>(
        &self,
        review: &ReviewContext,
        answer: impl Future<Output = ReviewResult<T>>,
        stale: impl Fn() -> Option<T>,
        is_sure: impl Fn(&T) -> bool,
    ) -> ReviewResult<T> {
        let is_listing = review.mode == ReviewMode::Listing;
        let given_up = async {
            if !is_listing {
                sleep(STALE_WAIT).await;
            }
            // A listing does not wait: its other rights may have been approved.
            if !self.signs.lock().are_recent() || (stale().is_none() && !is_listing) {
                pending().await
            }
        };
        let answer = tokio::select! {
            biased;
            answer = answer => answer,
            () = given_up => Err(busy()),
        };
        let counts = match &answer {
            Ok(answer) => !is_sure(answer),
            Err(error) => error.kind.is_silence() || (error.kind == NoAnswer::Busy && self.signs.lock().are_recent()),
        };
        let Some(stale) = counts.then(stale).flatten() else {
            return answer;
        };
        review.is_stale.store(true, Ordering::Release);
        self.metrics.cache_hits.count(["stale"]);
        Ok(stale)
    }

    /// Awaits the answer to a review, and counts it.
    async fn count_review<T>(&self, kind: &'static str, review: Review<'_, T>) -> ReviewResult<T> {
        let start = Instant::now();
        let answer = review.await;
        let duration = &self.metrics.review_duration;
        duration.observe(start.elapsed().as_secs_f64());
        let result = match &answer {
            Ok(_) => {
                self.signs.lock().answered();
                "answered"
            }
            Err(unavailable) => {
                // No token keeps a connection from being made.
                let is_sign =
                    unavailable.kind == NoAnswer::Unreachable || kind == ACCESS && unavailable.kind.is_silence();
                if unavailable.kind == NoAnswer::Refused {
                    self.signs.lock().answered();
                } else if is_sign {
                    self.signs.lock().unanswered(start);
                }
                tracing::debug!(kind, failure = ?unavailable.kind, "no answer of the API server: {unavailable}");
                "unavailable"
            }
        };
        self.metrics.reviews.count([kind, result]);
        answer
    }
}

/// Returns whether a password may be checked. Names without a user are limited too: the answer must not reveal names.
fn allows_password(guesses: &GuessLimiter, user: &str, network: IpAddr) -> bool {
    guesses.is_clear(network) || (guesses.allows(network) && guesses.allows(user))
}

fn too_many_guesses() -> ReviewError {
    ReviewError::new(NoAnswer::GuessRate, "too many wrong guesses")
}

/// The reviews at a time for all listings: half of those of a network.
const MAX_LISTING_REVIEWS: usize = 1;
/// The listings at a time.
const MAX_LISTINGS: usize = 4;
/// The values of the label `kind`.
const TOKEN: &str = "token";
const ACCESS: &str = "access";
const GONE: &str = "the user of the token was deleted";
/// The age up to which an answer counts without another review. The API server caches its own for 10 s as well.
const FRESH: Duration = Duration::from_secs(10);
/// Like [`FRESH`], for a right that is denied: the user may just have been granted it.
const FRESH_DENIAL: Duration = Duration::from_secs(5);
/// The wait for an answer while the API server is away, if a stale approval can replace it.
const STALE_WAIT: Duration = Duration::from_secs(1);
/// The most bytes of each kind of answer, as counted here. With the allocator's overhead, all caches together take less
/// than 8 MiB (`tests/access_memory.rs`). They hold about 1,600 users with ten groups each, 3,400 refused credentials,
/// 3,600 allowed rights and 1,400 denied ones. What does not fit is reviewed again.
const MAX_PROVED: usize = 7 << 18;
const MAX_REFUSED: usize = 1 << 20;
const MAX_ALLOWED: usize = 5 << 18;
const MAX_DENIED: usize = 1 << 19;
/// The same for the approvals for listings: 700.
const MAX_LISTED: usize = 1 << 18;
