//! Who may go where: proves the user of a request, decides whether that user may reach the target, and takes it back.
//!
//! A request brings its `Evidence`. [`Access::identify`] makes a `Subject` of it, [`Access::authorize`] decides about the
//! subject and a target. Whether the answer counts is the caller's: [`Mode`].

mod decide;
mod evidence;
pub mod oidc;
mod options;
pub mod passwords;
mod reviewer;
pub mod token;
mod user;

use std::sync::Arc;

use arc_swap::ArcSwap;

use self::decide::{Basis, Rights};
pub use self::evidence::{Evidence, Subject};
pub use self::options::{AtExpiry, Check, Cleartext, Issuer, Jwks, Kubernetes, Mode, Options, Tickets};
pub use self::reviewer::{Action, Change, Decision, Review, Reviewer, Unavailable, Verdict};
pub use self::user::{AUTHENTICATED, Method, User};
use crate::allowlist::Target;
use crate::credential::Credential;
use crate::metrics::Metrics;
use crate::outcome::{Denial, Refusal};

/// What may prove users and decide about their rights.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The API server.
    pub reviewer: Option<Arc<dyn Reviewer>>,
}

/// Decides who may go where.
#[derive(Debug)]
#[expect(dead_code, reason = "for taking it back")]
pub struct Access {
    rules: ArcSwap<Rules>,
    metrics: Metrics,
}

/// What is asked, and of what.
#[derive(Clone, Debug)]
struct Rules {
    options: Options,
    sources: Sources,
}

/// The right of a user to reach a target.
#[derive(Debug)]
pub struct Grant {
    /// Why, in the words of what decided; for the access log.
    pub reason: Box<str>,
}

impl Access {
    /// Access by these rules.
    pub fn new(options: Options, sources: Sources, metrics: &Metrics) -> Arc<Self> {
        Arc::new(Self {
            rules: ArcSwap::from_pointee(Rules { options, sources }),
            metrics: metrics.clone(),
        })
    }

    /// Access of every client to every target of the allowlist.
    pub fn open(metrics: &Metrics) -> Arc<Self> {
        Self::new(Options::default(), Sources::default(), metrics)
    }

    /// Changes the rules.
    pub fn apply(&self, options: Options, sources: Sources) {
        self.rules.store(Arc::new(Rules { options, sources }));
    }

    /// Whether it is asked at all, and whether the answer counts.
    pub fn mode(&self) -> Mode {
        self.rules.load().options.mode
    }

    /// Whether a target that a user may not reach is answered as one that is not on the allowlist.
    pub fn hides_names(&self) -> bool {
        self.rules.load().options.hide_names
    }

    /// The user of a request.
    ///
    /// # Errors
    /// Why it is of none that is known here.
    pub async fn identify(&self, mut evidence: Evidence<'_>) -> Result<Subject, Denial> {
        let rules = self.rules.load_full();
        evidence.check_transport(rules.options.cleartext)?;
        let knows_certificates = rules.options.kubernetes.as_ref().is_some_and(|own| own.certificates);
        let certified = match knows_certificates {
            true => evidence.certified()?,
            false => None,
        };
        let Some(credential) = evidence.take_credential()? else {
            let user = certified.ok_or(Refusal::CredentialsRequired)?;
            return Ok(evidence.subject(Arc::new(user), None));
        };
        let user = self.prove(&rules, &credential).await?;
        evidence::check(&user)?;
        if let Some(certified) = certified {
            evidence::check_same(&user, &certified)?;
        }
        Ok(evidence.subject(user, Some(credential)))
    }

    async fn prove(&self, rules: &Rules, credential: &Credential) -> Result<Arc<User>, Denial> {
        let token = match credential {
            Credential::Basic { password, .. } => password,
            Credential::Bearer(token) => token,
        };
        let Some(reviewer) = &rules.sources.reviewer else {
            return Err(Refusal::CredentialsRefused.into());
        };
        match reviewer.review_token(token).await {
            Ok(Verdict::Proved(user)) => Ok(user),
            Ok(Verdict::Refused(phrase)) => Err(Denial::with_phrase(Refusal::CredentialsRefused, &phrase)),
            Err(_) => Err(Refusal::AccessUnknown.into()),
        }
    }

    /// Decides whether the subject may reach the target: the one that is dialled, by whatever name it was asked for.
    ///
    /// # Errors
    /// [`Refusal::NotAuthorized`], or [`Refusal::AccessUnknown`].
    pub async fn authorize(&self, subject: &Subject, target: &Arc<Target>) -> Result<Grant, Denial> {
        let rules = self.rules.load_full();
        let rights = Rights::of(&subject.user, target);
        let action = match rights.basis(rules.options.kubernetes.as_ref()) {
            Basis::Lists(true) => {
                return Ok(Grant {
                    reason: decide::BY_LIST.into(),
                });
            }
            Basis::Lists(false) => return Err(rights.unlisted()),
            Basis::Nothing => return Err(rights.unreachable()),
            Basis::Ask(action) => action,
        };
        let Some(reviewer) = &rules.sources.reviewer else {
            return Err(rights.unreachable());
        };
        match reviewer.review_access(&subject.user, &action).await {
            Ok(Decision {
                allowed: true, reason, ..
            }) => Ok(Grant { reason }),
            Ok(Decision { allowed: false, .. }) => Err(rights.missing(&action)),
            Err(_) => Err(Refusal::AccessUnknown.into()),
        }
    }
}
