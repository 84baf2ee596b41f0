//! Authorizes users: a login by the cache of logins, and a listing also by a cache of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::cache::{CachedAnswer, ReviewCache, ReviewResult};
use super::{ACCESS, FRESH, FRESH_DENIAL, ReviewContext, ReviewMode, Reviews};
use crate::policy::access::reviewer::{Action, Decision, NoAnswer, ReviewError, busy};
use crate::policy::access::user::User;

impl Reviews {
    /// Authorizes a user for an action.
    pub(in crate::policy::access) async fn authorize(
        self: &Arc<Self>,
        review: &ReviewContext,
        user: &Arc<User>,
        action: &Action,
    ) -> ReviewResult<Decision> {
        let digest = self.key.right(user, action);
        let (changed, settled) = {
            let changes = self.changes.lock();
            (changes.last(&action.namespace), changes.settled(&action.namespace))
        };
        let since = settled.max(review.mode.since());
        let remembered = self.find_decision(review.mode, |cache| cache.fresh(&digest, [FRESH, FRESH_DENIAL], since));
        if let Some(decision) = remembered.filter(|_| review.mode != ReviewMode::Uncached) {
            self.metrics.cache_hits.count(["decision"]);
            return Ok(decision);
        }
        if !matches!(review.mode, ReviewMode::Login | ReviewMode::Listing) {
            return self.review_access(review, user, action).await;
        }
        let is_listing = review.mode == ReviewMode::Listing;
        let answer = async {
            // The review keeps it, too: it goes on if the listing ends.
            let of_listing = match is_listing {
                true => Arc::clone(&self.listing_reviews).acquire_owned().await.ok(),
                false => None,
            };
            let of_listing = of_listing.map(Arc::new);
            let asked = || {
                let (reviewer, review, of_listing) = (Arc::clone(self), review.clone(), of_listing.clone());
                let (user, action) = (Arc::clone(user), action.clone());
                async move {
                    let permit = reviewer.rights.enter(review.client).await.ok_or_else(busy)?;
                    let _permits = (permit, of_listing);
                    reviewer.review_access(&review, &user, &action).await
                }
            };
            let cache = if is_listing { &self.listed } else { &self.decisions };
            cache.run(digest, changed, asked).await
        };
        let stale = || self.find_decision(review.mode, |cache| cache.yes(&digest, review.config.stale()));
        // Unless the answer is final, what was allowed before stays allowed.
        self.or_stale(review, answer, stale, Decision::is_sure).await
    }

    /// Returns a cached decision. One for a login counts for a listing, too.
    fn find_decision(
        &self,
        mode: ReviewMode,
        find: impl Fn(&ReviewCache<Decision>) -> Option<Decision>,
    ) -> Option<Decision> {
        let of_listings = || (mode == ReviewMode::Listing).then(|| find(&self.listed)).flatten();
        find(&self.decisions).or_else(of_listings)
    }

    /// Lets the API server review whether the user may take the action, and caches the answer. An incomplete denial is
    /// not cached, and replaces no approval. Nor is an approval cached that was asked for before a change had settled.
    async fn review_access(&self, review: &ReviewContext, user: &User, action: &Action) -> ReviewResult<Decision> {
        let Some(reviewer) = &review.config.sources.reviewer else {
            return Err(ReviewError::new(NoAnswer::Unavailable, "there is no API server"));
        };
        let asked = Instant::now();
        let answer = self.count_review(ACCESS, reviewer.review_access(user, action)).await;
        self.is_silent.store(answer.is_err(), Ordering::Relaxed);
        let is_sure = answer.as_ref().is_ok_and(Decision::is_sure);
        if self.rights_fail.swap(!is_sure, Ordering::Relaxed) && is_sure {
            self.recovered.send_modify(|times| *times += 1);
        }
        let decision = answer?;
        let changes = self.changes.lock();
        let settled = changes.settled(&action.namespace).filter(|_| decision.allowed);
        if is_sure && changes.forgotten.max(settled).is_none_or(|since| asked >= since) {
            let known = CachedAnswer {
                value: decision.clone(),
                asked,
                expires: None,
                namespace: action.namespace.clone(),
                size: decision.reason.len(),
            };
            // A denial ends the approval of a login, too.
            let cache = match review.mode == ReviewMode::Listing && decision.allowed {
                true => &self.listed,
                false => &self.decisions,
            };
            cache.put(self.key.right(user, action), decision.allowed, known);
        }
        Ok(decision)
    }
}
