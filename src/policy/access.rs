//! Access control: proves the user of a request, decides whether that user may reach the target, and takes it back.
//!
//! A request brings its `Evidence`. [`Access::identify`] makes a `Subject` of it, [`Access::authorize`] decides about the
//! subject and a target. Whether the answer counts is the caller's: [`Mode`].

mod decide;
pub mod evidence;
mod grants;
pub mod oidc;
mod options;
pub mod passwords;
mod questions;
mod recheck;
mod reviewer;
pub mod tickets;
mod user;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;

use self::decide::{Basis, Rights};
use self::evidence::credential::Credential;
pub use self::evidence::{Evidence, Subject};
pub use self::grants::Grant;
use self::grants::Pairs;
use self::grants::recheck_queue::Due;
pub use self::options::{
    AtExpiry, Check, Cleartext, Issuer, Jwks, Kubernetes, Mode, Options, SecretName, TicketOptions,
};
use self::questions::Questions;
pub use self::reviewer::{Action, Change, Decision, Review, Reviewer, Unavailable, Verdict};
pub(crate) use self::tickets::watches::Watch;
pub use self::tickets::watches::Watches;
pub use self::user::{AUTHENTICATED, Method, User};
use crate::base::secret::Secret;
use crate::policy::allowlist::Target;
use crate::protocol::jwt::Jwt;
use crate::tunnel::metrics::Metrics;
use crate::tunnel::outcome::{Denial, Refusal};

/// What may prove users and decide about their rights.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The API server.
    pub reviewer: Option<Arc<dyn Reviewer>>,
    /// The OIDC issuers.
    pub issuers: Option<Arc<oidc::Issuers>>,
    /// The file of users.
    pub users: Option<Arc<passwords::Users>>,
    /// The tickets.
    pub tickets: Option<Arc<tickets::Tickets>>,
}

/// Decides about rights.
#[derive(Debug)]
pub struct Access {
    rules: ArcSwap<Rules>,
    questions: Arc<Questions>,
    pairs: Arc<Pairs>,
    due: Due,
    metrics: Metrics,
}

/// What is asked, and of what.
#[derive(Clone, Debug)]
struct Rules {
    options: Options,
    sources: Sources,
}

impl Sources {
    /// A credential as it is asked about: the password of a user that the file does not know is a token, whatever the user.
    /// Where there is a file, a text that no token looks like stays a password: a typing error in a name must not send
    /// the password that belongs to it to another server.
    fn normalized(&self, credential: &Credential) -> Credential {
        match (credential, self.password_name(credential)) {
            (Credential::Basic { password, .. }, None) => Credential::Bearer(password.clone()),
            (Credential::Basic { .. }, Some(_)) | (Credential::Bearer(_), _) => credential.clone(),
        }
    }

    /// The name with which a credential comes that is a password, whether or not the file has it: names are no oracle.
    fn password_name<'a>(&self, credential: &'a Credential) -> Option<&'a str> {
        let Credential::Basic { user, password } = credential else {
            return None;
        };
        let takes_tokens = self.reviewer.is_some() || self.issuers.is_some();
        let is_token = takes_tokens && is_like_a_token(password.expose());
        (self.users.is_some() && !is_token && self.ticket(credential).is_none()).then_some(user)
    }

    /// The tickets, and the hash of a credential that has the shape of one: as a token, or as the password of any user.
    /// Where tickets are accepted nothing else of that shape is, so that a wrong one costs no more than its hash.
    fn ticket(&self, credential: &Credential) -> Option<(&tickets::Tickets, tickets::Key)> {
        let tickets = self.tickets.as_deref()?;
        let (Credential::Basic { password: text, .. } | Credential::Bearer(text)) = credential;
        Some((tickets, tickets::Key::of(text)?))
    }

    /// Whether a token is for an OIDC issuer to judge, and not for the API server.
    fn is_of_issuer(&self, token: &Secret) -> bool {
        self.issuers.as_ref().is_some_and(|issuers| issuers.judges(token))
    }

    /// The verdict of a source in this process, on behalf of a client; `None` leaves it to the API server.
    async fn verify(&self, credential: &Credential, client: IpAddr) -> Option<Result<Verdict, Unavailable>> {
        match (credential, &self.users, &self.issuers) {
            (Credential::Basic { user, password }, Some(users), _) => Some(users.verify(user, password).await),
            (Credential::Bearer(token), _, Some(issuers)) => issuers.verify(token, client).await,
            (Credential::Basic { .. }, None, _) | (Credential::Bearer(_), _, None) => None,
        }
    }
}

/// Whether a text may be a token: a JWT, or as long as those of clouds are.
fn is_like_a_token(text: &str) -> bool {
    text.starts_with("eyJ") || text.len() >= 100
}

impl Rules {
    /// How long a yes counts while there is no answer.
    fn stale(&self) -> Duration {
        self.options.kubernetes.as_ref().map_or(Duration::ZERO, |own| own.stale)
    }

    /// The verdict on what needs no question: rubbish, and a token that says itself that it is not for now or not for here.
    /// That costs less than remembering it.
    fn refuse_at_sight(&self, credential: &Credential) -> Option<Verdict> {
        let Credential::Bearer(token) = credential else {
            return None;
        };
        if self.sources.reviewer.is_none() && self.sources.issuers.is_none() {
            return Some(Verdict::Refused(NO_SOURCE.into()));
        }
        let jwt = match Jwt::read(token.expose()) {
            Ok(jwt) => jwt?,
            Err(phrase) => return Some(Verdict::Refused(phrase)),
        };
        if let Some(phrase) = jwt.cut() {
            return Some(Verdict::Refused(phrase));
        }
        let is_of_issuer = |issuer: &Issuer| jwt.claims.text("iss") == Some(&*issuer.issuer);
        let audiences = match self.options.oidc.iter().find(|issuer| is_of_issuer(issuer)) {
            Some(issuer) => &issuer.audiences,
            None => &self.options.kubernetes.as_ref()?.audiences,
        };
        let refused = jwt.obviously_refused(SystemTime::now(), audiences);
        refused.map(|phrase| Verdict::Refused(phrase.into()))
    }
}

impl Access {
    /// Access by these rules.
    pub fn new(options: Options, sources: Sources, metrics: &Metrics) -> Arc<Self> {
        for method in METHODS {
            for result in RESULTS {
                metrics.access_requests.zero([method, result]);
            }
        }
        let pairs = Pairs::new();
        pairs.set_at_expiry(options.at_expiry);
        Arc::new(Self {
            rules: ArcSwap::from_pointee(Rules { options, sources }),
            questions: Questions::new(metrics),
            pairs,
            due: Due::new(metrics),
            metrics: metrics.clone(),
        })
    }

    /// Access of every client to every target of the allowlist.
    pub fn open(metrics: &Metrics) -> Arc<Self> {
        Self::new(Options::default(), Sources::default(), metrics)
    }

    /// Changes the rules. Tunnels that run are judged by them at once.
    pub fn apply(&self, options: Options, sources: Sources) {
        let at_expiry = options.at_expiry;
        self.rules.store(Arc::new(Rules { options, sources }));
        self.pairs.set_at_expiry(at_expiry);
        self.questions.memory.lock().forget();
        self.changed(&Change::Everywhere);
        self.user_lists_changed();
    }

    /// Whether it is asked at all, and whether the answer counts.
    pub fn mode(&self) -> Mode {
        self.rules.load().options.mode
    }

    /// Whether a target that a user may not reach is answered as one that is not on the allowlist. The time of the answer
    /// is not hidden: an unknown name needs no question to the API server.
    pub fn hides_names(&self) -> bool {
        self.rules.load().options.hide_names
    }

    /// The watches that take access back: a ticket opens no tunnel while one of them is late.
    pub fn watches(&self) -> Arc<Watches> {
        Arc::clone(&self.questions.watches)
    }

    /// The user of a request.
    ///
    /// # Errors
    /// Why it is of none that is known here.
    pub async fn identify(&self, evidence: Evidence<'_>) -> Result<Subject, Denial> {
        let rules = self.rules.load_full();
        let presented = evidence.credential.as_ref().and_then(|read| read.as_ref().ok());
        let name = presented.and_then(|credential| rules.sources.password_name(credential));
        let method = name.map_or(NO_METHOD, |_| Method::Password.label());
        let identified = self.subject(&rules, evidence).await;
        if let Err(denial) = &identified {
            self.metrics.access_requests.count([method, denial.refusal.label()]);
        }
        identified
    }

    /// The user of the file for whom a credential claims to be the password; `None` for a name that is no user's.
    pub fn claimed_user(&self, credential: &Credential) -> Option<Box<str>> {
        let sources = &self.rules.load().sources;
        let name = sources.password_name(credential)?;
        let is_known = sources.users.as_ref().is_some_and(|users| users.contains(name));
        is_known.then(|| name.into())
    }

    async fn subject(&self, rules: &Arc<Rules>, mut evidence: Evidence<'_>) -> Result<Subject, Denial> {
        if let Err(refusal) = evidence.check_transport(rules.options.cleartext) {
            if evidence.credential.is_some() {
                self.metrics.access_burnt.inc();
            }
            return Err(refusal.into());
        }
        let knows_certificates = rules.options.kubernetes.as_ref().is_some_and(|own| own.certificates);
        let certified = match knows_certificates {
            true => evidence.certified()?,
            false => None,
        };
        let proof = match evidence.take_credential()? {
            Some(credential) => {
                let client = evidence.client;
                if !self.questions.allows_guess(rules, &credential, client) {
                    return Err(Refusal::GuessRate.into());
                }
                let verdict = self.questions.verdict(rules, &credential, client).await;
                let user = match verdict {
                    Ok(Verdict::Proved(user)) => user,
                    Ok(Verdict::Refused(phrase)) => {
                        return Err(Denial::with_phrase(Refusal::CredentialsRefused, &phrase));
                    }
                    Err(_) => return Err(Refusal::AccessUnknown.into()),
                };
                evidence::check(&user)?;
                if let Some(certified) = &certified {
                    evidence::check_same(&user, certified)?;
                }
                (user, Some(credential))
            }
            None => (Arc::new(certified.clone().ok_or(Refusal::CredentialsRequired)?), None),
        };
        let (user, credential) = proof;
        let of_certificate = certified.as_ref().and_then(|certified| certified.expires);
        let expires = user.expires.into_iter().chain(of_certificate).min();
        let certificate = evidence.peer.filter(|_| certified.is_some()).cloned();
        let digest = self
            .questions
            .key
            .subject(&user, credential.as_ref(), certificate.as_deref());
        Ok(Subject {
            expires: expires.map(questions::memory::instant),
            user,
            credential,
            certificate,
            client: evidence.client,
            digest,
        })
    }

    /// Decides whether the subject may reach the target: the one that is dialled, by whatever name it was asked for.
    ///
    /// # Errors
    /// [`Refusal::NotAuthorized`], or [`Refusal::AccessUnknown`].
    pub async fn authorize(&self, subject: &Subject, target: &Arc<Target>) -> Result<Grant, Denial> {
        let rules = self.rules.load_full();
        // Before the question: what is taken back meanwhile is taken back of this pair, too.
        let pair = self.pairs.pair(subject, target);
        let decided = match tickets::check::check_ticket(&rules, subject, target) {
            Ok(()) => self.right(&rules, subject, target).await,
            Err(denial) => Err(denial),
        };
        let result = match &decided {
            Ok(_) => ALLOWED,
            Err(denial) => denial.refusal.label(),
        };
        self.metrics
            .access_requests
            .count([subject.user.method.label(), result]);
        Ok(Grant::new(pair, decided?))
    }

    /// Why the subject may reach the target.
    async fn right(&self, rules: &Arc<Rules>, subject: &Subject, target: &Target) -> Result<Box<str>, Denial> {
        let rights = Rights::of(&subject.user, target);
        match rights.basis(rules.options.kubernetes.as_ref()) {
            Basis::Lists(true) => Ok(decide::BY_LIST.into()),
            Basis::Lists(false) => Err(rights.unlisted()),
            Basis::Nothing => Err(rights.unreachable()),
            Basis::Ask(action) => {
                let right = (&subject.user, &action);
                match self.questions.decision(rules, right, subject.client).await {
                    Ok(Decision {
                        allowed: true, reason, ..
                    }) => Ok(reason),
                    Ok(Decision { allowed: false, .. }) => Err(rights.missing(&action)),
                    Err(_) => Err(Refusal::AccessUnknown.into()),
                }
            }
        }
    }
}

const NO_SOURCE: &str = "the credential is none that is accepted here";
const NO_METHOD: &str = "none";
const ALLOWED: &str = "allowed";
/// The values of the label `method`.
const METHODS: [&str; 6] = [NO_METHOD, "token_review", "oidc", "password", "ticket", "certificate"];
/// The values of the label `result`.
const RESULTS: [&str; 8] = [
    ALLOWED,
    "credentials_required",
    "credentials_refused",
    "guess_rate",
    "credentials_in_clear",
    "identity_refused",
    "not_authorized",
    "access_unknown",
];

#[cfg(test)]
mod test_support;
#[cfg(test)]
mod tests;
