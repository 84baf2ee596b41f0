//! Listings: few reviews, which logins do not notice, and none to wait for in an outage.

use tokio::time::timeout;

use super::*;
use crate::protocol::listing::NameFilter;

impl World {
    /// The number of targets that a user may reach, and why some may be missing.
    async fn list(&self, token: &str) -> (usize, Option<ListingLimit>) {
        let subject = self.identify(token, 1).await.unwrap();
        let (_permit, deadline) = self.access.begin_listing().await.unwrap();
        let targets = self.allowlist.list(&NameFilter::default()).unwrap();
        let candidates = self.access.candidates(&subject, targets);
        let (targets, limit) = self.access.reachable(&subject, candidates, deadline).await;
        (targets.len(), limit)
    }

    fn accesses(&self) -> usize {
        self.script.accesses.load(Ordering::Relaxed)
    }
}

#[tokio::test(start_paused = true)]
async fn the_review_of_a_listing_that_has_ended_keeps_all_other_listings_waiting() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned(), "b".to_owned()], None);
    world.identify("alice", 1).await.unwrap();
    world.script.delay.store(60_000, Ordering::Relaxed);
    for _ in 0..5 {
        timeout(seconds(1), Box::pin(world.list("alice"))).await.unwrap_err();
    }
    assert_eq!(world.accesses(), 1);
    assert_eq!(world.list("alice").await, (0, Some(ListingLimit::Unanswered(2))));
    assert_eq!(world.accesses(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_approved_is_listed_in_an_outage_at_once() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned(), "b".to_owned(), "c".to_owned()], None);
    world
        .script
        .set_access(|_, action| Ok(decision(["a", "b"].contains(&&*action.name))));
    for name in ["a", "b"] {
        world.grant("alice", name).await.unwrap();
    }
    sleep(seconds(20)).await;
    world.identify("alice", 1).await.unwrap();
    world.script.set_access(|_, _| Err(away()));
    sleep(seconds(1)).await;
    world.grant("alice", "a").await.unwrap();
    world.script.delay.store(60_000, Ordering::Relaxed);
    let start = Instant::now();
    assert_eq!(world.list("alice").await, (2, Some(ListingLimit::Unanswered(1))));
    assert!(start.elapsed() < seconds(1), "{:?}", start.elapsed());
    // Its one review has waited, and has an answer after the outage.
    world.script.delay.store(1, Ordering::Relaxed);
    world.script.set_access(|_, _| Ok(decision(true)));
    sleep(seconds(80)).await;
    assert_eq!(world.list("alice").await, (3, None));
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_said_also_where_many_names_are_left() {
    let world = World::new(|_| {});
    world.publish((0..501).map(|number| format!("box{number}")), None);
    world.identify("alice", 1).await.unwrap();
    world.script.set_access(|_, _| Err(away()));
    assert_eq!(world.list("alice").await, (0, Some(ListingLimit::Unanswered(501))));
}

#[tokio::test(start_paused = true)]
async fn the_answers_for_a_listing_take_no_place_of_those_for_logins() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned()], None);
    world
        .script
        .set_access(|_, action| Ok(decision(!action.name.is_empty())));
    assert_eq!(world.list("alice").await, (1, None));
    assert_eq!(world.accesses(), 3);
    assert_eq!(
        world.access.decider.reviews.sizes()[2..],
        [("allowed", 1), ("denied", 2)]
    );
    world.grant("alice", "a").await.unwrap();
    assert_eq!(world.accesses(), 4);
    assert_eq!(world.list("alice").await, (1, None));
    assert_eq!(world.accesses(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_denial_for_a_listing_ends_the_approval_of_a_login() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned()], None);
    world.grant("alice", "a").await.unwrap();
    sleep(seconds(20)).await;
    world.script.set_access(|_, _| Ok(decision(false)));
    assert_eq!(world.list("alice").await, (0, None));
    sleep(seconds(20)).await;
    world.script.set_access(|_, _| Err(away()));
    let refusal = world.grant("alice", "a").await.unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::AuthorizationUnavailable);
}

#[tokio::test(start_paused = true)]
async fn four_listings_run_at_a_time_and_a_fifth_waits_for_three_seconds() {
    let world = World::new(|_| {});
    let permits = futures_util::future::join_all((0..4).map(|_| world.access.begin_listing())).await;
    assert!(permits.iter().all(Option::is_some));
    let start = Instant::now();
    assert!(world.access.begin_listing().await.is_none());
    assert_eq!(start.elapsed().as_secs(), 3);
    drop(permits);
    assert!(world.access.begin_listing().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_permit_and_that_for_reviews_are_three_seconds_together() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned()], None);
    world.identify("alice", 1).await.unwrap();
    world.script.delay.store(60_000, Ordering::Relaxed);
    let mut permits = futures_util::future::join_all((0..4).map(|_| world.access.begin_listing())).await;
    let start = Instant::now();
    let free = async {
        sleep(seconds(2)).await;
        permits.pop();
    };
    let (listed, ()) = tokio::join!(world.list("alice"), free);
    assert_eq!(listed, (0, Some(ListingLimit::Unanswered(1))));
    assert_eq!(start.elapsed().as_secs(), 3);
}
