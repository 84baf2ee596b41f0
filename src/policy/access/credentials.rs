//! The credentials of a request, and the rules about them that need no review.

pub mod credential;
pub(crate) mod digest;
pub(crate) mod guess_limiter;

use std::future::pending;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep_until};

use self::credential::{Credential, CredentialError};
use self::digest::Digest;
use super::options::Cleartext;
use super::reviewer::Right;
use super::user::{AUTHENTICATED, Method, User};
use crate::base::values::{is_name, is_reserved};
use crate::net::tls::{CertificateNames, ClientTls, Tls};
use crate::tunnel::outcome::{Refusal, RefusalReason};

/// The credentials of a request.
#[derive(Debug)]
pub struct RequestCredentials<'a> {
    /// The credential of its head.
    pub credential: Option<Result<Credential, CredentialError>>,
    /// The TLS connection that it came over; `None` in clear.
    pub client_tls: Option<&'a Arc<ClientTls>>,
    /// The client.
    pub client: IpAddr,
    /// True if the client's address and the socket's peer are both loopback addresses.
    pub is_local: bool,
    /// True if it came over SSH, or a trusted load balancer took it over TLS: the way from there is protected.
    pub is_encrypted: bool,
    /// The right that it needs.
    pub right: Right,
}

/// The authenticated user of a request, and the proof.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The user.
    pub user: Arc<User>,
    /// The right that the request needs.
    pub(super) right: Right,
    /// The credential; `None` if the certificate alone is the proof.
    pub(super) credential: Option<Credential>,
    /// The TLS connection, if its certificate names a user.
    pub(super) client_tls: Option<Arc<ClientTls>>,
    /// The client's address, by whose network reviews are limited.
    pub(super) client: IpAddr,
    /// When the credential or the certificate expires, whichever is first.
    pub(super) expires: Option<Instant>,
    /// When the credential expires, or the certificate if it is the only proof.
    pub(super) user_expires: Option<Instant>,
    /// The digest of the user, the proof and the right.
    pub(super) digest: Digest,
    /// True if an earlier approval has proved the user, for want of an answer.
    pub(super) is_stale: bool,
}

impl Subject {
    /// Returns whether a new handshake would accept its certificate; true without one.
    pub fn is_trusted(&self, tls: &Tls) -> bool {
        self.client_tls.as_ref().is_none_or(|client_tls| tls.trusts(client_tls))
    }

    /// Returns whether the proof of the user expires within `time`, by the monotonic clock or by the system's.
    pub(super) fn user_expires_within(&self, time: Duration) -> bool {
        self.user_expires
            .is_some_and(|expires| expires <= Instant::now() + time)
            || self
                .user
                .expires
                .is_some_and(|expires| expires <= SystemTime::now() + time)
    }

    /// Returns whether the credential or the certificate has expired, by either clock.
    pub(super) fn has_expired(&self) -> bool {
        self.expires.is_some_and(|expires| expires <= Instant::now())
            || self.user_expires_within(Duration::ZERO)
            || self.has_expired_certificate()
    }

    /// Completes when the credential or the certificate has expired. The system clock is polled, since it may be set;
    /// the monotonic clock stops while the machine sleeps.
    pub(super) async fn expired(&self) {
        let Some(expires) = self.expires else {
            return pending().await;
        };
        while !self.has_expired() {
            sleep_until(expires.min(Instant::now() + BETWEEN_CLOCK_LOOKS)).await;
        }
    }

    /// Returns whether the certificate of its user has expired.
    pub(super) fn has_expired_certificate(&self) -> bool {
        let identity = self
            .client_tls
            .as_ref()
            .and_then(|client_tls| client_tls.identity.as_ref());
        let expires = identity.and_then(|identity| identity.expires);
        expires.is_some_and(|expires| expires <= SystemTime::now())
    }
}

impl RequestCredentials<'_> {
    /// Refuses cleartext unless the rule allows it, even without a credential: a challenge would ask for one.
    pub(super) fn check_transport(&self, rule: Cleartext) -> Result<(), RefusalReason> {
        let is_accepted = match rule {
            Cleartext::Allow => true,
            Cleartext::Loopback => self.is_local,
            Cleartext::Refuse => false,
        };
        match is_accepted || self.is_encrypted || self.client_tls.is_some() {
            true => Ok(()),
            false => Err(RefusalReason::CleartextCredentials),
        }
    }

    /// Returns the user of the certificate; `None` if it names none.
    pub(super) fn certificate_user(&self) -> Result<Option<User>, Refusal> {
        let identity = self.client_tls.and_then(|client_tls| client_tls.identity.as_ref());
        let user = identity.and_then(user_of);
        if let Some(user) = &user {
            check_user(user)?;
            check_names(user)?;
        }
        Ok(user)
    }

    /// Takes the credential, or refuses one that cannot be read.
    pub(super) fn take_credential(&mut self) -> Result<Option<Credential>, Refusal> {
        let read = self.credential.take().transpose();
        read.map_err(|fault| Refusal::with_phrase(RefusalReason::CredentialsRefused, &fault.to_string()))
    }
}

/// Returns the user of a certificate; `None` if it has no common name, or several.
fn user_of(identity: &CertificateNames) -> Option<User> {
    let (name, groups) = (identity.user_name()?, identity.organizations.clone());
    Some(User::claimed(Method::Certificate, name, groups, identity.expires))
}

/// Refuses anonymous users, and those that only the cluster itself can prove.
///
/// Names and groups that begin with `system:` are the cluster's own, and RBAC gives `system:masters` every right.
/// Authorities for client certificates, OIDC issuers and files of users are not the cluster, even if one team runs all.
pub(super) fn check_user(user: &User) -> Result<(), Refusal> {
    if user.is_anonymous() {
        return Err(RefusalReason::CredentialsRefused.into());
    }
    if user.is_of_cluster() {
        return Ok(());
    }
    let mut claimed = std::iter::once(&user.name).chain(&user.groups);
    match claimed.find(|name| is_reserved(name) && &***name != AUTHENTICATED) {
        Some(name) => {
            let proof = match user.method {
                Method::Certificate => "a client certificate",
                Method::Oidc => "an OIDC token",
                Method::Password => "a password",
                Method::PublicKey => "a public key",
                Method::SshCertificate => "an SSH certificate",
                Method::Ticket => "a ticket",
                Method::TokenReview => "a token",
            };
            let phrase = format!("{proof} cannot prove {}: it is the cluster's own", brief(name));
            Err(Refusal::with_phrase(RefusalReason::IdentityRefused, &phrase))
        }
        None => Ok(()),
    }
}

/// Refuses a certificate whose names exceed the limits. No group is left out instead: an authorizer may deny by it.
pub(super) fn check_names(user: &User) -> Result<(), Refusal> {
    let phrase = match () {
        () if !is_name(&user.name, MAX_TEXT) => "the common name of the certificate",
        () if !user.groups.iter().all(|group| is_name(group, MAX_TEXT)) => "an organization of the certificate",
        () if user.groups.len() > MAX_GROUPS => {
            let phrase = "the certificate has more than 256 organizations";
            return Err(Refusal::with_phrase(RefusalReason::IdentityRefused, phrase));
        }
        () => return Ok(()),
    };
    let phrase = format!("{phrase} is empty, too long or not printable, or has a space at an end");
    Err(Refusal::with_phrase(RefusalReason::IdentityRefused, &phrase))
}

/// Refuses a credential and a certificate of different users: one of them may be stolen.
pub(super) fn check_same(user: &User, certified: &User) -> Result<(), Refusal> {
    if user.name == certified.name {
        return Ok(());
    }
    let phrase = format!(
        "the certificate is that of {}, the credential that of {}",
        brief(&certified.name),
        brief(&user.name)
    );
    Err(Refusal::with_phrase(RefusalReason::IdentityRefused, &phrase))
}

/// Returns a name for a phrase, cut after 64 characters. The refusal replaces characters that are not ASCII.
pub(super) fn brief(name: &str) -> String {
    match name.char_indices().nth(MAX_NAME) {
        Some((end, _)) => format!("{}...", name.get(..end).unwrap_or_default()),
        None => name.to_owned(),
    }
}

/// The interval at which the system clock is polled: a tunnel outlives its credential by at most
/// this interval if the clock is set.
const BETWEEN_CLOCK_LOOKS: Duration = Duration::from_secs(15);
/// The most bytes of a name or group of a certificate. An OIDC token has the same limit.
const MAX_TEXT: usize = 512;
/// 256 groups of a certificate, and the group of all users.
const MAX_GROUPS: usize = 257;
/// Characters of a name in a phrase. A Service and a namespace have 63 each at most.
const MAX_NAME: usize = 64;
