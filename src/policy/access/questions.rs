//! Asks which user a credential proves, and what a user may do: from memory, else once for all that ask, within the
//! bounds of the queue, and not while the API server does not answer.

mod cache;
mod circuit_breaker;
pub(crate) mod memory;
pub(crate) mod queue;
pub(crate) mod single_flight;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use self::circuit_breaker::Breaker;
use self::memory::Memory;
use self::queue::{Bounds, Permit, Queue};
use self::single_flight::{Answer, Flights, busy};
use super::Rules;
use super::evidence::digest::{Digest, Key};
use super::evidence::guess_limiter::GuessLimiter;
use super::options::Check;
use super::reviewer::{Action, Decision, Review, Reviewer, Unavailable, Verdict};
use super::tickets::watches::Watches;
use super::user::{Method, User};
use crate::base::secret::Secret;
use crate::policy::access::evidence::credential::Credential;
use crate::tunnel::limits::owners::network;
use crate::tunnel::metrics::Metrics;

/// The questions of a process.
#[derive(Debug)]
pub(super) struct Questions {
    pub(super) key: Key,
    pub(super) memory: Mutex<Memory>,
    verdicts: Arc<Flights<(Digest, u64), Verdict>>,
    decisions: Arc<Flights<(Digest, u64), Decision>>,
    /// Of tokens that the API server reviews. Any client can send some on which it takes seconds.
    tokens: Arc<Queue>,
    /// Of rights: a known user waits behind no token.
    rights: Arc<Queue>,
    /// Of passwords, whose checks take as long: they keep no question from the API server.
    pub(super) passwords: Arc<Queue>,
    /// At passwords, by network and by name.
    password_guesses: GuessLimiter,
    /// At tickets, by network. They cost no hash: however many there are, no wrong password is forgotten for them.
    ticket_guesses: GuessLimiter,
    /// Of token reviews, and of access reviews.
    breakers: [Arc<Breaker>; 2],
    /// The watches that take access back.
    pub(super) watches: Arc<Watches>,
    metrics: Metrics,
}

impl Questions {
    /// None has been asked yet.
    pub(super) fn new(metrics: &Metrics) -> Arc<Self> {
        for kind in KINDS {
            for result in ["answered", "unavailable", "suspended"] {
                metrics.access_reviews.zero([kind, result]);
            }
            metrics.access_suspended.set([kind], false);
        }
        for answer in ["verdict", "decision", "stale"] {
            metrics.access_cache_hits.zero([answer]);
        }
        Arc::new(Self {
            key: Key::new(),
            memory: Mutex::new(Memory::new()),
            verdicts: Flights::new(),
            decisions: Flights::new(),
            tokens: Queue::new(Bounds::COSTLY),
            rights: Queue::new(Bounds::COSTLY),
            passwords: Queue::new(Bounds::PASSWORDS),
            password_guesses: GuessLimiter::default(),
            ticket_guesses: GuessLimiter::default(),
            breakers: [Arc::default(), Arc::default()],
            watches: Arc::default(),
            metrics: metrics.clone(),
        })
    }

    /// Returns whether a ticket or a password of this client is looked at, right or wrong.
    ///
    /// Guesses at a user from elsewhere do not lock that user out of a network that has sent no wrong password lately.
    pub(super) fn allows_guess(&self, rules: &Rules, credential: &Credential, client: IpAddr) -> bool {
        if rules.sources.ticket(credential).is_some() {
            return self.ticket_guesses.allows(network(client));
        }
        let (guesses, network) = (&self.password_guesses, network(client));
        // By name whether or not a user has it: names are no oracle.
        let allows = |name| guesses.allows(network) && guesses.allows(name);
        let name = rules.sources.password_name(credential);
        name.is_none_or(|name| guesses.is_clear(network) || allows(name))
    }

    /// The user of the credential, on behalf of a client.
    pub(super) async fn verdict(
        self: &Arc<Self>,
        rules: &Arc<Rules>,
        credential: &Credential,
        client: IpAddr,
    ) -> Answer<Verdict> {
        if let Some((tickets, key)) = rules.sources.ticket(credential) {
            // Not remembered: one that is taken back is refused at once.
            let count = || self.ticket_guesses.record_wrong(network(client), key);
            return tickets.verdict(key, self.watches.are_late(), count);
        }
        let credential = Arc::new(rules.sources.normalized(credential));
        if let Some(refused) = rules.refuse_at_sight(&credential) {
            return Ok(refused);
        }
        let digest = self.key.credential(&credential, client);
        // A right password waits for its permit as a wrong one does, and no earlier yes counts without one: where none is
        // checked they would be told apart, and the wrong ones not counted.
        let is_token = matches!(*credential, Credential::Bearer(_));
        if let Some(verdict) = is_token.then(|| self.remembered(&digest)).flatten() {
            return Ok(verdict);
        }
        let epoch = self.memory.lock().epoch();
        let answer = self.verdicts.join((digest, epoch), || {
            let (own, rules, credential) = (Arc::clone(self), Arc::clone(rules), Arc::clone(&credential));
            async move {
                let _permit = own.permit(&rules, &credential, client).await?;
                if let Some(verdict) = own.remembered(&digest) {
                    return Ok(verdict);
                }
                let verdict = own.prove(&rules, &credential, client).await?;
                // A password that was sent for that name before is no guess.
                if let (Verdict::Refused(_), Credential::Basic { user, .. }) = (&verdict, &*credential)
                    && own.password_guesses.record_wrong(&**user, digest)
                {
                    own.password_guesses.record_wrong(network(client), digest);
                }
                Ok(verdict)
            }
        });
        match answer.await {
            Err(unavailable) if is_token => {
                let stale = self.memory.lock().stale_verdict(&digest, rules.stale());
                self.stale(stale, unavailable)
            }
            answered => answered,
        }
    }

    /// Returns the fresh verdict on a credential, if there is one.
    fn remembered(&self, credential: &Digest) -> Option<Verdict> {
        let verdict = self.memory.lock().verdict(credential);
        verdict.inspect(|_| self.metrics.access_cache_hits.count(["verdict"]))
    }

    /// The permit to judge a credential. A token of an OIDC issuer needs none: its signature costs less than the TLS
    /// handshake before it, and a wait for the issuer's keys is bounded there.
    async fn permit(&self, rules: &Rules, credential: &Credential, client: IpAddr) -> Answer<Option<Permit>> {
        let queue = match credential {
            Credential::Basic { .. } => &self.passwords,
            Credential::Bearer(token) if rules.sources.is_of_issuer(token) => return Ok(None),
            Credential::Bearer(_) => &self.tokens,
        };
        let permit = queue.enter(client).await;
        // Guesses that waited beside it may have been wrong.
        let permit = permit.filter(|_| self.allows_guess(rules, credential, client));
        permit.map(Some).ok_or_else(busy)
    }

    /// Whether the user may do that, on behalf of a client.
    pub(super) async fn decision(
        self: &Arc<Self>,
        rules: &Arc<Rules>,
        right: (&Arc<User>, &Action),
        client: IpAddr,
    ) -> Answer<Decision> {
        let (user, action) = right;
        let digest = self.key.right(user, action);
        let epoch = {
            let memory = self.memory.lock();
            if let Some(decision) = memory.decision(&digest) {
                self.metrics.access_cache_hits.count(["decision"]);
                return Ok(decision);
            }
            memory.epoch()
        };
        let answer = self.decisions.join((digest, epoch), || {
            let (own, rules, user, action) = (Arc::clone(self), Arc::clone(rules), Arc::clone(user), action.clone());
            async move {
                let _permit = own.rights.enter(client).await.ok_or_else(busy)?;
                own.decide(&rules, &user, &action).await
            }
        });
        let stale = || self.memory.lock().stale_decision(&digest, rules.stale());
        match answer.await {
            Err(unavailable) => self.stale(stale(), unavailable),
            // Not said for sure: what was allowed before stays allowed as without an answer.
            Ok(denied) if !denied.allowed && !denied.complete => Ok(stale().unwrap_or(denied)),
            answered => answered,
        }
    }

    fn stale<T>(&self, stale: Option<T>, unavailable: Unavailable) -> Answer<T> {
        if stale.is_some() {
            self.metrics.access_cache_hits.count(["stale"]);
        }
        stale.ok_or(unavailable)
    }

    /// Asks for the user of the credential, on behalf of a client, and remembers the answer.
    pub(super) async fn prove(
        self: &Arc<Self>,
        rules: &Rules,
        credential: &Credential,
        client: IpAddr,
    ) -> Answer<Verdict> {
        let epoch = self.memory.lock().epoch();
        let verdict = match rules.sources.verify(credential, client).await {
            Some(verdict) => verdict?,
            None => match (&rules.sources.reviewer, credential) {
                (Some(reviewer), Credential::Bearer(token)) => {
                    self.ask(TOKEN, reviewer, reviewer.review_token(token)).await?
                }
                (None, _) | (Some(_), Credential::Basic { .. }) => Verdict::Refused(super::NO_SOURCE.into()),
            },
        };
        let mut memory = self.memory.lock();
        let is_gone = matches!(&verdict, Verdict::Proved(user) if memory.is_gone(user));
        let verdict = if is_gone {
            Verdict::Refused(GONE.into())
        } else {
            verdict
        };
        memory.keep_verdict(self.key.credential(credential, client), epoch, &verdict);
        Ok(verdict)
    }

    /// Asks whether the user may do that, and remembers the answer.
    pub(super) async fn decide(self: &Arc<Self>, rules: &Rules, user: &User, action: &Action) -> Answer<Decision> {
        let Some(reviewer) = &rules.sources.reviewer else {
            return Err(Unavailable {
                kind: "unconfigured",
                message: "there is no API server to ask".into(),
            });
        };
        let epoch = self.memory.lock().epoch();
        let decision = self.ask(ACCESS, reviewer, reviewer.review_access(user, action)).await?;
        let digest = self.key.right(user, action);
        let mut memory = self.memory.lock();
        memory.keep_decision(digest, epoch, &action.namespace, &decision);
        Ok(decision)
    }

    /// The answer to a question, unless the API server does not answer any.
    async fn ask<T>(self: &Arc<Self>, kind: usize, reviewer: &Arc<dyn Reviewer>, question: Review<'_, T>) -> Answer<T> {
        let (breaker, label) = (self.breaker(kind), KINDS.get(kind).copied().unwrap_or_default());
        if breaker.is_open() {
            self.metrics.access_reviews.count([label, "suspended"]);
            return Err(Unavailable {
                kind: "suspended",
                message: "the API server does not answer".into(),
            });
        }
        let start = Instant::now();
        let answer = timeout(LONGEST_REVIEW, question).await.unwrap_or_else(|_| {
            Err(Unavailable {
                kind: "timeout",
                message: "no answer in time".into(),
            })
        });
        self.metrics
            .access_review_duration
            .observe(start.elapsed().as_secs_f64());
        match &answer {
            Ok(_) => {
                breaker.succeeded();
                self.metrics.access_reviews.count([label, "answered"]);
            }
            Err(unavailable) => {
                tracing::debug!(
                    kind = label,
                    failure = unavailable.kind,
                    "no answer of the API server: {unavailable}"
                );
                self.metrics.access_reviews.count([label, "unavailable"]);
                self.probe(kind, reviewer, false);
            }
        }
        answer
    }

    /// Finds out whether rights are answered at all, and if not, when they are again.
    pub(super) fn probe_rights(self: &Arc<Self>, rules: &Rules) {
        if let Some(reviewer) = &rules.sources.reviewer {
            self.probe(ACCESS, reviewer, true);
        }
    }

    /// Returns whether no right is asked about at the moment: `rights_answered` tells the end of that.
    pub(super) fn are_rights_suspended(&self) -> bool {
        self.breaker(ACCESS).is_open()
    }

    /// Completes when rights are answered again.
    pub(super) async fn rights_answered(&self) {
        self.breaker(ACCESS).closed.notified().await;
    }

    /// Notes a failure. After several in a row, or `at_once`, asks a question of our own each second until it is answered, or
    /// until the rules name another API server.
    fn probe(self: &Arc<Self>, kind: usize, reviewer: &Arc<dyn Reviewer>, at_once: bool) {
        let (own, reviewer) = (Arc::clone(self), Arc::downgrade(reviewer));
        self.breaker(kind).failed(at_once, move || {
            let (own, reviewer) = (Arc::clone(&own), reviewer.upgrade());
            async move {
                let label = KINDS.get(kind).copied().unwrap_or_default();
                let Some(reviewer) = reviewer else {
                    own.metrics.access_suspended.set([label], false);
                    return true;
                };
                let question = async {
                    match kind {
                        TOKEN => reviewer.review_token(&Secret::from(PROBE)).await.map(drop),
                        _ => reviewer.review_access(&prober(), &probed()).await.map(drop),
                    }
                };
                let is_answered = matches!(timeout(LONGEST_REVIEW, question).await, Ok(Ok(())));
                let result = if is_answered { "answered" } else { "unavailable" };
                own.metrics.access_reviews.count([label, result]);
                own.metrics.access_suspended.set([label], !is_answered);
                is_answered
            }
        });
    }

    fn breaker(&self, kind: usize) -> &Arc<Breaker> {
        let [token, access] = &self.breakers;
        if kind == TOKEN { token } else { access }
    }
}

/// The user of the question that finds out whether access reviews are answered: one that does not exist.
fn prober() -> User {
    User {
        name: PROBE.into(),
        uid: None,
        groups: Vec::new(),
        extra: std::collections::BTreeMap::new(),
        method: Method::TokenReview,
        expires: None,
    }
}

/// What it is asked about.
fn probed() -> Action {
    let Check {
        verb,
        group,
        resource,
        subresource,
        ..
    } = Check::default();
    Action {
        verb,
        group,
        resource,
        subresource,
        namespace: "default".into(),
        name: PROBE.into(),
    }
}

const TOKEN: usize = 0;
const ACCESS: usize = 1;
/// The values of the label `kind`.
const KINDS: [&str; 2] = ["token", "access"];
/// A token, a user and a Service that do not exist.
const PROBE: &str = "switchboard-probe";
const GONE: &str = "the user of the token was deleted";
/// Behind the reviewer's own deadline.
const LONGEST_REVIEW: Duration = Duration::from_secs(15);
