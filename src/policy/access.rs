//! Access control: authenticates the user of a request, authorizes that user for the target, and revokes grants.
//!
//! A request brings its `RequestCredentials`. [`Access::authenticate`] makes a `Subject` of it, [`Access::authorize`]
//! decides about the subject and a target. The caller decides whether a refusal counts: see [`Mode`].

pub mod credentials;
mod decision;
pub mod files;
mod grants;
pub mod metrics;
pub mod oidc;
mod options;
mod queue;
mod reviewer;
mod reviews;
mod sources;
pub mod tickets;
mod user;

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use self::credentials::credential::Credential;
pub use self::credentials::{RequestCredentials, Subject};
use self::decision::listing::LISTING_TIMEOUT;
pub use self::decision::listing::{Candidates, ListingLimit};
use self::decision::{AccessDecider, NotAllowed};
pub use self::files::followed_file::{Contents, FollowedFile};
use self::grants::ActiveGrants;
pub use self::grants::TunnelGrant;
pub use self::options::{
    Cleartext, Issuer, Jwks, KeySecretOptions, Kubernetes, Mode, NamedObject, OnExpiry, Options, Permission,
    SecretName, TicketOptions, UserFileOptions,
};
pub use self::reviewer::{Action, Change, Decision, NoAnswer, Review, ReviewError, Reviewer, Right, Verdict};
pub(crate) use self::reviews::cache::SETTLING_TIME;
use self::reviews::{ReviewMode, Reviews};
use self::sources::AccessConfig;
pub use self::sources::Sources;
pub(crate) use self::tickets::Watch;
pub use self::tickets::Watches;
pub use self::user::{AUTHENTICATED, Method, User};
use crate::base::boxed::boxed;
use crate::net::tls::Tls;
use crate::policy::access::metrics::AccessMetrics;
use crate::policy::allowlist::Target;
use crate::tunnel::outcome::{Refusal, RefusalReason};

/// Authenticates users, and authorizes them for targets.
#[derive(Debug)]
pub struct Access {
    decider: Arc<AccessDecider>,
    grants: Arc<ActiveGrants>,
}

impl Access {
    /// Creates the access control of this configuration.
    pub fn new(options: Options, sources: Sources, metrics: &AccessMetrics) -> Arc<Self> {
        for method in Method::ALL.map(Method::label).into_iter().chain([NO_METHOD]) {
            for result in RESULTS {
                metrics.requests.zero([method, result]);
            }
        }
        let on_expiry = options.on_expiry;
        let decider = Arc::new(AccessDecider {
            config: ArcSwap::from_pointee(AccessConfig { options, sources }),
            reviews: Reviews::new(metrics),
            metrics: metrics.clone(),
        });
        let grants = ActiveGrants::new(Arc::clone(&decider));
        grants.set_on_expiry(on_expiry);
        Arc::new(Self { decider, grants })
    }

    /// Creates the access control that lets every client reach every target of the allowlist.
    pub fn open(metrics: &AccessMetrics) -> Arc<Self> {
        Self::new(Options::default(), Sources::default(), metrics)
    }

    /// Replaces the configuration, and rechecks running tunnels at once.
    pub fn apply(&self, options: Options, sources: Sources) {
        let on_expiry = options.on_expiry;
        self.decider.config.store(Arc::new(AccessConfig { options, sources }));
        self.grants.set_on_expiry(on_expiry);
        self.decider.reviews.clear();
        self.changed(&Change::Everywhere);
    }

    /// Returns the mode: whether access is decided at all, and whether the decision counts.
    pub fn mode(&self) -> Mode {
        self.decider.config.load().options.mode
    }

    /// Returns whether a target that a user may not reach is answered as one that is not on the allowlist. The time of the
    /// answer is not hidden: an unknown name needs no review.
    pub fn hides_names(&self) -> bool {
        self.decider.config.load().options.hide_names
    }

    /// Returns the watches that revoke access: a ticket opens no tunnel while one of them is out of date.
    pub fn watches(&self) -> Arc<Watches> {
        Arc::clone(&self.decider.reviews.watches)
    }

    /// Authenticates the user of a request.
    ///
    /// # Errors
    /// The refusal: the request has no user, or the user cannot be determined now.
    pub async fn authenticate(&self, request: RequestCredentials<'_>) -> Result<Subject, Refusal> {
        let config = self.decider.config.load_full();
        let presented = request.credential.as_ref().and_then(|read| read.as_ref().ok());
        let claim = presented.and_then(|credential| config.sources.claim(credential));
        let method = claim.map_or(NO_METHOD, |(_, method)| method.label());
        let authenticated = self.decider.authenticate(&config, request).await;
        if let Err(refusal) = &authenticated {
            self.count_request(method, refusal.reason.label());
        }
        authenticated
    }

    /// Checks a key that a client offers and has not signed with. Nothing is counted: agents offer all their keys.
    ///
    /// # Errors
    /// The refusal: it proves no user, or the file of users was not read yet.
    pub fn check_offered_key(&self, credential: &Credential, client: IpAddr) -> Result<(), Refusal> {
        let config = self.decider.config.load();
        if config.sources.has_authorities() {
            // The SSH server does not show whether the key has a certificate: that is seen once it has signed.
            return Ok(());
        }
        match config
            .sources
            .verify_ssh(credential, client, self.decider.reviews.watches.are_out_of_date())
        {
            Ok(Verdict::Authenticated(_)) => Ok(()),
            Ok(Verdict::Rejected(phrase)) => Err(Refusal::with_phrase(RefusalReason::CredentialsRefused, &phrase)),
            Err(_) => Err(RefusalReason::AuthorizationUnavailable.into()),
        }
    }

    /// Returns whether a user may have a public key or a certificate of SSH.
    pub fn has_keys(&self) -> bool {
        self.decider.config.load().sources.has_keys()
    }

    /// Returns the user of the file that a name with a password or key is; `None` for a token or an unknown name.
    pub fn claimed_user(&self, credential: &Credential) -> Option<Box<str>> {
        let sources = &self.decider.config.load().sources;
        let (name, _) = sources.claim(credential)?;
        let users = sources.users.as_ref().filter(|users| users.contains(name))?;
        Some(users.full_name(name).into())
    }

    /// Decides whether the subject may reach the target that is dialled, whatever name was requested.
    ///
    /// # Errors
    /// [`RefusalReason::NotAuthorized`], or [`RefusalReason::AuthorizationUnavailable`] without an answer. Or
    /// [`RefusalReason::CredentialsRefused`], if the ticket or the password's user was removed after authentication.
    pub async fn authorize(&self, subject: &Subject, target: &Arc<Target>) -> Result<TunnelGrant, Refusal> {
        // The grant is registered before the review, so that a revocation during the review reaches the grant, too.
        let active = self.grants.get_or_insert(subject, target);
        let decided = match self.decider.check(subject, target, ReviewMode::Login).await {
            Ok((reason, is_stale)) => {
                if is_stale || subject.is_stale {
                    active.note_stale_approval();
                }
                Ok(TunnelGrant::new(active, reason))
            }
            Err(NotAllowed::Denied(refusal) | NotAllowed::DeniedLocally(refusal)) => Err(refusal),
            Err(NotAllowed::Unknown) => Err(RefusalReason::AuthorizationUnavailable.into()),
        };
        let denied = decided.as_ref().err();
        let result = denied.map_or(ALLOWED, |refusal: &Refusal| refusal.reason.label());
        self.count_request(subject.user.method.label(), result);
        decided
    }

    /// Decides by local knowledge which of the targets the subject may reach. Takes microseconds for each.
    pub fn candidates(&self, subject: &Subject, targets: Vec<Arc<Target>>) -> Candidates {
        self.decider.candidates(subject, targets)
    }

    /// Waits for the permit of one listing, and returns it with the deadline of its reviews; `None` if others have all permits
    /// until then.
    pub async fn begin_listing(&self) -> Option<(OwnedSemaphorePermit, Instant)> {
        let deadline = Instant::now() + LISTING_TIMEOUT;
        let permit = Arc::clone(&self.decider.reviews.listings).acquire_owned();
        Some((timeout_at(deadline, permit).await.ok()?.ok()?, deadline))
    }

    /// Returns the candidates that the subject may reach, by the deadline, and why some may be missing. It is information and
    /// no grant: a tunnel needs a decision of its own.
    pub async fn reachable(
        &self,
        subject: &Subject,
        candidates: Candidates,
        deadline: Instant,
    ) -> (Vec<Arc<Target>>, Option<ListingLimit>) {
        boxed(self.decider.reachable(subject, candidates, deadline)).await
    }

    fn count_request(&self, method: &'static str, result: &'static str) {
        self.decider.metrics.requests.count([method, result]);
    }

    /// Rechecks the grants that a change in the cluster may have revoked, and revokes those of a user
    /// that was deleted.
    pub fn changed(&self, change: &Change) {
        self.decider.reviews.changed(change);
        match change {
            Change::Everywhere => self.grants.request_recheck_where(|_| true),
            Change::Namespace(name) => self
                .grants
                .request_recheck_where(|grant| grant.target.id().namespace == *name),
            Change::UserDeleted(id) => self.grants.end_where(|subject| subject.user.has_id(id)),
        }
    }

    /// Rechecks all grants after a change of the targets' lists of users.
    pub fn user_lists_changed(&self) {
        self.grants.request_recheck_where(|_| true);
    }

    /// Rechecks all passwords, keys and certificates of SSH after a change of a file about them.
    pub fn users_changed(&self) {
        self.decider.reviews.forget_verdicts();
        self.grants
            .request_recheck_where(|grant| grant.subject.user.method.is_of_file());
    }

    /// Revokes the grants of public keys that a new table lacks. Expiry is left to `on_expiry`.
    pub fn key_secret_changed(&self) {
        self.grants
            .request_recheck_where(|grant| grant.subject.user.method == Method::PublicKey);
    }

    /// Revokes the grants of tickets that a new table lacks, and rechecks changed ones. Expiry is left to `on_expiry`.
    pub fn tickets_changed(&self) {
        let is_of_ticket = |subject: &Subject| subject.user.method == Method::Ticket;
        self.grants.request_recheck_where(|grant| {
            is_of_ticket(&grant.subject) && !self.decider.has_same_ticket(&grant.subject, &grant.target)
        });
    }

    /// Revokes the grants of client certificates that no longer count, after a change of authorities or revocation lists.
    /// One that has expired is left to `on_expiry`.
    pub fn certificates_changed(&self, tls: &Tls) {
        self.grants
            .end_where(|subject| !subject.is_trusted(tls) && !subject.has_expired_certificate());
    }

    /// Updates the gauges of active grants, cached answers and tickets.
    pub fn count(&self) {
        let AccessDecider {
            config,
            reviews,
            metrics,
        } = &*self.decider;
        metrics
            .active_grants
            .set(i64::try_from(self.grants.len()).unwrap_or(i64::MAX));
        for (cache, entries) in reviews.sizes() {
            metrics.cache_entries.set([cache], entries);
        }
        let config = config.load();
        let tickets = config.sources.tickets.as_ref();
        let (valid, invalid) = tickets.map_or((0, 0), |tickets| tickets.counts());
        metrics.tickets.set(["valid"], valid);
        metrics.tickets.set(["invalid"], invalid);
    }
}

const NO_METHOD: &str = "none";
const ALLOWED: &str = "allowed";
/// The values of the label `result`.
const RESULTS: [&str; 8] = [
    ALLOWED,
    "credentials_required",
    "credentials_refused",
    "guess_rate",
    "cleartext_credentials",
    "identity_refused",
    "not_authorized",
    "authorization_unavailable",
];

#[cfg(test)]
mod test_support;
#[cfg(test)]
mod tests;
