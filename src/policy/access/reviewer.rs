//! The two reviews of the API server: which user does a token prove, and may that user reach a target?

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde::Serialize;

use super::options::Permission;
use super::user::User;
use crate::base::secret::Secret;
use crate::protocol::jwt::Jwt;

/// Sends reviews to the API server. Each has a deadline of its own; none is repeated or cached here.
pub trait Reviewer: fmt::Debug + Send + Sync {
    /// Reviews which user a token proves: a `TokenReview` of `authentication.k8s.io/v1`. `jwt` has its claims, if it is a JWT.
    fn review_token<'a>(&'a self, token: &'a Secret, jwt: Option<&'a Jwt>) -> Review<'a, Verdict>;

    /// Reviews whether the user may take the action: a `SubjectAccessReview` of `authorization.k8s.io/v1`.
    fn review_access<'a>(&'a self, user: &'a User, action: &'a Action) -> Review<'a, Decision>;
}

/// The answer to a review, or the reason why there is none.
pub type Review<'a, T> = Pin<Box<dyn Future<Output = Result<T, ReviewError>> + Send + 'a>>;

/// The result of an authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The credential proves this user.
    Authenticated(Arc<User>),
    /// It proves none. The sentence is for the client, and holds no part of the credential.
    Rejected(Box<str>),
}

/// The result of an authorization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// True if it is allowed.
    pub allowed: bool,
    /// True if the answer is complete: without an `evaluationError`. An incomplete denial ends no running tunnel.
    pub complete: bool,
    /// The reason, such as the binding that allows it; for the access log.
    pub reason: Box<str>,
}

impl Decision {
    /// Returns whether the answer is final: an approval, or a complete denial.
    pub(super) fn is_sure(&self) -> bool {
        self.allowed || self.complete
    }
}

/// The right that a user needs for a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub enum Right {
    /// To open tunnels to it.
    #[default]
    Connect,
    /// To serve it, as an anchor that dials in, and so sees the target's logins.
    Serve,
}

/// The action of a user (`ResourceAttributes` of `authorization.k8s.io/v1`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Action {
    /// The permission, such as `create services/ssh`.
    #[serde(flatten)]
    pub permission: Permission,
    /// The namespace of the target.
    pub namespace: Box<str>,
    /// The name of the object, as [`NamedObject`](super::NamedObject) says; empty for every object of the namespace.
    pub name: Box<str>,
}

/// Prints `create services/ssh of team-a/devbox`, as the answer to a user without that right.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let permission = &self.permission;
        write!(f, "{} {}", permission.verb, permission.resource)?;
        if !permission.subresource.is_empty() {
            write!(f, "/{}", permission.subresource)?;
        }
        if !permission.group.is_empty() {
            write!(f, ".{}", permission.group)?;
        }
        write!(f, " of {}", self.namespace)?;
        match &*self.name {
            "" => Ok(()),
            name => write!(f, "/{name}"),
        }
    }
}

/// A change in the cluster that may change the answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A cluster-wide role or binding, or an unknown change.
    Everywhere,
    /// A role or binding of this namespace.
    Namespace(Box<str>),
    /// The user of this id was deleted: a ServiceAccount.
    UserDeleted(Box<str>),
}

/// The ways to have no answer. Only the silence of the API server lets an earlier approval count: all else is a limit or a
/// fault of switchboard itself, or an answer. Clients can bring some of that about, and none may regain a lost right by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The API server cannot be reached.
    Unreachable,
    /// The API server was asked, and has failed to give a whole and valid answer in time.
    Silence,
    /// The API server has answered that it takes no review from switchboard: 4xx, or the wait that it asked for is not over.
    Refused,
    /// Something else that the review needs is missing, such as keys, tickets or switchboard's own credentials.
    Unavailable,
    /// A queue is full, or the request was evicted from it or has waited too long.
    Busy,
    /// The network or the name has used up its guesses.
    GuessRate,
}

impl NoAnswer {
    /// Returns whether the API server was asked, and has given no answer.
    pub fn is_silence(self) -> bool {
        matches!(self, Self::Unreachable | Self::Silence)
    }
}

/// Why a review has no answer. It is never taken for a denial.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ReviewError {
    /// The way, by which the caller decides.
    pub kind: NoAnswer,
    /// The failure in words, for the operator.
    pub message: Box<str>,
}

impl ReviewError {
    /// Creates a failure of that kind, in these words.
    pub(crate) fn new(kind: NoAnswer, message: impl Into<Box<str>>) -> Self {
        let message = message.into();
        Self { kind, message }
    }
}

/// Returns the error for too many reviews at once, of one network or of all.
pub(super) fn busy() -> ReviewError {
    ReviewError::new(NoAnswer::Busy, "too many reviews at once")
}
