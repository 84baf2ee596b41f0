//! A scripted API server, and users, for the unit tests of this folder.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::{AUTHENTICATED, Action, Decision, Method, NoAnswer, Review, ReviewError, Reviewer, User, Verdict};
use crate::base::secret::Secret;
use crate::protocol::jwt::Jwt;

type AnswerToken = Box<dyn Fn(&str) -> Result<Verdict, ReviewError> + Send + Sync>;
type AnswerAccess = Box<dyn Fn(&User, &Action) -> Result<Decision, ReviewError> + Send + Sync>;

/// A reviewer that answers by functions, and counts its reviews.
pub(super) struct Script {
    pub(super) token: Mutex<AnswerToken>,
    pub(super) access: Mutex<AnswerAccess>,
    pub(super) tokens: AtomicUsize,
    pub(super) accesses: AtomicUsize,
    /// The milliseconds until an answer.
    pub(super) delay: AtomicUsize,
    pub(super) at_once: AtomicUsize,
    pub(super) most_at_once: AtomicUsize,
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Script")
    }
}

impl Script {
    /// Every token is the name of its user, and every user may do everything.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            token: Mutex::new(Box::new(|token| Ok(Verdict::Authenticated(Arc::new(user(token)))))),
            access: Mutex::new(Box::new(|_, _| Ok(decision(true)))),
            tokens: AtomicUsize::new(0),
            accesses: AtomicUsize::new(0),
            delay: AtomicUsize::new(1),
            at_once: AtomicUsize::new(0),
            most_at_once: AtomicUsize::new(0),
        })
    }

    pub(super) fn set_access(
        &self,
        answer: impl Fn(&User, &Action) -> Result<Decision, ReviewError> + Send + Sync + 'static,
    ) {
        *self.access.lock() = Box::new(answer);
    }

    pub(super) fn set_token(&self, answer: impl Fn(&str) -> Result<Verdict, ReviewError> + Send + Sync + 'static) {
        *self.token.lock() = Box::new(answer);
    }

    /// Answers nothing any more.
    pub(super) fn fail(&self) {
        self.set_access(|_, _| Err(away()));
        self.set_token(|_| Err(away()));
    }

    pub(super) fn asked(&self) -> usize {
        self.tokens.load(Ordering::Relaxed) + self.accesses.load(Ordering::Relaxed)
    }

    async fn wait(&self) {
        let now = self.at_once.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_at_once.fetch_max(now, Ordering::Relaxed);
        let delay = u64::try_from(self.delay.load(Ordering::Relaxed)).unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(delay)).await;
        self.at_once.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Reviewer for Script {
    fn review_token<'a>(&'a self, token: &'a Secret, _jwt: Option<&'a Jwt>) -> Review<'a, Verdict> {
        Box::pin(async move {
            self.tokens.fetch_add(1, Ordering::Relaxed);
            self.wait().await;
            (self.token.lock())(token.expose())
        })
    }

    fn review_access<'a>(&'a self, user: &'a User, action: &'a Action) -> Review<'a, Decision> {
        Box::pin(async move {
            self.accesses.fetch_add(1, Ordering::Relaxed);
            self.wait().await;
            (self.access.lock())(user, action)
        })
    }
}

/// Returns the failure of a server that is away.
pub(super) fn away() -> ReviewError {
    ReviewError::new(NoAnswer::Silence, "no answer")
}

pub(super) fn decision(allowed: bool) -> Decision {
    Decision {
        allowed,
        complete: true,
        reason: "because".into(),
    }
}

pub(super) fn user(name: &str) -> User {
    User {
        name: name.into(),
        uid: Some(format!("uid-{name}").into()),
        groups: vec![AUTHENTICATED.into()],
        extra: BTreeMap::new(),
        method: Method::TokenReview,
        expires: None,
    }
}
