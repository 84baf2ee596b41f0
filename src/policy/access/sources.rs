//! The configuration of access control, and the source that checks a credential.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::credentials::credential::Credential;
use super::oidc::{Issuers, Verifier};
use super::options::{Options, Permission};
use super::passwords::PasswordFile;
use super::reviewer::{Action, Reviewer, Right};
use super::tickets::{Key, Tickets};
use super::user::Method;
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
    /// A name and a public key.
    UserKeys(Arc<PasswordFile>, Box<str>, Arc<HostKey>),
    Issuer(Arc<Verifier>, Arc<Jwt>),
    /// A token, and its claims if it is a JWT.
    ApiServer(Arc<dyn Reviewer>, Secret, Option<Arc<Jwt>>),
    /// It proves no user, for this reason. Finding that out costs less than caching it.
    Refused(Box<str>),
}

impl Sources {
    /// Returns the credential in the form in which it is checked. A password becomes a token, whatever the user name,
    /// if there is no file of users, or if it has the form of a ticket or of an accepted token. Any other password
    /// remains one, even if the file lacks the name: a misspelt name must not send a password to the API server.
    pub(super) fn normalize(&self, credential: Credential) -> Credential {
        match credential {
            Credential::Basic { password, .. } if !self.takes_password(&password) => Credential::Bearer(password),
            credential @ (Credential::Basic { .. } | Credential::Bearer(_) | Credential::PublicKey { .. }) => {
                credential
            }
        }
    }

    /// Returns the user name of a credential that is a password or a public key, and the method, even if the file lacks the
    /// name, which the answer must not reveal.
    pub(super) fn claim<'a>(&self, credential: &'a Credential) -> Option<(&'a str, Method)> {
        match credential {
            Credential::Basic { user, password } => self.takes_password(password).then_some((user, Method::Password)),
            Credential::PublicKey { user, .. } => Some((user, Method::PublicKey)),
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

    /// Returns the tickets, and the hash of a string that has the shape of a ticket. Such a string is checked as
    /// nothing else, so a wrong ticket costs no more than its hash.
    pub(super) fn ticket(&self, text: &Secret) -> Option<(&Arc<Tickets>, Key)> {
        Some((self.tickets.as_ref()?, Key::from_ticket(text)?))
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
            (Credential::PublicKey { user, key }, Some(users)) => {
                return Source::UserKeys(Arc::clone(users), user.clone(), Arc::clone(key));
            }
            (Credential::Basic { .. } | Credential::PublicKey { .. }, None) => {
                return Source::Refused(NO_SOURCE.into());
            }
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
/// The interval of rechecks without `access.kubernetes`.
const FALLBACK: Duration = Duration::from_mins(5);
