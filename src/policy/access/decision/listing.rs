//! Decides which of many targets a user may reach, by few reviews: of the whole cluster, then of each namespace, and of single
//! names only where these do not decide and few are left.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
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
    /// So many targets are in more namespaces than are reviewed.
    Namespaces(usize),
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

    /// Returns the candidates that the subject may reach, by the deadline, and why some may be missing.
    pub(in crate::policy::access) async fn reachable(
        &self,
        subject: &Subject,
        candidates: Candidates,
        deadline: Instant,
    ) -> (Vec<Arc<Target>>, Option<ListingLimit>) {
        let Candidates {
            mut allowed,
            mut undecided,
            mut unknown,
        } = candidates;
        let mut is_answered = true;
        // The widest question first: its answer may be that of all.
        for widen in [in_cluster, in_namespace] {
            let actions: HashSet<_> = undecided.keys().map(widen).collect();
            if actions.len() > MAX_REVIEWS {
                break;
            }
            let asked = actions.len();
            let decisions = self.review_all(subject, actions, deadline).await;
            is_answered &= decisions.len() == asked;
            let granted = undecided.extract_if(|action, _| decisions.get(&widen(action)) == Some(&true));
            allowed.extend(granted.flat_map(|(_, members)| members).map(|(_, target)| target));
        }
        let Some(actions) = few_actions(&undecided) else {
            let left = undecided.values().map(Vec::len).sum();
            let limit = match () {
                () if !is_answered => ListingLimit::Unanswered(left + unknown),
                () if undecided.len() > MAX_REVIEWS => ListingLimit::Namespaces(left),
                () => ListingLimit::Reviews(left),
            };
            // There may be a hundred thousand targets, whose drop would delay relays here.
            spawn_blocking(move || drop(undecided));
            return (allowed, Some(limit));
        };
        let decisions = self.review_all(subject, actions, deadline).await;
        for (action, target) in undecided.into_values().flatten() {
            match decisions.get(&action) {
                Some(true) => allowed.push(target),
                Some(false) => {}
                None => unknown += 1,
            }
        }
        (allowed, (unknown > 0).then_some(ListingLimit::Unanswered(unknown)))
    }

    /// Returns whether each action is granted. Those without an answer are missing.
    async fn review_all(
        &self,
        subject: &Subject,
        actions: HashSet<Action>,
        deadline: Instant,
    ) -> HashMap<Action, bool> {
        let review = &ReviewContext {
            config: self.config.load_full(),
            client: subject.client,
            mode: ReviewMode::Listing,
            is_stale: Arc::default(),
        };
        let mut decisions = HashMap::new();
        for action in actions {
            // A late timeout would still begin a review.
            if Instant::now() >= deadline {
                break;
            }
            let answer = self.reviews.authorize(review, &subject.user, &action);
            if let Ok(Ok(decision)) = timeout_at(deadline, answer).await
                && decision.is_sure()
            {
                decisions.insert(action, decision.allowed);
            }
        }
        decisions
    }
}

/// Returns the actions on single names; `None` if they are more than [`MAX_REVIEWS`].
fn few_actions(undecided: &HashMap<Action, Vec<(Action, Arc<Target>)>>) -> Option<HashSet<Action>> {
    let mut actions = HashSet::new();
    for (action, _) in undecided.values().flatten() {
        if !actions.contains(action) {
            actions.insert(action.clone());
        }
        if actions.len() > MAX_REVIEWS {
            return None;
        }
    }
    Some(actions)
}

/// The longest time of a listing, from the wait for its permit to its last review.
pub(in crate::policy::access) const LISTING_TIMEOUT: Duration = Duration::from_secs(3);
/// The most reviews of namespaces, and then of names, for one listing.
const MAX_REVIEWS: usize = 500;
