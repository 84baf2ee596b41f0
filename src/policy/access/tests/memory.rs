//! Approvals from memory: they count while the API server does not answer, and for no other reason.

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use tokio::task::yield_now;
use tokio::time::timeout;

use super::*;

/// Returns a world in which alice may reach `a` until 11 s ago by the answers, and there are targets `s0` to `s39`.
async fn world() -> World {
    let world = World::new(|_| {});
    let others = (0..40).map(|number| format!("s{number}"));
    world.publish(others.chain(["a".to_owned()]), None);
    Box::pin(world.grant("alice", "a")).await.unwrap();
    sleep(seconds(11)).await;
    world
}

async fn refusal(world: &World, token: &str, target: &str) -> Option<RefusalReason> {
    let grant = Box::pin(world.grant(token, target)).await;
    grant.err().map(|refusal| refusal.reason)
}

/// Returns the refusal of alice at `a` beside requests of her own network for as many other targets.
async fn beside(world: &World, others: u32) -> Option<RefusalReason> {
    let others = (0..others).map(|number| async move { drop(world.grant("alice", &format!("s{number}")).await) });
    let own = async {
        yield_now().await;
        refusal(world, "alice", "a").await
    };
    tokio::join!(futures_util::future::join_all(others), own).1
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_the_users_own_requests_brings_no_lost_right_back() {
    for (delay, others) in [(30, 39), (2_000, 7)] {
        let world = world().await;
        world.script.set_access(|_, _| Ok(decision(false)));
        world.identify("alice", 1).await.unwrap();
        world.script.delay.store(delay, Ordering::Relaxed);
        let refused = beside(&world, others).await;
        assert_eq!(refused, Some(RefusalReason::AuthorizationUnavailable), "{others}");
        world.script.delay.store(1, Ordering::Relaxed);
        assert_eq!(refusal(&world, "alice", "a").await, Some(RefusalReason::NotAuthorized));
    }
}

#[tokio::test(start_paused = true)]
async fn invented_tokens_beside_a_revoked_one_do_not_make_it_count() {
    let world = world().await;
    world
        .script
        .set_token(|_| Ok(Verdict::Rejected("the token is not valid".into())));
    let invented = (0..40).map(|number| {
        let access = &world.access;
        async move { access.authenticate(request(&format!("invented{number}"), 1)).await }
    });
    let own = async {
        yield_now().await;
        world.identify("alice", 1).await
    };
    let (_, own) = tokio::join!(futures_util::future::join_all(invented), own);
    assert_eq!(own.unwrap_err().reason, RefusalReason::AuthorizationUnavailable);
}

/// Any client may send a token whose review fails.
#[tokio::test(start_paused = true)]
async fn a_review_that_failed_before_does_not_shorten_the_wait_for_a_server_that_answers_late() {
    let world = world().await;
    world.script.set_token(|token| match token {
        "failing" => Err(away()),
        _ => Ok(Verdict::Rejected("the token is not valid".into())),
    });
    assert!(world.identify("failing", 2).await.is_err());
    world.script.delay.store(1_500, Ordering::Relaxed);
    assert_eq!(
        refusal(&world, "alice", "a").await,
        Some(RefusalReason::CredentialsRefused)
    );
}

#[tokio::test(start_paused = true)]
async fn a_removed_key_of_an_issuer_is_not_used_while_64_tokens_wait_for_keys() {
    let (signer, file) = (
        Ed25519KeyPair::generate().unwrap(),
        tempfile::NamedTempFile::new().unwrap(),
    );
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let write = |id: &str| {
        let x = encode(signer.public_key().as_ref());
        let keys = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"{id}","x":"{x}"}}]}}"#);
        std::fs::write(file.path(), keys).unwrap();
    };
    write("7");
    let issuer = Issuer {
        issuer: "https://id.example".into(),
        audiences: vec!["switchboard".into()],
        username: "sub".into(),
        username_prefix: None,
        groups: None,
        jwks: Jwks::File(file.path().to_owned()),
        ca: None,
        no_env_proxy: false,
    };
    let world = World::new(|options| options.oidc = vec![issuer.clone()]);
    let sources = Sources {
        issuers: Some(Arc::new(oidc::Issuers::new(std::slice::from_ref(&issuer)))),
        ..Sources::clone(&world.access.decider.config.load().sources)
    };
    let options = Options::clone(&world.access.decider.config.load().options);
    world.access.apply(options, sources);
    let unsigned = invented(7);
    let message = unsigned.rsplit_once('.').unwrap().0;
    let token = format!("{message}.{}", encode(signer.sign(message.as_bytes()).as_ref()));
    world.identify(&token, 1).await.unwrap();
    write("8");
    sleep(seconds(22)).await;
    let others = (100..164).map(|number| {
        let (access, token) = (&world.access, invented(number));
        async move { access.authenticate(request(&token, 1)).await.map(drop) }
    });
    // After them.
    let (_, own) = tokio::join!(futures_util::future::join_all(others), world.identify(&token, 1));
    assert_eq!(own.unwrap_err().reason, RefusalReason::AuthorizationUnavailable);
    // Nor once the keys cannot be read.
    std::fs::remove_file(file.path()).unwrap();
    sleep(seconds(22)).await;
    let own = world.identify(&token, 1).await.unwrap_err().reason;
    assert_eq!(own, RefusalReason::AuthorizationUnavailable);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_the_watch_has_told_ends_what_memory_has_of_those_concerned() {
    let world = World::new(|_| {});
    world.publish_in(["team", "other"].map(|namespace| (namespace, "a".to_owned())), None);
    let login = async |namespace: &str| {
        let target = format!("a.{namespace}:22").parse().unwrap();
        let subject = world.identify("alice", 1).await.unwrap();
        let target = world.allowlist.find_target(&target).unwrap();
        let grant = world.access.authorize(&subject, &target).await;
        grant.err().map(|refusal| refusal.reason)
    };
    let unavailable = Some(RefusalReason::AuthorizationUnavailable);
    for change in [Change::Namespace("team".into()), Change::Everywhere] {
        world.script.set_access(|_, _| Ok(decision(true)));
        sleep(seconds(11)).await;
        assert_eq!([login("team").await, login("other").await], [None; 2]);
        sleep(seconds(11)).await;
        // One that is asked before the change, and answered after it.
        world.script.delay.store(500, Ordering::Relaxed);
        let told = async {
            sleep(Duration::from_millis(800)).await;
            world.access.changed(&change);
        };
        tokio::join!(login("team"), told);
        world.script.delay.store(1, Ordering::Relaxed);
        world.script.set_access(|_, _| Err(away()));
        sleep(seconds(60)).await;
        let of_other = unavailable.filter(|_| change == Change::Everywhere);
        assert_eq!([login("team").await, login("other").await], [unavailable, of_other]);
        // Renewed since the change, they count.
        world.script.set_access(|_, _| Ok(decision(true)));
        assert_eq!([login("team").await, login("other").await], [None; 2]);
        sleep(seconds(60)).await;
        world.script.set_access(|_, _| Err(away()));
        assert_eq!([login("team").await, login("other").await], [None; 2]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_that_memory_has_opened_is_rechecked_within_two_seconds_of_the_return() {
    type Return = fn(&Script);
    let returns: [(Return, bool); 3] = [
        (|script| script.set_access(|_, _| Ok(decision(false))), true),
        (
            |script| script.set_token(|_| Ok(Verdict::Rejected("the token is not valid".into()))),
            true,
        ),
        (|_| {}, false),
    ];
    for (number, (change, ends)) in returns.into_iter().enumerate() {
        let world = world().await;
        world.script.fail();
        let mut grants = Vec::new();
        for target in ["a", "a"] {
            grants.push(world.grant("alice", target).await.unwrap());
        }
        sleep(seconds(60)).await;
        assert!(!grants.iter().any(has_ended));
        world.script.set_access(|_, _| Ok(decision(true)));
        world
            .script
            .set_token(|token| Ok(Verdict::Authenticated(Arc::new(user(token)))));
        change(&world.script);
        let ended = timeout(seconds(2), grants[1].revoked_or_expired()).await.is_ok();
        assert_eq!(ended, ends, "{number}");
    }
}

/// Another API server has learnt of the change a second later than the watch.
#[tokio::test(start_paused = true)]
async fn an_approval_of_the_two_seconds_after_a_change_counts_in_no_outage() {
    let world = world().await;
    let unavailable = Some(RefusalReason::AuthorizationUnavailable);
    for (wait, refused) in [(1, unavailable), (2, None)] {
        world.script.set_access(|_, _| Ok(decision(true)));
        world.access.changed(&Change::Namespace("team".into()));
        sleep(seconds(wait)).await;
        assert_eq!(refusal(&world, "alice", "a").await, None);
        world.script.set_access(|_, _| Err(away()));
        sleep(seconds(60)).await;
        assert_eq!(
            refusal(&world, "alice", "a").await,
            refused,
            "{wait} s after the change"
        );
    }
}

/// No right is reviewed where a target names its users.
#[tokio::test(start_paused = true)]
async fn a_tunnel_to_a_target_with_a_list_is_rechecked_within_two_seconds_of_the_return() {
    let world = World::new(|_| {});
    let users = ["alice"].map(Into::into).into();
    let lists = UserLists {
        users,
        ..UserLists::default()
    };
    world.publish(["a".to_owned()], Some(&lists));
    drop(world.grant("alice", "a").await.unwrap());
    sleep(seconds(60)).await;
    world.script.fail();
    let grants = [
        world.grant("alice", "a").await.unwrap(),
        world.grant("alice", "a").await.unwrap(),
    ];
    sleep(seconds(600)).await;
    assert!(!grants.iter().any(has_ended));
    world
        .script
        .set_token(|_| Ok(Verdict::Rejected("the token is not valid".into())));
    for grant in &grants {
        timeout(seconds(2), grant.revoked_or_expired()).await.unwrap();
    }
}

/// A server that takes connections and answers nothing: each review takes 3 s.
#[tokio::test(start_paused = true)]
async fn an_outage_keeps_no_user_of_a_large_office_out() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned()], None);
    let logins = async |delay: usize| {
        world.script.delay.store(delay, Ordering::Relaxed);
        let logins = (0..50).map(|number| {
            let (world, token) = (&world, format!("user{number}"));
            async move {
                let begun = Instant::now();
                let grant = world.grant(&token, "a").await;
                (grant.map_err(|refusal| refusal.reason), begun.elapsed())
            }
        });
        futures_util::future::join_all(logins).await
    };
    for number in 0..50 {
        world.grant(&format!("user{number}"), "a").await.unwrap();
    }
    sleep(seconds(60)).await;
    let held = world.grant("user0", "a").await.unwrap();
    sleep(seconds(60)).await;
    world.script.fail();
    // An open tunnel finds out at a recheck. The first one may need no review: its phase is random, and earlier answers count.
    let before = world.script.asked();
    for _ in 0..300 {
        world.access.user_lists_changed();
        sleep(seconds(1)).await;
        if world.script.asked() > before {
            break;
        }
    }
    for (granted, wait) in logins(3_000).await {
        assert!(granted.is_ok() && wait < seconds(3), "{:?} {wait:?}", granted.err());
    }
    assert!(!has_ended(&held));
}

#[tokio::test(start_paused = true)]
async fn each_way_to_have_no_answer_lets_an_earlier_approval_count_or_not() {
    for (kind, counts) in [
        (NoAnswer::Unreachable, true),
        (NoAnswer::Silence, true),
        (NoAnswer::Refused, false),
        (NoAnswer::Unavailable, false),
        (NoAnswer::Busy, false),
        (NoAnswer::GuessRate, false),
    ] {
        let world = world().await;
        world.identify("alice", 1).await.unwrap();
        world
            .script
            .set_access(move |_, _| Err(ReviewError::new(kind, "no answer")));
        assert_eq!(refusal(&world, "alice", "a").await.is_none(), counts, "{kind:?}");
        sleep(seconds(11)).await;
        world
            .script
            .set_token(move |_| Err(ReviewError::new(kind, "no answer")));
        assert_eq!(world.identify("alice", 1).await.is_ok(), counts, "{kind:?}");
    }
    // A panic, and a panic of the review that others have joined.
    let world = world().await;
    world.script.set_access(|_, _| std::panic::resume_unwind(Box::new(())));
    let (first, second) = tokio::join!(refusal(&world, "alice", "a"), refusal(&world, "alice", "a"));
    assert_eq!([first, second], [Some(RefusalReason::AuthorizationUnavailable); 2]);
}
