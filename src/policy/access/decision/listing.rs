//! Decides which of many targets a user may reach, by few reviews: of the whole cluster, then of each namespace, and of single
//! names only where these do not decide and few are left.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::time::{Instant, timeout_at};

use super::{AccessDecider, NotAllowed, action, local_user};
use crate::policy::access::credentials::Subject;
use crate::policy::access::reviewer::{Action, Right};
use crate::policy::access::reviews::{ReviewContext, ReviewMode};
use crate::policy::allowlist::Target;

/// Targets, as far as local knowledge decides about them.
#[derive(Debug)]
pub struct Candidates {
    allowed: Vec<Arc<Target>>,
    /// Those that a review decides about, by the action on their whole namespace.
    undecided: HashMap<Action, Vec<(Action, Arc<Target>)>>,
    /// The number of those about which nothing can be known now.
    unknown: usize,
}

/// Why a list of reachable targets is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListingLimit {
    /// So many targets would have needed a review each.
    Reviews(usize),
    /// So many targets have no decision: the source of rights has not answered in time.
    Unanswered(usize),
}

/// Returns the action on all objects of the namespace: an empty name is every one of them (`ResourceAttributes` of
/// `authorization.k8s.io/v1`).
fn in_namespace(action: &Action) -> Action {
    Action {
        name: Box::default(),
        ..action.clone()
    }
}

/// Returns the action on all objects of the cluster: an empty namespace is all of them.
fn in_cluster(action: &Action) -> Action {
    Action {
        namespace: Box::default(),
        ..in_namespace(action)
    }
}

impl AccessDecider {
    /// Decides by local knowledge.
    pub(in crate::policy::access) fn candidates(&self, subject: &Subject, targets: Vec<Arc<Target>>) -> Candidates {
        let config = self.config.load();
        let (mut allowed, mut undecided, mut unknown) = (Vec::new(), HashMap::<_, Vec<_>>::new(), 0);
        for target in targets {
            let user = local_user(&config, subject, &target, ReviewMode::Login);
            match user.and_then(|user| action(&config, &user, &target, Right::Connect)) {
                Ok(None) => allowed.push(target),
                Ok(Some(action)) => undecided
                    .entry(in_namespace(&action))
                    .or_default()
                    .push((action, target)),
                Err(NotAllowed::Unknown) => unknown += 1,
                Err(NotAllowed::Denied(_) | NotAllowed::DeniedLocally(_)) => {}
            }
        }
        Candidates {
            allowed,
            undecided,
            unknown,
        }
    }

    /// Returns the candidates that the subject may reach, after at most [`LISTING_TIMEOUT`], and why some may be missing.
    pub(in crate::policy::access) async fn reachable(
        &self,
        subject: &Subject,
        candidates: Candidates,
    ) -> (Vec<Arc<Target>>, Option<ListingLimit>) {
        let Candidates {
            mut allowed,
            mut undecided,
            mut unknown,
        } = candidates;
        let deadline = Instant::now() + LISTING_TIMEOUT;
        for widen in [in_cluster, in_namespace] {
            let actions: HashSet<_> = undecided.keys().map(widen).collect();
            let decisions = self.review_all(subject, actions, deadline).await;
            let granted = undecided.extract_if(|action, _| decisions.get(&widen(action)) == Some(&true));
            allowed.extend(granted.flat_map(|(_, members)| members).map(|(_, target)| target));
        }
        let left: Vec<_> = undecided.into_values().flatten().collect();
        let actions: HashSet<_> = left.iter().map(|(action, _)| action).collect();
        if actions.len() > MAX_REVIEWS {
            return (allowed, Some(ListingLimit::Reviews(left.len())));
        }
        let actions = actions.into_iter().cloned().collect();
        let decisions = self.review_all(subject, actions, deadline).await;
        for (action, target) in left {
            match decisions.get(&action) {
                Some(true) => allowed.push(target),
                Some(false) => {}
                None => unknown += 1,
            }
        }
        (allowed, (unknown > 0).then_some(ListingLimit::Unanswered(unknown)))
    }

    /// Returns whether each action is granted. Those without an answer are missing: all, if they are too many.
    async fn review_all(
        &self,
        subject: &Subject,
        actions: HashSet<Action>,
        deadline: Instant,
    ) -> HashMap<Action, bool> {
        let mut decisions = HashMap::new();
        if actions.len() > MAX_REVIEWS {
            return decisions;
        }
        let review = &ReviewContext {
            config: self.config.load_full(),
            client: subject.client,
            mode: ReviewMode::Login,
            is_stale: Arc::default(),
        };
        let answers = stream::iter(actions).map(|action| async move {
            // Listings share few permits, so that logins do not wait for them.
            let _permit = self.reviews.listings.acquire().await;
            let decision = self.reviews.authorize(review, &subject.user, &action).await;
            (action, decision)
        });
        let mut answers = Box::pin(answers.buffer_unordered(CONCURRENT_REVIEWS));
        while let Ok(Some((action, answer))) = timeout_at(deadline, answers.next()).await {
            if let Ok(decision) = answer
                && decision.is_sure()
            {
                decisions.insert(action, decision.allowed);
            }
        }
        decisions
    }
}

/// The longest wait for reviews.
const LISTING_TIMEOUT: Duration = Duration::from_secs(3);
/// The most reviews of namespaces, and then of names, for one listing.
const MAX_REVIEWS: usize = 500;
/// The reviews of one listing at a time.
const CONCURRENT_REVIEWS: usize = 2;
