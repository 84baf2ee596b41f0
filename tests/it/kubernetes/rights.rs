//! Tokens, roles and bindings, reviewed and taken back: with a real API server or the fake one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use switchboard::base::secret::Secret;
use switchboard::kubernetes::{ApiReviewer, BackgroundRuntime, WatchContext, watch_rbac};
use switchboard::policy::access::{Action, Change, Decision, Kubernetes, Permission, Reviewer, User, Verdict};
use switchboard::protocol::jwt::Jwt;
use switchboard::proxy::metrics::Metrics;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use super::cluster::{self, Reviewing};
use super::objects::{role, role_binding, with};
use super::proxy::{PATIENCE, eventually};

fn reviewer(ground: &Reviewing, audiences: &[&str]) -> ApiReviewer {
    let options = Kubernetes {
        audiences: audiences.iter().map(|&name| name.into()).collect(),
        ..Kubernetes::default()
    };
    ApiReviewer::new(&options, Some(ground.kubeconfig.clone()))
}

fn account(ground: &Reviewing, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": ground.here}})
}

/// A binding of that Role to the account `ci`.
fn binding(ground: &Reviewing) -> Value {
    let subject = json!([{"kind": "ServiceAccount", "name": "ci", "namespace": ground.here}]);
    with(role_binding(&ground.here, "ci", "ssh", ""), "/subjects", subject)
}

async fn verdict(reviewer: &ApiReviewer, token: &str) -> Result<User, String> {
    let jwt = Jwt::read(token).ok().flatten();
    match reviewer.review_token(&Secret::from(token), jwt.as_ref()).await.unwrap() {
        Verdict::Authenticated(user) => Ok((*user).clone()),
        Verdict::Rejected(sentence) => Err(sentence.to_string()),
    }
}

async fn decision(reviewer: &ApiReviewer, ground: &Reviewing, user: &User, name: &str) -> Decision {
    decision_by(Permission::default(), reviewer, ground, user, name).await
}

async fn decision_by(
    permission: Permission,
    reviewer: &ApiReviewer,
    ground: &Reviewing,
    user: &User,
    name: &str,
) -> Decision {
    let action = Action {
        permission,
        namespace: (*ground.here).into(),
        name: name.into(),
    };
    reviewer.review_access(user, &action).await.unwrap()
}

/// The account `ci`, with a token: the reviewer that proves it, the token and its user.
async fn proved_account(ground: &Reviewing) -> (ApiReviewer, String, User) {
    ground.apply(&account(ground, "ci")).await;
    let reviewer = reviewer(ground, &["switchboard"]);
    let token = ground.token("ci", &["switchboard"]).await;
    let user = verdict(&reviewer, &token).await.unwrap();
    (reviewer, token, user)
}

/// Waits until the answer of the API server about `devbox` is that.
async fn decides(reviewer: &ApiReviewer, ground: &Reviewing, user: &User, is_allowed: bool) {
    eventually("it is decided so", async || {
        decision(reviewer, ground, user, "devbox").await.allowed == is_allowed
    })
    .await;
}

/// Returns the reported changes, from when all kinds are watched: other tests change the cluster as well.
async fn followed(ground: &Reviewing) -> (BackgroundRuntime, UnboundedReceiver<Change>) {
    let (sender, mut changes) = unbounded_channel();
    // The receiver is gone when the scenario ends.
    let told = move |change| drop(sender.send(change));
    let origin = WatchContext {
        kubeconfig: Some(ground.kubeconfig.clone()),
        metrics: Metrics::new().unwrap().cluster,
        watches: Arc::default(),
    };
    let watch = watch_rbac(origin, told).unwrap();
    let probes: [fn(&str, &str) -> Value; 2] = [
        |here, generation| role(here, "probe", &[generation]),
        |here, generation| role_binding(here, "probe", "probe", generation),
    ];
    for probe in probes {
        let mut generation = 0;
        eventually("changes are told", async || {
            generation += 1;
            ground
                .apply(&probe(&ground.here, &format!("nobody-{generation}")))
                .await;
            timeout(Duration::from_secs(1), changes.recv()).await.is_ok()
        })
        .await;
        ground.delete(&probe(&ground.here, "nobody")).await;
    }
    (watch, changes)
}

async fn told(changes: &mut UnboundedReceiver<Change>, wanted: &Change) {
    let all = async { while changes.recv().await.unwrap() != *wanted {} };
    timeout(PATIENCE, all).await.unwrap();
}

#[test]
fn a_service_account_is_proved_by_a_token_for_one_of_the_audiences() {
    cluster::run_reviewing(async |ground| {
        ground.apply(&account(ground, "ci")).await;
        let named = ground.token("ci", &["switchboard"]).await;
        let own = ground.token("ci", &[]).await;
        let cut = named.get(..named.len() - 4).unwrap();
        for (audiences, token, is_good) in [
            (&["switchboard"][..], &*named, true),
            (&["switchboard"], &own, false),
            (&["ssh", "switchboard"], &named, true),
            (&[""], &named, false),
            (&[""], &own, true),
            (&[], &own, true),
            (&["switchboard", ""], &named, true),
            (&["switchboard", ""], &own, true),
            (&["switchboard", ""], cut, false),
            (&["switchboard", ""], "invalid", false),
        ] {
            let verdict = verdict(&reviewer(ground, audiences), token).await;
            eprintln!("verdict: {audiences:?}: {:?}", verdict.as_ref().map(|user| &user.name));
            assert_eq!(verdict.is_ok(), is_good, "{audiences:?} {verdict:?}");
            let Ok(user) = verdict else { continue };
            assert_eq!(*user.name, format!("system:serviceaccount:{}:ci", ground.here));
            assert!(
                user.groups.iter().any(|group| **group == *"system:serviceaccounts"),
                "{user:?}"
            );
            assert!(user.uid.is_some_and(|uid| uid.len() >= 36));
        }
        ground.delete(&account(ground, "ci")).await;
    });
}

#[test]
fn the_right_to_serve_a_service_is_another_one_than_to_reach_it() {
    cluster::run_reviewing(async |ground| {
        let (reviewer, _, user) = proved_account(ground).await;
        let serve = with(
            role(&ground.here, "anchor", &["devbox"]),
            "/rules/0/resources",
            json!(["services/anchor"]),
        );
        ground.apply(&serve).await;
        let binding = with(binding(ground), "/roleRef/name", json!("anchor"));
        ground.apply(&binding).await;
        eventually("it may serve", async || {
            decision_by(Permission::anchor(), &reviewer, ground, &user, "devbox")
                .await
                .allowed
        })
        .await;
        assert!(!decision(&reviewer, ground, &user, "devbox").await.allowed);
        let other = decision_by(Permission::anchor(), &reviewer, ground, &user, "other").await;
        assert!(!other.allowed, "{other:?}");
        for object in [&binding, &serve, &account(ground, "ci")] {
            ground.delete(object).await;
        }
    });
}

#[test]
fn a_binding_gives_the_right_to_one_service_and_its_end_is_told_and_counts() {
    cluster::run_reviewing(async |ground| {
        let (reviewer, _, user) = proved_account(ground).await;
        let (_watch, mut changes) = followed(ground).await;
        let before = decision(&reviewer, ground, &user, "devbox").await;
        assert!(!before.allowed && before.complete, "{before:?}");
        ground.apply(&role(&ground.here, "ssh", &["devbox"])).await;
        let of_namespace = Change::Namespace((*ground.here).into());
        ground.apply(&binding(ground)).await;
        let started = Instant::now();
        decides(&reviewer, ground, &user, true).await;
        eprintln!("figure: a new binding counts after {:?}", started.elapsed());
        let allowed = decision(&reviewer, ground, &user, "devbox").await;
        assert!(
            allowed.reason.contains("ci"),
            "the reason names the binding: {}",
            allowed.reason
        );
        assert!(!decision(&reviewer, ground, &user, "other").await.allowed);
        while changes.try_recv().is_ok() {}
        let started = Instant::now();
        ground.delete(&binding(ground)).await;
        let deleted = started.elapsed();
        told(&mut changes, &of_namespace).await;
        let told = started.elapsed();
        decides(&reviewer, ground, &user, false).await;
        let denied = started.elapsed();
        eprintln!("figure: a deletion took {deleted:?}, was told after {told:?}, denied after {denied:?}");
        // The role is missing, and not the binding.
        ground.apply(&binding(ground)).await;
        decides(&reviewer, ground, &user, true).await;
        ground.delete(&role(&ground.here, "ssh", &["devbox"])).await;
        decides(&reviewer, ground, &user, false).await;
        let dangling = decision(&reviewer, ground, &user, "devbox").await;
        eprintln!("dangling: {dangling:?}");
        assert!(dangling.complete, "a role that is gone grants nothing: {dangling:?}");
        ground.delete(&binding(ground)).await;
        ground.delete(&account(ground, "ci")).await;
    });
}

#[test]
fn a_deleted_service_account_is_told_and_its_token_refused() {
    cluster::run_reviewing(async |ground| {
        let (reviewer, token, user) = proved_account(ground).await;
        let (_watch, mut changes) = followed(ground).await;
        let mut probes = 0;
        // Until accounts are watched as well.
        eventually("a deleted account is told", async || {
            probes += 1;
            let probe = account(ground, &format!("probe-{probes}"));
            ground.apply(&probe).await;
            ground.delete(&probe).await;
            let gone = async { while !matches!(changes.recv().await.unwrap(), Change::UserDeleted(_)) {} };
            timeout(Duration::from_secs(1), gone).await.is_ok()
        })
        .await;
        let started = Instant::now();
        ground.delete(&account(ground, "ci")).await;
        told(&mut changes, &Change::UserDeleted(user.uid.clone().unwrap())).await;
        eprintln!("figure: a deleted account is told after {:?}", started.elapsed());
        eventually("its token is refused", async || {
            verdict(&reviewer, &token).await.is_err()
        })
        .await;
        eprintln!("figure: its token is refused after {:?}", started.elapsed());
        eprintln!("sentence: {}", verdict(&reviewer, &token).await.unwrap_err());
    });
}

#[test]
fn questions_cost_a_few_milliseconds() {
    cluster::run_reviewing(async |ground| {
        let (reviewer, token, user) = proved_account(ground).await;
        let mut times = [const { Vec::new() }; 3];
        for round in 0..ROUNDS {
            let started = Instant::now();
            verdict(&reviewer, &token).await.unwrap();
            times[0].push(started.elapsed());
            let started = Instant::now();
            verdict(&reviewer, &invalid(&token, round)).await.unwrap_err();
            times[1].push(started.elapsed());
            let started = Instant::now();
            decision(&reviewer, ground, &user, "devbox").await;
            times[2].push(started.elapsed());
        }
        for (what, mut times) in ["a good token", "a forged token", "a right"].into_iter().zip(times) {
            times.sort();
            let (median, late) = (times[times.len() / 2], times[times.len() * 99 / 100]);
            eprintln!("figure: {what}: median {median:?}, 99 of 100 within {late:?}, {ROUNDS} questions one by one");
        }
        ground.delete(&account(ground, "ci")).await;
    });
}

/// The token with another signature.
fn invalid(token: &str, round: usize) -> String {
    match token.rsplit_once('.') {
        Some((signed, signature)) => format!("{signed}.{round:0width$}", width = signature.len()),
        None => format!("{token}-{round}"),
    }
}

const ROUNDS: usize = 300;
