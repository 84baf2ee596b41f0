//! The configuration of access control, and the source that checks a credential.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::credentials::credential::Credential;
use super::files::passwords::key_secret::KeySecret;
use super::files::passwords::{PasswordFile, UNKNOWN_KEY};
use super::files::ssh_authorities::{SshAuthorities, UNKNOWN_AUTHORITY};
use super::oidc::{Issuers, Verifier};
use super::options::{Options, Permission};
use super::reviewer::{Action, NoAnswer, ReviewError, Reviewer, Right, Verdict};
use super::tickets::{Key, Tickets};
use super::user::{Method, User};
use crate::base::secret::Secret;
use crate::policy::allowlist::Target;
use crate::protocol::host_key::HostKey;
use crate::protocol::jwt::Jwt;

/// The sources that authenticate users and decide about their rights.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The API server.
    pub reviewer: Option<Arc<dyn Reviewer>>,
    /// The OIDC issuers.
    pub issuers: Option<Arc<Issuers>>,
    /// The file of users.
    pub users: Option<Arc<PasswordFile>>,
    /// The public keys in the cluster.
    pub key_secret: Option<Arc<KeySecret>>,
    /// The authorities of SSH certificates.
    pub ssh_authorities: Option<Arc<SshAuthorities>>,
    /// The tickets.
    pub tickets: Option<Arc<Tickets>>,
}

/// The options, and the sources.
#[derive(Clone, Debug)]
pub(super) struct AccessConfig {
    pub(super) options: Options,
    pub(super) sources: Sources,
}

/// The source that checks a credential, and the credential as the source needs it.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Tickets(Arc<Tickets>, Key),
    /// A name and a password.
    Users(Arc<PasswordFile>, Box<str>, Secret),
    /// A public key or certificate of SSH, of which nothing is cached.
    Ssh,
    Issuer(Arc<Verifier>, Arc<Jwt>),
    /// A token, and its claims if it is a JWT.
    ApiServer(Arc<dyn Reviewer>, Secret, Option<Arc<Jwt>>),
    /// It proves no user, for this reason. Finding that out costs less than caching it.
    Refused(Box<str>),
}

/// Why a public key or certificate of SSH proves no user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotProved {
    /// For this reason.
    Refused(&'static str),
    /// A file that decides has not been read yet.
    Unread,
}

impl Sources {
    /// Returns the credential in the form in which it is checked. A password becomes a token, whatever the user name,
    /// if there is no file of users, or if it has the form of a ticket or of an accepted token. Any other password
    /// remains one, even if the file lacks the name: a misspelt name must not send a password to the API server.
    pub(super) fn normalize(&self, credential: Credential) -> Credential {
        match &credential {
            Credential::Basic { password, .. } if !self.takes_password(password) => {
                Credential::Bearer(password.clone())
            }
            Credential::Basic { .. }
            | Credential::Bearer(_)
            | Credential::PublicKey { .. }
            | Credential::SshCertificate { .. } => credential,
        }
    }

    /// Returns the user name of a credential that is a password, a public key or a certificate of SSH, and the method, even if
    /// the file lacks the name, which the answer must not reveal.
    pub(super) fn claim<'a>(&self, credential: &'a Credential) -> Option<(&'a str, Method)> {
        match credential {
            Credential::Basic { user, password } => self.takes_password(password).then_some((user, Method::Password)),
            Credential::PublicKey { user, .. } => Some((user, Method::PublicKey)),
            Credential::SshCertificate { user, .. } => Some((user, Method::SshCertificate)),
            Credential::Bearer(_) => None,
        }
    }

    fn takes_password(&self, password: &Secret) -> bool {
        let is_token = self.accepts_tokens() && is_like_a_token(password.expose());
        self.users.is_some() && !is_token && self.ticket(password).is_none()
    }

    fn accepts_tokens(&self) -> bool {
        self.reviewer.is_some() || self.issuers.is_some()
    }

    /// Returns the verdict on a public key or certificate of SSH, whose signatures are verified. It costs a few comparisons. If
    /// the Secret of keys `is_out_of_date`, none of it proves a user.
    ///
    /// # Errors
    /// A file that decides has not been read yet, or the Secret is not known as it is now.
    pub(super) fn verify_ssh(
        &self,
        credential: &Credential,
        client: IpAddr,
        is_out_of_date: bool,
    ) -> Result<Verdict, ReviewError> {
        let now = match credential {
            Credential::PublicKey { user, key } if is_out_of_date && self.key_secret.is_some() => {
                let of_file = self.user_in_file(user, key, client).and_then(Result::ok);
                of_file.filter(|user| !user.has_expired()).ok_or(NotProved::Unread)
            }
            Credential::PublicKey { .. }
            | Credential::SshCertificate { .. }
            | Credential::Basic { .. }
            | Credential::Bearer(_) => self.ssh_user(credential, client),
        };
        match now {
            Ok(user) if user.has_expired() => Ok(Verdict::Rejected(EXPIRED_KEY.into())),
            Ok(user) => Ok(Verdict::Authenticated(user.into())),
            Err(NotProved::Refused(phrase)) => Ok(Verdict::Rejected(phrase.into())),
            Err(NotProved::Unread) => Err(ReviewError::new(
                NoAnswer::Unavailable,
                "the keys of users are not known now",
            )),
        }
    }

    /// Returns the user that a public key or certificate of SSH proves now, or would if it had not expired.
    pub(super) fn ssh_user(&self, credential: &Credential, client: IpAddr) -> Result<User, NotProved> {
        match credential {
            Credential::PublicKey { user, key } => {
                // Of equal weights the last one counts.
                let both = [
                    self.user_in_secret(user, key, client),
                    self.user_in_file(user, key, client),
                ];
                let known = both.into_iter().flatten().max_by_key(weight);
                known.unwrap_or(Err(NotProved::Refused(NO_SOURCE)))
            }
            Credential::SshCertificate { user, certificate } => {
                let file = self
                    .ssh_authorities
                    .as_ref()
                    .ok_or(NotProved::Refused(UNKNOWN_AUTHORITY))?;
                let authorities = file.contents().ok_or(NotProved::Unread)?;
                let checked = authorities.check(user, certificate, client);
                checked.map_err(NotProved::Refused)?;
                self.with_groups(Method::SshCertificate, &file.full_name(user), certificate.expires())
            }
            Credential::Basic { .. } | Credential::Bearer(_) => Err(NotProved::Refused(NO_SOURCE)),
        }
    }

    fn user_in_file(&self, user: &str, key: &HostKey, client: IpAddr) -> Option<Result<User, NotProved>> {
        let users = self.users.as_ref()?;
        Some(match users.is_loaded() {
            true => users.user_of_key(user, key, client).map_err(NotProved::Refused),
            false => Err(NotProved::Unread),
        })
    }

    fn user_in_secret(&self, user: &str, key: &HostKey, client: IpAddr) -> Option<Result<User, NotProved>> {
        let secret = self.key_secret.as_ref()?;
        if !secret.is_listed() {
            return Some(Err(NotProved::Unread));
        }
        let expires = secret.expiry(user, key, client).map_err(NotProved::Refused);
        Some(expires.and_then(|expires| self.with_groups(Method::PublicKey, &secret.full_name(user), expires)))
    }

    /// Returns a user with the groups that the file of users gives the name.
    fn with_groups(&self, method: Method, name: &str, expires: Option<SystemTime>) -> Result<User, NotProved> {
        let groups = match &self.users {
            // An authorizer may deny by a group.
            Some(users) if !users.is_loaded() => return Err(NotProved::Unread),
            Some(users) => users.groups(name),
            None => Vec::new(),
        };
        Ok(User::claimed(method, name, groups, expires))
    }

    /// Returns whether a user may have a key or certificate of SSH.
    pub(super) fn has_keys(&self) -> bool {
        let in_secret = self.key_secret.as_ref().is_some_and(|secret| secret.has_keys());
        in_secret || self.users.as_ref().is_some_and(|users| users.has_keys()) || self.has_authorities()
    }

    /// Returns whether certificates of SSH are accepted.
    pub(super) fn has_authorities(&self) -> bool {
        self.ssh_authorities.as_ref().is_some_and(|file| !file.is_empty())
    }

    /// Returns the tickets, and the hash of a string that has the shape of a ticket. Such a string is checked as
    /// nothing else, so a wrong ticket costs no more than its hash.
    pub(super) fn ticket(&self, text: &Secret) -> Option<(&Arc<Tickets>, Key)> {
        Some((self.tickets.as_ref()?, Key::from_ticket(text)?))
    }
}

/// Returns which of two answers about a key counts: that of the greater weight.
fn weight(answer: &Result<User, NotProved>) -> u8 {
    match answer {
        Ok(user) if !user.has_expired() => 4,
        Err(NotProved::Unread) => 3,
        Ok(_) => 2,
        Err(NotProved::Refused(reason)) => u8::from(*reason != UNKNOWN_KEY),
    }
}

/// Returns whether a string may be a token: it is a JWT, or as long as the tokens of clouds.
fn is_like_a_token(text: &str) -> bool {
    text.starts_with("eyJ") || text.len() >= 100
}

impl AccessConfig {
    /// Returns how long an approval counts while there is no answer.
    pub(super) fn stale(&self) -> Duration {
        self.options.kubernetes.as_ref().map_or(Duration::ZERO, |own| own.stale)
    }

    /// Returns the interval of rechecks.
    pub(super) fn recheck(&self) -> Duration {
        self.options.kubernetes.as_ref().map_or(FALLBACK, |own| own.recheck)
    }

    /// Returns whether a client certificate proves a user.
    pub(super) fn accepts_certificates(&self) -> bool {
        self.options.kubernetes.as_ref().is_some_and(|own| own.certificates)
    }

    /// Returns the one source that checks a [normalized](Sources::normalize) credential.
    pub(super) fn source(&self, credential: &Credential) -> Source {
        let sources = &self.sources;
        let token = match (credential, &sources.users) {
            (Credential::Basic { user, password }, Some(users)) => {
                return Source::Users(Arc::clone(users), user.clone(), password.clone());
            }
            (Credential::PublicKey { .. } | Credential::SshCertificate { .. }, _) => return Source::Ssh,
            (Credential::Basic { .. }, None) => return Source::Refused(NO_SOURCE.into()),
            (Credential::Bearer(token), _) => token,
        };
        if let Some((tickets, key)) = sources.ticket(token) {
            return Source::Tickets(Arc::clone(tickets), key);
        }
        if !sources.accepts_tokens() {
            return Source::Refused(NO_SOURCE.into());
        }
        let jwt = match Jwt::read(token.expose()) {
            Ok(jwt) => jwt.map(Arc::new),
            Err(phrase) => return Source::Refused(phrase),
        };
        let verifier = jwt.as_ref().and_then(|jwt| sources.issuers.as_ref()?.verifier(jwt));
        if let Some(phrase) = jwt.as_ref().and_then(|jwt| self.obviously_refused(jwt, verifier)) {
            return Source::Refused(phrase);
        }
        match (verifier, jwt, &sources.reviewer) {
            (Some(verifier), Some(jwt), _) => Source::Issuer(Arc::clone(verifier), jwt),
            (_, jwt, Some(reviewer)) => Source::ApiServer(Arc::clone(reviewer), token.clone(), jwt),
            (_, _, None) => Source::Refused(NO_SOURCE.into()),
        }
    }

    /// Returns why a token is refused without a review: it was cut, or its claims name another time or audience.
    fn obviously_refused(&self, jwt: &Jwt, verifier: Option<&Arc<Verifier>>) -> Option<Box<str>> {
        let audiences = match verifier {
            Some(verifier) => Some(&verifier.issuer.audiences),
            None => self.options.kubernetes.as_ref().map(|own| &own.audiences),
        };
        let refused = || jwt.obviously_refused(SystemTime::now(), audiences?);
        jwt.cut().or_else(|| refused().map(Into::into))
    }

    /// Returns the action to review for a target; `None` without the API server, or for a static target, which is no
    /// object of the cluster even if a Service has its name.
    pub(super) fn action(&self, target: &Target, right: Right) -> Option<Action> {
        let own = self.options.kubernetes.as_ref().filter(|_| !target.id().is_static())?;
        let permission = match right {
            Right::Connect => own.permission.clone(),
            Right::Serve => Permission::anchor(),
        };
        let (permission, name) = permission.for_target(target);
        Some(Action {
            namespace: target.id().namespace.clone(),
            name,
            permission,
        })
    }
}

/// The answer to a credential of a kind that is not accepted.
pub(super) const NO_SOURCE: &str = "the credential is of no kind that is accepted here";
/// The answer to a key or certificate that has expired.
pub(super) const EXPIRED_KEY: &str = "the key or its certificate has expired";
/// The interval of rechecks without `access.kubernetes`.
const FALLBACK: Duration = Duration::from_mins(5);
