//! Users and rights with a scripted API server, on a clock of the test.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::test_support::{Script, away, decision, user};
use super::*;
use crate::allowlist::{Allowlist, Endpoints, ServiceTarget, TargetId, UserLists, Writer};
use crate::limits::TargetLimits;
use crate::outcome::Reason;
use crate::tls::{Identity, Peer};

struct World {
    script: Arc<Script>,
    access: Arc<Access>,
    allowlist: Arc<Allowlist>,
    writer: Writer,
    metrics: Metrics,
    checks: JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.checks.abort();
    }
}

impl World {
    fn new(change: impl FnOnce(&mut Options)) -> Self {
        let mut options = Options {
            mode: Mode::Enforce,
            kubernetes: Some(Kubernetes::default()),
            ..Options::default()
        };
        change(&mut options);
        let script = Script::new();
        let sources = Sources {
            reviewer: Some(Arc::clone(&script) as Arc<dyn Reviewer>),
            ..Sources::default()
        };
        let metrics = Metrics::new().unwrap();
        let access = Access::new(options, sources, &metrics);
        let (writer, allowlist) = Writer::new();
        let checking = Arc::clone(&access);
        Self {
            script,
            access,
            allowlist,
            writer,
            metrics,
            checks: tokio::spawn(async move { checking.keep_checking().await }),
        }
    }

    /// Targets with these names in the namespace `team`.
    fn publish(&self, names: impl IntoIterator<Item = String>, lists: Option<&UserLists>) {
        let service = |name: String| ServiceTarget {
            id: TargetId {
                namespace: "team".into(),
                service: name.as_str().into(),
            },
            name: format!("{name}.team").into(),
            ports: [22, 22],
            endpoints: Endpoints::default(),
            limits: TargetLimits::default(),
            allowed_clients: None,
            user_lists: lists.cloned(),
        };
        self.writer.replace(names.into_iter().map(service).collect(), true);
    }

    fn target(&self, name: &str) -> Arc<Target> {
        self.allowlist
            .authorize(&format!("{name}.team:22").parse().unwrap())
            .unwrap()
    }

    async fn identify(&self, token: &str, client: u32) -> Result<Subject, Denial> {
        self.access.identify(evidence(token, client)).await
    }

    async fn grant(&self, token: &str, target: &str) -> Result<Grant, Denial> {
        let subject = self.identify(token, 1).await?;
        self.access.authorize(&subject, &self.target(target)).await
    }
}

fn evidence(token: &str, client: u32) -> Evidence<'static> {
    Evidence {
        credential: Some(Ok(Credential::Bearer(token.into()))),
        peer: None,
        client: Ipv4Addr::from_bits(client).into(),
        is_local: true,
    }
}

fn has_ended(grant: &Grant) -> bool {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    std::pin::pin!(grant.ended()).poll(&mut context).is_ready()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn what_is_known_is_not_asked_again_for_ten_seconds_and_once_by_all_together() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned()], None);
    let all: Vec<_> = (0..50).map(|_| world.grant("alice", "a")).collect();
    for grant in futures_util::future::join_all(all).await {
        assert_eq!(&*grant.unwrap().reason, "because");
    }
    assert_eq!(world.script.asked(), 2);
    sleep(seconds(9)).await;
    world.grant("alice", "a").await.unwrap();
    assert_eq!(world.script.asked(), 2);
    sleep(seconds(1)).await;
    world.grant("alice", "a").await.unwrap();
    assert_eq!(world.script.asked(), 4);
    // A token as a password is the same, whatever the user's name.
    let mut basic = evidence("", 1);
    basic.credential = Some(Ok(Credential::Basic {
        user: "x".into(),
        password: "alice".into(),
    }));
    assert_eq!(&*world.access.identify(basic).await.unwrap().user.name, "alice");
    assert_eq!(world.script.asked(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_rubbish_delays_no_user_and_evicts_none() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned()], None);
    world.script.set_token(|token| match token.starts_with("rubbish") {
        true => Ok(Verdict::Refused("the token is not valid".into())),
        false => Ok(Verdict::Proved(Arc::new(user(token)))),
    });
    let start = Instant::now();
    let access = &world.access;
    let flood = (0..10_000).map(|number| async move {
        sleep(Duration::from_micros(100 * number)).await;
        let denial = access
            .identify(evidence(&format!("rubbish{number}"), 7))
            .await
            .unwrap_err();
        assert!(matches!(
            denial.refusal,
            Refusal::CredentialsRefused | Refusal::AccessUnknown
        ));
    });
    let users = (0..50).map(|number| {
        let world = &world;
        async move {
            sleep(Duration::from_millis(20 * u64::from(number))).await;
            let begun = Instant::now();
            world.identify(&format!("user{number}"), 100 + number).await.unwrap();
            begun.elapsed()
        }
    });
    let (_, delays) = tokio::join!(
        futures_util::future::join_all(flood),
        futures_util::future::join_all(users)
    );
    // An answer takes 1 ms: none of them has waited for the flood.
    assert!(
        delays.iter().all(|delay| *delay <= Duration::from_millis(2)),
        "{delays:?}"
    );
    let most = world.script.most_at_once.load(Ordering::Relaxed);
    assert!(most <= 8, "{most}");
    // Two at a time: not more than two each millisecond.
    let asked = world.script.tokens.load(Ordering::Relaxed);
    let most = usize::try_from(start.elapsed().as_millis()).unwrap() * 2 + 60;
    assert!(asked <= most, "{asked} of {most}");
    let before = world.script.asked();
    for number in 0..50 {
        world.identify(&format!("user{number}"), 100 + number).await.unwrap();
    }
    assert_eq!(world.script.asked(), before);
}

#[tokio::test(start_paused = true)]
async fn thirty_minutes_without_the_api_server_end_no_tunnel() {
    let world = World::new(|_| {});
    world.publish((0..20).map(|number| format!("t{number}")), None);
    world.script.set_token(|token| {
        let mut user = user(token);
        user.expires = (token == "short").then(|| SystemTime::now() + seconds(120));
        Ok(Verdict::Proved(Arc::new(user)))
    });
    let mut running = Vec::new();
    for number in 0..20 {
        running.push(world.grant("alice", &format!("t{number}")).await.unwrap());
    }
    running.push(world.grant("short", "t0").await.unwrap());
    world.script.fail();
    world.access.changed(&Change::Everywhere);
    for minute in 0..30_u64 {
        sleep(seconds(60)).await;
        assert!(!running.iter().any(has_ended), "minute {minute}");
        let new = world.grant("alice", "t3").await.map_err(|denial| denial.refusal);
        // What was allowed stays allowed for ten minutes, and never beyond the credential's own end.
        if minute != 9 {
            let expected = if minute < 9 { None } else { Some(Refusal::AccessUnknown) };
            assert_eq!(new.err(), expected, "minute {minute}");
        }
        let short = world.grant("short", "t0").await;
        assert_eq!(short.is_ok(), minute < 1, "minute {minute}");
    }
    // The breaker asks a question every ten seconds.
    let asked = world.script.asked();
    assert!(asked < 600, "{asked}");
    world.script.set_access(|_, _| Ok(decision(true)));
    world
        .script
        .set_token(|token| Ok(Verdict::Proved(Arc::new(user(token)))));
    sleep(seconds(21)).await;
    world.grant("alice", "t3").await.unwrap();
    assert!(!running.iter().any(has_ended));
}

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
    assert_eq!(alices.ended().await, Reason::Unauthorized);
    assert!(
        again.elapsed() < seconds(1),
        "{:?} {:?}",
        again.elapsed(),
        start.elapsed()
    );
    assert!(!has_ended(&bobs));
    assert_eq!(
        world.grant("alice", "a").await.unwrap_err().refusal,
        Refusal::NotAuthorized
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
    assert_eq!(grant.ended().await, Reason::Unauthorized);
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
        .set_token(|_| Ok(Verdict::Refused("the token is not valid".into())));
    sleep(seconds(2 * 301)).await;
    assert!(grants.iter().all(has_ended));
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
    assert!((3_000..=6_000).contains(&asked), "{asked}");
    assert_eq!(world.access.pairs.len(), 2_000);
    grants.clear();
    assert_eq!(world.access.pairs.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_user_and_a_changed_list_end_their_tunnels_at_once() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned()], None);
    let (alices, bobs) = (
        world.grant("alice", "a").await.unwrap(),
        world.grant("bob", "a").await.unwrap(),
    );
    world.access.changed(&Change::UserGone("uid-alice".into()));
    assert!(has_ended(&alices) && !has_ended(&bobs));
    // The API server still proves it.
    assert_eq!(
        world.grant("alice", "a").await.unwrap_err().refusal,
        Refusal::CredentialsRefused
    );
    let lists = |users: &[&str]| UserLists {
        users: users.iter().map(|user| Box::from(*user)).collect(),
        groups: [].into(),
    };
    world.publish(["a".to_owned()], Some(&lists(&["carol"])));
    world.access.user_lists_changed();
    assert!(has_ended(&bobs));
    let denial = world.grant("bob", "a").await.unwrap_err();
    assert_eq!(denial.phrase(), "bob may not ssh to a.team");
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
async fn a_right_that_ends_before_the_tunnel_begins_refuses_it() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned()], None);
    let grant = world.grant("alice", "a").await.unwrap();
    let work = grant.while_valid(async {
        world.access.changed(&Change::UserGone("uid-alice".into()));
        sleep(seconds(1)).await;
        Ok(())
    });
    assert_eq!(work.await.unwrap_err().refusal, Refusal::NotAuthorized);
    // Also where it is taken back while the decision is still awaited.
    world.script.delay.store(500, Ordering::Relaxed);
    let subject = world.identify("bob", 1).await.unwrap();
    let target = world.target("a");
    let deciding = async {
        sleep(Duration::from_millis(100)).await;
        world.access.changed(&Change::UserGone("uid-bob".into()));
    };
    let (grant, ()) = tokio::join!(world.access.authorize(&subject, &target), deciding);
    assert!(has_ended(&grant.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_outlives_its_credential_or_not_as_configured() {
    for (at_expiry, ends) in [(AtExpiry::Keep, false), (AtExpiry::Close, true)] {
        let world = World::new(|options| options.at_expiry = at_expiry);
        world.publish(["a".to_owned()], None);
        world.script.set_token(|token| {
            let mut user = user(token);
            user.expires = Some(SystemTime::now() + seconds(60));
            Ok(Verdict::Proved(Arc::new(user)))
        });
        let grant = world.grant("alice", "a").await.unwrap();
        sleep(seconds(50)).await;
        assert!(!has_ended(&grant));
        sleep(seconds(20)).await;
        assert_eq!(has_ended(&grant), ends);
        if ends {
            assert_eq!(grant.ended().await, Reason::Expired);
        } else {
            // What the API server says of an expired token takes nothing back.
            world
                .script
                .set_token(|_| Ok(Verdict::Refused("the token has expired".into())));
            sleep(seconds(1200)).await;
            assert!(!has_ended(&grant));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_user_that_proves_nothing_or_is_the_clusters_own_is_refused() {
    let world = World::new(|_| {});
    for (name, groups, method, refusal) in [
        (
            "system:anonymous",
            vec![],
            Method::TokenReview,
            Some(Refusal::CredentialsRefused),
        ),
        (
            "x",
            vec!["system:unauthenticated"],
            Method::TokenReview,
            Some(Refusal::CredentialsRefused),
        ),
        ("", vec![], Method::TokenReview, Some(Refusal::CredentialsRefused)),
        (
            "system:serviceaccount:a:b",
            vec!["system:serviceaccounts"],
            Method::TokenReview,
            None,
        ),
        ("system:admin", vec![], Method::Oidc, Some(Refusal::IdentityRefused)),
        (
            "alice",
            vec!["system:masters"],
            Method::Oidc,
            Some(Refusal::IdentityRefused),
        ),
        (
            "alice",
            vec!["system:masters"],
            Method::Password,
            Some(Refusal::IdentityRefused),
        ),
        ("alice", vec!["system:authenticated", "ops"], Method::Oidc, None),
    ] {
        world.script.set_token(move |_| {
            let mut user = user(name);
            user.groups = groups.iter().map(|group| Box::from(*group)).collect();
            user.method = method;
            Ok(Verdict::Proved(Arc::new(user)))
        });
        let token =
            format!("{name}{method:?}{refusal:?}").replace(|character: char| !character.is_ascii_alphanumeric(), "x");
        let identified = world.identify(&token, 1).await;
        assert_eq!(
            identified.err().map(|denial| denial.refusal),
            refusal,
            "{name} {method:?}"
        );
    }
    // A token that begins with a space is answered as system:anonymous, so it is not asked about.
    let asked = world.script.asked();
    for token in [" alice", "al ice", "", "a\u{e9}"] {
        let denial = world.identify(token, 1).await.unwrap_err();
        assert_eq!(denial.refusal, Refusal::CredentialsRefused, "{token:?}");
    }
    assert_eq!(world.script.asked(), asked);
}

/// The TLS session of a client whose certificate has this subject.
fn peer(subject: &[(rcgen::DnType, &str)]) -> Arc<Peer> {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    for (kind, value) in subject {
        params.distinguished_name.push(kind.clone(), *value);
    }
    let own = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
    Arc::new(Peer {
        version: "1.3",
        identity: Identity::of(own.der()),
        certificates: vec![own.der().clone()],
    })
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_a_user_and_agrees_with_the_credential() {
    let world = World::new(|_| {});
    let (name, group) = (rcgen::DnType::CommonName, rcgen::DnType::OrganizationName);
    let alice = peer(&[(name.clone(), "alice"), (group.clone(), "ops")]);
    let master = peer(&[(name.clone(), "alice"), (group, "system:masters")]);
    let node = peer(&[(name.clone(), "system:node:a")]);
    let bob = peer(&[(name, "bob")]);
    let nameless = peer(&[]);
    let client = IpAddr::from([192, 0, 2, 1]);
    let identify = async |peer: &Arc<Peer>, token: Option<&str>| {
        let evidence = Evidence {
            credential: token.map(|token| Ok(Credential::Bearer(token.into()))),
            peer: Some(peer),
            client,
            is_local: false,
        };
        let identified = world.access.identify(evidence).await;
        identified
            .map(|subject| {
                format!(
                    "{} {} {:?}",
                    subject.user.name,
                    subject.user.groups.join(" "),
                    subject.user.method
                )
            })
            .map_err(|denial| denial.phrase().to_owned())
    };
    let own = |text: &str| Ok(text.to_owned());
    let refused = |text: &str| Err(text.to_owned());
    assert_eq!(
        identify(&alice, None).await,
        own("alice ops system:authenticated Certificate")
    );
    assert_eq!(
        identify(&alice, Some("alice")).await,
        own("alice system:authenticated TokenReview")
    );
    assert_eq!(
        identify(&bob, Some("alice")).await,
        refused("the certificate is that of bob, the credential that of alice")
    );
    let masters = "a client certificate cannot prove system:masters: it is the cluster's own";
    assert_eq!(identify(&master, None).await, refused(masters));
    assert_eq!(identify(&master, Some("alice")).await, refused(masters));
    assert!(identify(&node, None).await.unwrap_err().contains("system:node:a"));
    assert_eq!(
        identify(&nameless, None).await,
        refused(Refusal::CredentialsRequired.phrase())
    );
    assert_eq!(
        identify(&nameless, Some("alice")).await,
        own("alice system:authenticated TokenReview")
    );
}

#[tokio::test(start_paused = true)]
async fn no_series_has_a_user_in_it_and_what_is_burnt_is_counted() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned()], None);
    world.grant("alice", "a").await.unwrap();
    let mut clear = evidence("alice", 1);
    clear.is_local = false;
    let denial = world.access.identify(clear).await.unwrap_err();
    assert_eq!(denial.refusal, Refusal::CredentialsInClear);
    world.access.count();
    let page = world.metrics.encode().unwrap();
    assert!(!page.contains("alice"), "{page}");
    for line in [
        "switchboard_access_burnt_credentials_total 1",
        "switchboard_access_requests_total{method=\"token_review\",result=\"allowed\"} 1",
        "switchboard_access_requests_total{method=\"none\",result=\"credentials_in_clear\"} 1",
        "switchboard_access_cache_entries{cache=\"proved\"} 1",
        "switchboard_access_reviews_total{kind=\"token\",result=\"answered\"} 1",
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
}
