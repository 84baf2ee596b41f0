//! Decides which user a request has, and whether that user may reach a target: when a tunnel begins, and again while it
//! runs.

pub(super) mod listing;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;

use super::credentials::credential::Credential;
use super::credentials::{self, RequestCredentials, Subject, brief};
use super::files::passwords::UNKNOWN_KEY;
use super::reviewer::{Action, Decision, NoAnswer, Right, Verdict};
use super::reviews::cache::instant;
use super::reviews::{ReviewContext, ReviewMode, Reviews};
use super::sources::{AccessConfig, EXPIRED_KEY, NO_SOURCE, NotProved};
use super::tickets::{EXPIRED, TicketLookup, UNKNOWN};
use super::user::{AUTHENTICATED, Method, User};
use crate::base::boxed::boxed;
use crate::policy::access::metrics::AccessMetrics;
use crate::policy::allowlist::{DialsIn, Target, UserLists};
use crate::protocol::phrase::Phrase;
use crate::tunnel::outcome::{Refusal, RefusalReason};

/// Decides about requests and running tunnels, by the current configuration.
#[derive(Debug)]
pub(super) struct AccessDecider {
    pub(super) config: ArcSwap<AccessConfig>,
    pub(super) reviews: Arc<Reviews>,
    pub(super) metrics: AccessMetrics,
}

/// Why a user may not reach a target.
#[derive(Debug)]
pub(super) enum NotAllowed {
    /// A review denies it. Only a second denial ends tunnels: an API server that has just started knows no binding yet.
    Denied(Refusal),
    /// It is denied here, such as by the lists of the target, and counts at once.
    DeniedLocally(Refusal),
    /// There is no answer, or only an incomplete one.
    Unknown,
}

impl AccessDecider {
    /// Authenticates the user of a request.
    pub(super) async fn authenticate(
        &self,
        config: &Arc<AccessConfig>,
        mut request: RequestCredentials<'_>,
    ) -> Result<Subject, Refusal> {
        if let Err(refusal) = request.check_transport(config.options.cleartext) {
            if request.credential.is_some() {
                self.metrics.cleartext_credentials.inc();
            }
            return Err(refusal.into());
        }
        let certified = match config.accepts_certificates() {
            true => request.certificate_user()?,
            false => None,
        };
        let credential = request.take_credential()?;
        let credential = credential.map(|credential| config.sources.normalize(credential));
        let review = ReviewContext {
            config: Arc::clone(config),
            client: request.client,
            mode: ReviewMode::Login,
            is_stale: Arc::default(),
        };
        let user = match &credential {
            Some(credential) => {
                let user = self.prove(&review, credential).await?;
                if let Some(certified) = &certified {
                    credentials::check_same(&user, certified)?;
                }
                user
            }
            None => Arc::new(certified.clone().ok_or(RefusalReason::CredentialsRequired)?),
        };
        let of_certificate = certified.as_ref().and_then(|certified| certified.expires);
        let expires = user.expires.into_iter().chain(of_certificate).min();
        let client_tls = request.client_tls.filter(|_| certified.is_some()).cloned();
        let key = &self.reviews.key;
        Ok(Subject {
            expires: expires.map(instant),
            user_expires: user.expires.map(instant),
            is_stale: review.is_stale.load(Ordering::Acquire),
            digest: key.subject(
                &user,
                request.right,
                credential.as_ref(),
                client_tls.as_deref(),
                request.client,
            ),
            right: request.right,
            user,
            credential,
            client_tls,
            client: request.client,
        })
    }

    /// Authenticates the user of a credential.
    async fn prove(&self, review: &ReviewContext, credential: &Credential) -> Result<Arc<User>, Refusal> {
        match self.reviews.authenticate(review, credential).await {
            Ok(Verdict::Authenticated(user)) => credentials::check_user(&user).map(|()| user),
            Ok(Verdict::Rejected(phrase)) => Err(Refusal::with_phrase(RefusalReason::CredentialsRefused, &phrase)),
            Err(error) if error.kind == NoAnswer::GuessRate => Err(RefusalReason::GuessRate.into()),
            Err(_) => Err(RefusalReason::AuthorizationUnavailable.into()),
        }
    }

    /// Decides whether a subject may reach the target that is dialled, whatever name was requested. Returns the reason
    /// for a yes, and whether some of it rests on an earlier approval, for want of an answer.
    pub(super) async fn check(
        &self,
        subject: &Subject,
        target: &Target,
        mode: ReviewMode,
    ) -> Result<(Box<str>, bool), NotAllowed> {
        let review = ReviewContext {
            config: self.config.load_full(),
            client: subject.client,
            mode,
            is_stale: Arc::default(),
        };
        let mut user = local_user(&review.config, subject, target, mode)?;
        if mode != ReviewMode::Login {
            user = boxed(self.reauthenticate(&review, subject, user)).await?;
        }
        let Some(action) = action(&review.config, &user, target, subject.right)? else {
            return Ok((BY_LIST.into(), review.is_stale.load(Ordering::Acquire)));
        };
        let denied = || refusal(&user, target, subject.right).with_details(&format!("needs {action}"));
        match self.reviews.authorize(&review, &user, &action).await {
            Ok(Decision {
                allowed: true, reason, ..
            }) => Ok((reason, review.is_stale.load(Ordering::Acquire))),
            Ok(Decision { complete, .. }) if complete || mode == ReviewMode::Login => Err(NotAllowed::Denied(denied())),
            Ok(_) | Err(_) => Err(NotAllowed::Unknown),
        }
    }

    /// Returns the user that the credential proves now; `user` if there is no answer, or no credential to review.
    async fn reauthenticate(
        &self,
        review: &ReviewContext,
        subject: &Subject,
        user: Arc<User>,
    ) -> Result<Arc<User>, NotAllowed> {
        // An expired credential authenticates no user, and has not been revoked: that is left to `on_expiry`. So is one
        // that expires within [`SKEW`]: the clock of the API server may be ahead.
        let credential = subject
            .credential
            .as_ref()
            .filter(|_| !subject.user_expires_within(SKEW));
        let Some(credential) = credential.filter(|_| user.method != Method::Ticket && !user.method.is_of_ssh()) else {
            return Ok(user);
        };
        let users = review.config.sources.users.as_ref();
        if users.is_some_and(|users| users.is_current(&user)) {
            return Ok(user);
        }
        match self.reviews.authenticate(review, credential).await {
            Ok(Verdict::Authenticated(again)) if again.name == user.name && credentials::check_user(&again).is_ok() => {
                Ok(again)
            }
            Ok(Verdict::Authenticated(_) | Verdict::Rejected(_)) => {
                Err(NotAllowed::Denied(RefusalReason::CredentialsRefused.into()))
            }
            Err(_) => {
                review.is_stale.store(true, Ordering::Release);
                Ok(user)
            }
        }
    }

    /// Decides about running tunnels by local knowledge, without a review.
    pub(super) fn decide_locally(&self, subject: &Subject, target: &Target) -> Result<(), NotAllowed> {
        let config = self.config.load();
        let user = local_user(&config, subject, target, ReviewMode::Recheck(None))?;
        action(&config, &user, target, subject.right).map(drop)
    }

    /// Returns whether the ticket of running tunnels proves the same user as before, with the same groups and expiry.
    pub(super) fn has_same_ticket(&self, subject: &Subject, target: &Target) -> bool {
        let user = local_user(&self.config.load(), subject, target, ReviewMode::Recheck(None));
        user.is_ok_and(|user| user == subject.user)
    }
}

/// Returns the user of a subject, unless local knowledge refuses it: the ticket was revoked or is for another target,
/// the user has left the file of users, or certificates no longer prove users.
fn local_user(
    config: &AccessConfig,
    subject: &Subject,
    target: &Target,
    mode: ReviewMode,
) -> Result<Arc<User>, NotAllowed> {
    let user = &subject.user;
    let refused = |phrase| {
        Err(NotAllowed::DeniedLocally(Refusal::with_phrase(
            RefusalReason::CredentialsRefused,
            phrase,
        )))
    };
    match (user.method, &subject.credential) {
        // A ticket that expired while its tunnel runs is left to `on_expiry`.
        (Method::Ticket, _) if mode != ReviewMode::Login && subject.user_expires_within(Duration::ZERO) => {
            Ok(Arc::clone(user))
        }
        (Method::Ticket, Some(Credential::Bearer(text))) => {
            let ticket = config.sources.ticket(text);
            match ticket.map(|(tickets, key)| tickets.lookup(key, SystemTime::now())) {
                Some(TicketLookup::Proved(proof)) if proof.user.name == user.name => match &proof.target {
                    Some(own) if !proof.allows(target.id()) => {
                        let phrase = format!("this ticket is for {} only", brief(&own.to_string()));
                        let refusal = Refusal::with_phrase(RefusalReason::NotAuthorized, &phrase);
                        Err(NotAllowed::DeniedLocally(refusal))
                    }
                    Some(_) | None => Ok(proof.user),
                },
                Some(TicketLookup::Unlisted) if mode == ReviewMode::Login => Err(NotAllowed::Unknown),
                Some(TicketLookup::Unlisted) => Ok(Arc::clone(user)),
                Some(TicketLookup::Expired) => refused(EXPIRED),
                Some(_) | None => refused(UNKNOWN),
            }
        }
        (Method::Password, _) => match &config.sources.users {
            Some(users) if !users.is_loaded() && mode == ReviewMode::Login => Err(NotAllowed::Unknown),
            Some(users) if !users.is_loaded() => Ok(Arc::clone(user)),
            Some(users) if users.proves(&user.name) => Ok(Arc::clone(user)),
            Some(_) | None => Err(NotAllowed::DeniedLocally(RefusalReason::CredentialsRefused.into())),
        },
        (Method::PublicKey | Method::SshCertificate, _) => ssh_user(config, subject, mode),
        (Method::Ticket, _) => refused(UNKNOWN),
        (Method::Certificate, _) if !config.accepts_certificates() => {
            Err(NotAllowed::DeniedLocally(RefusalReason::CredentialsRequired.into()))
        }
        (Method::TokenReview | Method::Oidc | Method::Certificate, _) => Ok(Arc::clone(user)),
    }
}

/// Returns the user that the key or certificate of an SSH client proves now.
fn ssh_user(config: &AccessConfig, subject: &Subject, mode: ReviewMode) -> Result<Arc<User>, NotAllowed> {
    let (proved, is_login) = (&subject.user, mode == ReviewMode::Login);
    let now = subject.credential.as_ref().ok_or(NotProved::Refused(NO_SOURCE));
    let phrase = match now.and_then(|credential| config.sources.ssh_user(credential, subject.client)) {
        // It has another prefix now, or another source.
        Ok(now) if now.name != proved.name => UNKNOWN_KEY,
        // One that expired while its tunnel runs is left to `on_expiry`, unless it was given an earlier end.
        Ok(now) if now.has_expired() && (is_login || now.expires != proved.expires) => EXPIRED_KEY,
        Ok(now) => return Ok(Arc::new(now)),
        Err(NotProved::Refused(phrase)) => phrase,
        Err(NotProved::Unread) if is_login => return Err(NotAllowed::Unknown),
        Err(NotProved::Unread) => return Ok(Arc::clone(proved)),
    };
    let refusal = Refusal::with_phrase(RefusalReason::CredentialsRefused, phrase);
    Err(NotAllowed::DeniedLocally(refusal))
}

/// Returns the review that decides whether the user may reach the target; `None` if the target's lists allow it. They
/// replace the review.
fn action(config: &AccessConfig, user: &User, target: &Target, right: Right) -> Result<Option<Action>, NotAllowed> {
    let ended = |details| {
        Err(NotAllowed::DeniedLocally(
            refusal(user, target, right).with_details(details),
        ))
    };
    let (lists, [unnamed, unlisted]) = match (right, target.dials_in()) {
        (Right::Connect, _) => (target.user_lists(), OF_CLIENTS),
        (Right::Serve, Some(DialsIn { anchors })) => (anchors, OF_ANCHORS),
        (Right::Serve, None) => return ended("the target takes no anchors"),
    };
    match lists {
        Some(lists) if is_listed(user, &lists) => Ok(None),
        Some(_) => ended(unnamed),
        None => match config.action(target, right) {
            None => ended(unlisted),
            action => Ok(action),
        },
    }
}

/// The phrases for a user that a target's lists do not name, and for a target with neither lists nor a review.
const OF_CLIENTS: [&str; 2] = [
    "neither allowed_users nor allowed_groups names the user",
    "the target names no allowed_users and no allowed_groups",
];
/// The same phrases for an anchor's user.
const OF_ANCHORS: [&str; 2] = [
    "dials_in names neither the user nor a group of the user",
    "rights of anchors need `access.kubernetes`",
];

fn is_listed(user: &User, lists: &UserLists) -> bool {
    let is_member = |group: &str| group == AUTHENTICATED || user.groups.iter().any(|own| **own == *group);
    lists.users.contains(&user.name) || lists.groups.iter().any(|group| is_member(group))
}

/// Returns the refusal of a user that may not reach a target.
fn refusal(user: &User, target: &Target, right: Right) -> Refusal {
    let id = target.id();
    let target = match id.is_static() {
        true => brief(&id.service),
        false if id.is_pod() => brief(&id.short_name()),
        false => format!("{}.{}", brief(&id.service), brief(&id.namespace)),
    };
    let (verb, missing) = match right {
        Right::Connect => ("ssh to", ""),
        Right::Serve if id.is_static() => ("serve", ""),
        Right::Serve => ("serve", " without the right to create services/anchor"),
    };
    let before = format!("{} may not {verb} ", brief(&user.name));
    Refusal::new(
        RefusalReason::NotAuthorized,
        Phrase::naming(before, &target).followed_by(missing),
    )
}

/// The reason of a decision by the lists of a target.
const BY_LIST: &str = "named by the target";
/// The largest difference between two clocks.
const SKEW: Duration = Duration::from_secs(60);
