//! Rights that end while tunnels run.

use super::*;
use crate::base::follow::ReloadResult;

#[tokio::test(start_paused = true)]
async fn a_right_that_is_taken_back_ends_within_a_second() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned(), "b".to_owned()], None);
    let (alices, bobs) = (
        world.grant("alice", "a").await.unwrap(),
        world.grant("bob", "a").await.unwrap(),
    );
    world.script.set_access(|user, _| Ok(decision(&*user.name != "alice")));
    let start = Instant::now();
    world.access.changed(&Change::Namespace("other".into()));
    sleep(seconds(5)).await;
    assert!(!has_ended(&alices));
    world.access.changed(&Change::Namespace("team".into()));
    let again = Instant::now();
    assert_eq!(alices.revoked_or_expired().await, CloseReason::AccessRevoked);
    assert!(
        again.elapsed() < seconds(1),
        "{:?} {:?}",
        again.elapsed(),
        start.elapsed()
    );
    assert!(!has_ended(&bobs));
    assert_eq!(
        world.grant("alice", "a").await.unwrap_err().reason,
        RefusalReason::NotAuthorized
    );
    // It is given back: another pair begins.
    world.script.set_access(|_, _| Ok(decision(true)));
    world.access.changed(&Change::Namespace("team".into()));
    assert!(!has_ended(&world.grant("alice", "a").await.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_right_ends_by_two_complete_denials_in_a_row_and_by_nothing_less() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned()], None);
    let grant = world.grant("alice", "a").await.unwrap();
    let calls = AtomicOrder::default();
    for answers in [
        vec![Ok(decision(false)), Ok(decision(true))],
        vec![Err(away())],
        vec![Ok(Decision {
            complete: false,
            ..decision(false)
        })],
        vec![Ok(decision(false)), Err(away())],
    ] {
        let calls = calls.clone();
        calls.0.store(0, Ordering::Relaxed);
        world.script.set_access(move |_, _| {
            let call = calls.0.fetch_add(1, Ordering::Relaxed);
            answers[call.min(answers.len() - 1)].clone()
        });
        world.access.changed(&Change::Everywhere);
        sleep(seconds(20)).await;
        assert!(!has_ended(&grant));
    }
    world.script.set_access(|_, _| Ok(decision(false)));
    world.access.changed(&Change::Everywhere);
    assert_eq!(grant.revoked_or_expired().await, CloseReason::AccessRevoked);
}

#[derive(Clone, Default)]
struct AtomicOrder(Arc<std::sync::atomic::AtomicUsize>);

#[tokio::test(start_paused = true)]
async fn without_a_watch_a_right_ends_within_the_interval() {
    let world = World::new(|_| {});
    world.publish((0..10).map(|number| format!("t{number}")), None);
    let mut grants = Vec::new();
    for number in 0..10 {
        grants.push(world.grant("alice", &format!("t{number}")).await.unwrap());
    }
    world.script.set_access(|_, action| Ok(decision(&*action.name != "t3")));
    sleep(seconds(301)).await;
    let ended: Vec<_> = grants.iter().map(has_ended).collect();
    assert!(
        ended[3] && ended.iter().filter(|ended| **ended).count() == 1,
        "{ended:?}"
    );
    // The token, too: its user was deleted.
    world
        .script
        .set_token(|_| Ok(Verdict::Rejected("the token is not valid".into())));
    sleep(seconds(301)).await;
    assert!(grants.iter().all(has_ended));
}

/// Another tunnel of the user has had the yes a moment before.
#[tokio::test(start_paused = true)]
async fn a_yes_of_another_tunnel_makes_no_right_last_longer_than_the_interval() {
    type Revoke = fn(&Script);
    let revocations: [Revoke; 2] = [
        |script| script.set_token(|_| Ok(Verdict::Rejected("the token is not valid".into()))),
        |script| script.set_access(|_, _| Ok(decision(false))),
    ];
    for (number, revoke) in revocations.iter().enumerate() {
        let world = World::new(|_| {});
        world.publish(["a".to_owned(), "b".to_owned()], None);
        let mut grants = Vec::new();
        // So many that some are due in the ten seconds for which a decision is fresh.
        for user in 0..300 {
            for target in ["a", "b"] {
                grants.push(world.grant(&format!("user{user}"), target).await.unwrap());
            }
        }
        sleep(seconds(1000)).await;
        for user in 0..300 {
            drop(world.grant(&format!("user{user}"), "a").await.unwrap());
        }
        revoke(&world.script);
        sleep(seconds(301)).await;
        let left = grants.iter().filter(|grant| !has_ended(grant)).count();
        assert_eq!(left, 0, "of {} after revocation {number}", grants.len());
    }
}

#[tokio::test(start_paused = true)]
async fn rights_that_are_taken_back_during_an_outage_end_within_two_seconds_of_it() {
    let world = World::new(|_| {});
    world.publish((0..MANY).map(|number| format!("t{number}")), None);
    let mut grants = Vec::new();
    for number in 0..MANY {
        grants.push(world.grant("alice", &format!("t{number}")).await.unwrap());
    }
    for outage in [3, 100] {
        world.script.fail();
        world.access.changed(&Change::Namespace("team".into()));
        sleep(seconds(outage)).await;
        assert!(!grants.iter().any(has_ended));
        if outage == 3 {
            world.script.set_access(|_, _| Ok(decision(true)));
            world
                .script
                .set_token(|token| Ok(Verdict::Authenticated(Arc::new(user(token)))));
            sleep(seconds(60)).await;
            assert!(!grants.iter().any(has_ended));
        }
    }
    world
        .script
        .set_token(|token| Ok(Verdict::Authenticated(Arc::new(user(token)))));
    // As long as it has just begun to answer, a no is incomplete.
    let start = Instant::now();
    world.script.set_access(move |_, _| {
        Ok(Decision {
            complete: start.elapsed() >= Duration::from_millis(700),
            ..decision(false)
        })
    });
    for grant in &grants {
        assert_eq!(grant.revoked_or_expired().await, CloseReason::AccessRevoked);
    }
    assert!(start.elapsed() < seconds(2), "{:?}", start.elapsed());
}

/// More than are asked about at once, and in two seconds without the burst.
const MANY: usize = 300;

#[tokio::test(start_paused = true)]
async fn changes_without_end_in_one_namespace_delay_no_other_one() {
    let world = World::new(|_| {});
    let busy = (0..40).map(|number| ("team", format!("t{number}")));
    world.publish_in(busy.chain([("other", "a".to_owned())]), None);
    let mut grants = Vec::new();
    for pair in 0..2_000_u32 {
        let subject = world.identify(&format!("user{}", pair / 40), pair).await.unwrap();
        let target = world.target(&format!("t{}", pair % 40));
        grants.push(world.access.authorize(&subject, &target).await.unwrap());
    }
    let subject = world.identify("alice", 1).await.unwrap();
    let target = world.allowlist.find_target(&"a.other:22".parse().unwrap()).unwrap();
    let alices = world.access.authorize(&subject, &target).await.unwrap();
    for _ in 0..100 {
        world.access.changed(&Change::Namespace("team".into()));
        sleep(Duration::from_millis(200)).await;
    }
    world.script.set_access(|user, _| Ok(decision(&*user.name != "alice")));
    world.access.changed(&Change::Namespace("other".into()));
    let start = Instant::now();
    assert_eq!(alices.revoked_or_expired().await, CloseReason::AccessRevoked);
    assert!(start.elapsed() < seconds(1), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn two_thousand_pairs_cost_ten_reviews_a_second() {
    let world = World::new(|_| {});
    world.publish((0..20).map(|number| format!("t{number}")), None);
    let mut grants = Vec::new();
    for pair in 0..2_000_u32 {
        let subject = world.identify(&format!("user{}", pair / 2), pair).await.unwrap();
        let target = world.target(&format!("t{}", pair % 20));
        // 5,000 tunnels: two or three of each.
        for _ in 0..2 + pair % 2 {
            grants.push(world.access.authorize(&subject, &target).await.unwrap());
        }
    }
    sleep(seconds(60)).await;
    let before = world.script.asked();
    sleep(seconds(600)).await;
    let asked = world.script.asked() - before;
    println!("{asked} reviews in 600 s for {} tunnels", grants.len());
    assert!((3_000..=6_200).contains(&asked), "{asked}");
    assert_eq!(world.access.grants.len(), 2_000);
    grants.clear();
    assert_eq!(world.access.grants.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_user_and_a_changed_list_end_their_tunnels_at_once() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned()], None);
    let (alices, bobs) = (
        world.grant("alice", "a").await.unwrap(),
        world.grant("bob", "a").await.unwrap(),
    );
    world.access.changed(&Change::UserDeleted("uid-alice".into()));
    assert!(has_ended(&alices) && !has_ended(&bobs));
    // The API server still proves it.
    assert_eq!(
        world.grant("alice", "a").await.unwrap_err().reason,
        RefusalReason::CredentialsRefused
    );
    let lists = |users: &[&str]| UserLists {
        users: users.iter().map(|user| Box::from(*user)).collect(),
        groups: [].into(),
    };
    world.publish(["a".to_owned()], Some(&lists(&["carol"])));
    world.access.user_lists_changed();
    assert!(has_ended(&bobs));
    let refusal = world.grant("bob", "a").await.unwrap_err();
    assert_eq!(refusal.phrase(), "bob may not ssh to a.team");
    let asked = world.script.accesses.load(Ordering::Relaxed);
    let carols = world.grant("carol", "a").await.unwrap();
    assert_eq!(
        world.script.accesses.load(Ordering::Relaxed),
        asked,
        "the lists replace the question"
    );
    world.publish(["a".to_owned()], None);
    world.access.user_lists_changed();
    sleep(seconds(1)).await;
    assert!(!has_ended(&carols));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_user_proves_nothing_while_the_api_server_still_proves_it() {
    let world = World::new(|_| {});
    world.access.changed(&Change::UserDeleted("uid-alice".into()));
    let mut waited = 0;
    for (wait, refused) in [
        (0, Some(RefusalReason::CredentialsRefused)),
        (59, Some(RefusalReason::CredentialsRefused)),
        (12, None),
    ] {
        sleep(seconds(wait)).await;
        waited += wait;
        let denied = world.identify("alice", 1).await.err().map(|refusal| refusal.reason);
        assert_eq!(denied, refused, "after {waited} s");
        world.identify("bob", 1).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn no_answer_of_the_two_seconds_after_a_change_is_remembered_in_its_namespace() {
    let world = World::new(|_| {});
    world.publish_in([("team", "a".to_owned()), ("other", "b".to_owned())], None);
    let subject = world.identify("alice", 1).await.unwrap();
    let other = world.allowlist.find_target(&"b.other:22".parse().unwrap()).unwrap();
    let asked = async |target: &Arc<Target>| {
        let before = world.script.accesses.load(Ordering::Relaxed);
        drop(world.access.authorize(&subject, target).await);
        world.script.accesses.load(Ordering::Relaxed) - before
    };
    let own = world.target("a");
    sleep(seconds(2)).await;
    assert_eq!([asked(&own).await, asked(&own).await, asked(&other).await], [1, 0, 1]);
    // A no, too.
    world.script.set_access(|_, _| Ok(decision(false)));
    world.access.changed(&Change::Namespace("team".into()));
    assert_eq!([asked(&own).await, asked(&other).await], [1, 0]);
    sleep(seconds(1)).await;
    assert_eq!([asked(&own).await, asked(&other).await], [1, 0]);
    sleep(seconds(1)).await;
    assert_eq!([asked(&own).await, asked(&own).await], [1, 0]);
    sleep(seconds(5)).await;
    assert_eq!(asked(&own).await, 1);
    // A no that is not complete takes nothing back that was given once the last change had settled.
    world.script.set_access(|_, _| Ok(decision(true)));
    world.access.changed(&Change::Everywhere);
    sleep(seconds(2)).await;
    assert_eq!(asked(&own).await, 1);
    let incomplete = || Decision {
        complete: false,
        ..decision(false)
    };
    world.script.set_access(move |_, _| Ok(incomplete()));
    assert!(world.access.authorize(&subject, &own).await.is_ok());
    world.access.changed(&Change::Everywhere);
    assert!(world.access.authorize(&subject, &own).await.is_err());
}

/// A second API server that has learnt of a change a second later than the watch.
#[tokio::test(start_paused = true)]
async fn a_right_that_was_given_just_after_it_was_taken_back_ends_two_seconds_later() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned()], None);
    let before = world.grant("alice", "a").await.unwrap();
    world.access.changed(&Change::Namespace("team".into()));
    sleep(Duration::from_millis(900)).await;
    let after = world.grant("bob", "a").await.unwrap();
    world.script.set_access(|_, _| Ok(decision(false)));
    let start = Instant::now();
    for grant in [before, after] {
        assert_eq!(grant.revoked_or_expired().await, CloseReason::AccessRevoked);
    }
    assert!(start.elapsed() < seconds(2), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_right_that_ends_before_the_tunnel_begins_refuses_it() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned()], None);
    let grant = world.grant("alice", "a").await.unwrap();
    let work = grant.while_valid(async {
        world.access.changed(&Change::UserDeleted("uid-alice".into()));
        sleep(seconds(1)).await;
        Ok(())
    });
    assert_eq!(work.await.unwrap_err().reason, RefusalReason::NotAuthorized);
    // Also where it is taken back while the decision is still awaited.
    world.script.delay.store(500, Ordering::Relaxed);
    let subject = world.identify("bob", 1).await.unwrap();
    let target = world.target("a");
    let deciding = async {
        sleep(Duration::from_millis(100)).await;
        world.access.changed(&Change::UserDeleted("uid-bob".into()));
    };
    let (grant, ()) = tokio::join!(world.access.authorize(&subject, &target), deciding);
    assert!(has_ended(&grant.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_outlives_its_credential_or_not_as_configured() {
    for (on_expiry, ends) in [(OnExpiry::Keep, false), (OnExpiry::Close, true)] {
        let world = World::new(|options| options.on_expiry = on_expiry);
        world.publish(["a".to_owned()], None);
        world.script.set_token(|token| {
            let mut user = user(token);
            user.expires = Some(SystemTime::now() + seconds(60));
            Ok(Verdict::Authenticated(Arc::new(user)))
        });
        let grant = world.grant("alice", "a").await.unwrap();
        sleep(seconds(50)).await;
        assert!(!has_ended(&grant));
        sleep(seconds(20)).await;
        assert_eq!(has_ended(&grant), ends);
        if ends {
            assert_eq!(grant.revoked_or_expired().await, CloseReason::Expired);
        } else {
            // An answer of the API server about an expired token revokes nothing.
            world
                .script
                .set_token(|_| Ok(Verdict::Rejected("the token has expired".into())));
            sleep(seconds(1200)).await;
            assert!(!has_ended(&grant));
            // A reload of the rules applies to tunnels that run.
            world.reload(|options| options.on_expiry = OnExpiry::Close);
            assert_eq!(grant.revoked_or_expired().await, CloseReason::Expired);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_credential_expires_by_the_clock_of_the_system_too_which_may_be_set() {
    let world = World::new(|_| {});
    let known = world.identify("alice", 1).await.unwrap();
    let expires_at = |expires| User {
        expires: Some(expires),
        ..user("alice")
    };
    for (expires, has_expired) in [
        (SystemTime::now() - seconds(1), true),
        (SystemTime::now() + seconds(3600), false),
    ] {
        let subject = Subject {
            user: Arc::new(expires_at(expires)),
            expires: Some(Instant::now() + seconds(3600)),
            ..known.clone()
        };
        let begun = Instant::now();
        subject.expired().await;
        assert_eq!(begun.elapsed() < seconds(60), has_expired);
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_is_taken_back_though_the_certificate_beside_it_has_expired() {
    for on_expiry in [OnExpiry::Keep, OnExpiry::Close] {
        let world = World::new(|options| options.on_expiry = on_expiry);
        world.publish(["a".to_owned()], None);
        let client_tls = identities::certificate(seconds(60));
        let both = RequestCredentials {
            client_tls: Some(&client_tls),
            ..request("alice", 1)
        };
        let subject = world.access.authenticate(both).await.unwrap();
        let grant = world.access.authorize(&subject, &world.target("a")).await.unwrap();
        sleep(seconds(61)).await;
        if on_expiry == OnExpiry::Close {
            assert_eq!(grant.revoked_or_expired().await, CloseReason::Expired);
            continue;
        }
        assert!(!has_ended(&grant));
        world
            .script
            .set_token(|_| Ok(Verdict::Rejected("the token is not valid".into())));
        sleep(seconds(301)).await;
        assert!(has_ended(&grant));
    }
}

#[tokio::test(start_paused = true)]
async fn certificates_that_prove_no_user_any_more_end_the_tunnels_of_those_without_a_credential() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned()], None);
    let client_tls = identities::certificate(seconds(3600));
    let own = |credential| RequestCredentials {
        credential,
        client_tls: Some(&client_tls),
        ..request("", 1)
    };
    let target = world.target("a");
    let certified = world.access.authenticate(own(None)).await.unwrap();
    let by_certificate = world.access.authorize(&certified, &target).await.unwrap();
    let token = Some(Ok(Credential::Bearer("alice".into())));
    let both = world.access.authenticate(own(token)).await.unwrap();
    let by_both = world.access.authorize(&both, &target).await.unwrap();
    world.reload(|options| options.kubernetes.as_mut().unwrap().certificates = false);
    assert!(has_ended(&by_certificate));
    sleep(seconds(301)).await;
    assert!(!has_ended(&by_both));
    // Between the two steps of a request, too.
    let refusal = world.access.authorize(&certified, &target).await.unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::CredentialsRequired);
}

/// As a reload with another file does, which has a fault.
#[tokio::test(start_paused = true)]
async fn a_file_of_users_that_was_never_read_ends_no_tunnel_and_opens_none() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned()], None);
    let folder = tempfile::tempdir().unwrap();
    let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
    // The password is `correct`: made by htpasswd(1).
    std::fs::write(
        &old,
        "alice:$2y$05$C4ig4r120vyo1vh3fN8r8eElsx.pkSZw4WxY2QNujrvxq297xDBEu\n",
    )
    .unwrap();
    std::fs::write(&new, "alice:plain\n").unwrap();
    let apply = |users: PasswordFile| {
        let (users, config) = (Arc::new(users), world.access.decider.config.load_full());
        let sources = Sources {
            users: Some(Arc::clone(&users)),
            ..config.sources.clone()
        };
        world.access.apply(config.options.clone(), sources);
        users
    };
    let login = async || {
        let correct = RequestCredentials {
            credential: Some(Ok(Credential::Basic {
                user: "alice".into(),
                password: "correct".into(),
            })),
            ..request("", 1)
        };
        let subject = world.access.authenticate(correct).await?;
        let grant = world.access.authorize(&subject, &world.target("a")).await;
        grant.map(|grant| (subject, grant))
    };
    apply(PasswordFile::open(&old).unwrap());
    let (subject, grant) = login().await.unwrap();
    let users = apply(PasswordFile::empty(&new));
    assert!(matches!(users.reload(), ReloadResult::Invalid(_)));
    world.access.user_lists_changed();
    sleep(seconds(301)).await;
    assert!(!has_ended(&grant));
    // Also between the two steps of a request.
    for denied in [
        login().await.map(drop),
        world.access.authorize(&subject, &world.target("a")).await.map(drop),
    ] {
        assert_eq!(denied.unwrap_err().reason, RefusalReason::AuthorizationUnavailable);
    }
    std::fs::write(&new, "# alice has left\n").unwrap();
    assert_eq!(users.reload(), ReloadResult::Loaded);
    world.access.users_changed();
    assert!(has_ended(&grant));
}
