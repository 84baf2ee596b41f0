//! Users and rights with a scripted API server, on a clock of the test.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::files::passwords::PasswordFile;
use super::test_support::{Script, away, decision, user};
use super::*;
use crate::net::tls::{CertificateNames, ClientTls};
use crate::policy::allowlist::{Allowlist, Endpoints, ServiceTarget, TargetId, TargetRules, UserLists, Writer};
use crate::tunnel::exposition::{Registry, page, registry};
use crate::tunnel::outcome::CloseReason;

mod guesses;
mod identities;
mod keys;
mod listing;
mod memory;
mod permissions;
mod taken_back;
mod tickets;

struct World {
    script: Arc<Script>,
    access: Arc<Access>,
    allowlist: Arc<Allowlist>,
    writer: Writer,
    registry: Registry,
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
        let registry = registry().unwrap();
        let metrics = AccessMetrics::declare(&registry).unwrap();
        let access = Access::new(options, sources, &metrics);
        let (writer, allowlist) = Writer::new();
        Self {
            script,
            access,
            allowlist,
            writer,
            registry,
        }
    }

    /// Targets with these names in the namespace `team`.
    fn publish(&self, names: impl IntoIterator<Item = String>, lists: Option<&UserLists>) {
        self.publish_in(names.into_iter().map(|name| ("team", name)), lists);
    }

    /// Targets with these namespaces and names.
    fn publish_in<'a>(&self, names: impl IntoIterator<Item = (&'a str, String)>, lists: Option<&UserLists>) {
        let service = |(namespace, name): (&str, String)| ServiceTarget {
            id: TargetId {
                namespace: namespace.into(),
                service: name.as_str().into(),
            },
            ports: [22, 22],
            endpoints: Endpoints::default(),
            rules: TargetRules {
                user_lists: lists.cloned().map(Arc::new),
                ..TargetRules::default()
            },
        };
        self.writer.replace(names.into_iter().map(service).collect(), true);
    }

    fn target(&self, name: &str) -> Arc<Target> {
        self.allowlist
            .find_target(&format!("{name}.team:22").parse().unwrap())
            .unwrap()
    }

    async fn identify(&self, token: &str, client: u32) -> Result<Subject, Refusal> {
        self.access.authenticate(request(token, client)).await
    }

    /// Changes the rules, as a reload does.
    fn reload(&self, change: impl FnOnce(&mut Options)) {
        let config = self.access.decider.config.load_full();
        let mut options = config.options.clone();
        change(&mut options);
        let reviewer = Some(Arc::clone(&self.script) as Arc<dyn Reviewer>);
        let sources = Sources {
            reviewer,
            ..Sources::default()
        };
        self.access.apply(options, sources);
    }

    async fn grant(&self, token: &str, target: &str) -> Result<TunnelGrant, Refusal> {
        let subject = self.identify(token, 1).await?;
        self.access.authorize(&subject, &self.target(target)).await
    }
}

fn request(token: &str, client: u32) -> RequestCredentials<'static> {
    RequestCredentials {
        credential: Some(Ok(Credential::Bearer(token.into()))),
        client_tls: None,
        client: Ipv4Addr::from_bits(client).into(),
        is_local: true,
        is_encrypted: false,
        right: Right::Connect,
    }
}

fn has_ended(grant: &TunnelGrant) -> bool {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    std::pin::pin!(grant.revoked_or_expired()).poll(&mut context).is_ready()
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
    let mut basic = request("", 1);
    basic.credential = Some(Ok(Credential::Basic {
        user: "x".into(),
        password: "alice".into(),
    }));
    assert_eq!(&*world.access.authenticate(basic).await.unwrap().user.name, "alice");
    assert_eq!(world.script.asked(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_invalid_tokens_delays_no_user_and_evicts_none() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned()], None);
    world.script.set_token(|token| match token.starts_with("invalid") {
        true => Ok(Verdict::Rejected("the token is not valid".into())),
        false => Ok(Verdict::Authenticated(Arc::new(user(token)))),
    });
    let start = Instant::now();
    let access = &world.access;
    let flood = (0..10_000).map(|number| async move {
        sleep(Duration::from_micros(100 * number)).await;
        let refusal = access
            .authenticate(request(&format!("invalid{number}"), 7))
            .await
            .unwrap_err();
        assert!(matches!(
            refusal.reason,
            RefusalReason::CredentialsRefused | RefusalReason::AuthorizationUnavailable
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
    let max = world.script.most_at_once.load(Ordering::Relaxed);
    assert!(max <= 8, "{max}");
    // Two at a time: not more than two each millisecond.
    let asked = world.script.tokens.load(Ordering::Relaxed);
    let max = usize::try_from(start.elapsed().as_millis()).unwrap() * 2 + 60;
    assert!(asked <= max, "{asked} of {max}");
    let before = world.script.asked();
    for number in 0..50 {
        world.identify(&format!("user{number}"), 100 + number).await.unwrap();
    }
    assert_eq!(world.script.asked(), before);
}

#[tokio::test(start_paused = true)]
async fn tokens_on_which_the_server_takes_long_delay_no_question_about_rights() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned(), "b".to_owned()], None);
    world.grant("alice", "a").await.unwrap();
    world.script.delay.store(2_800, Ordering::Relaxed);
    let slow = (1..=24_u32).map(|number| {
        let access = Arc::clone(&world.access);
        tokio::spawn(async move {
            let request = request(&format!("slow{number}"), (number / 2) << 24);
            access.authenticate(request).await.is_ok()
        })
    });
    let slow: Vec<_> = slow.collect();
    sleep(Duration::from_millis(100)).await;
    world.script.delay.store(1, Ordering::Relaxed);
    let start = Instant::now();
    world.grant("alice", "b").await.unwrap();
    assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
    slow.iter().for_each(JoinHandle::abort);
}

/// The server of the keys takes connections and never answers.
#[tokio::test(start_paused = true)]
async fn tokens_that_wait_for_the_keys_of_an_issuer_keep_no_question_from_the_api_server() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let issuer = Issuer {
        issuer: "https://id.example".into(),
        audiences: vec!["switchboard".into()],
        username: "sub".into(),
        username_prefix: None,
        groups: None,
        jwks: format!("http://{}/keys", silent.local_addr().unwrap()).parse().unwrap(),
        ca: None,
        no_env_proxy: false,
    };
    let world = World::new(|options| options.oidc = vec![issuer.clone()]);
    let sources = Sources {
        reviewer: Some(Arc::clone(&world.script) as Arc<dyn Reviewer>),
        issuers: Some(Arc::new(oidc::Issuers::new(std::slice::from_ref(&issuer)))),
        ..Sources::default()
    };
    let mut options = Options::clone(&world.access.decider.config.load().options);
    options.mode = Mode::Enforce;
    world.access.apply(options, sources);
    let invented = (0..64).map(|number| {
        let token = invented(number);
        let access = &world.access;
        async move {
            let begun = Instant::now();
            let refusal = access.authenticate(request(&token, number / 2)).await.unwrap_err();
            assert_eq!(refusal.reason, RefusalReason::AuthorizationUnavailable);
            begun.elapsed()
        }
    });
    let user = async {
        // After them.
        tokio::task::yield_now().await;
        let begun = Instant::now();
        world.identify("alice", 1000).await.unwrap();
        begun.elapsed()
    };
    let (waits, delay) = tokio::join!(futures_util::future::join_all(invented), user);
    assert!(waits.iter().all(|wait| *wait >= seconds(4)), "{waits:?}");
    assert!(delay <= Duration::from_millis(2), "{delay:?}");
}

/// Returns a token of `https://id.example` by a key of that number, which does not exist.
fn invented(number: u32) -> String {
    let encode = |text: String| URL_SAFE_NO_PAD.encode(text);
    let expires = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs()
        + 600;
    let header = encode(format!(r#"{{"alg":"EdDSA","kid":"{number}"}}"#));
    let claims = encode(format!(
        r#"{{"iss":"https://id.example","aud":"switchboard","exp":{expires},"sub":"mallory"}}"#
    ));
    format!("{header}.{claims}.{}", URL_SAFE_NO_PAD.encode([0; 64]))
}

#[tokio::test(start_paused = true)]
async fn thirty_minutes_without_the_api_server_end_no_tunnel() {
    let world = World::new(|_| {});
    world.publish((0..20).map(|number| format!("t{number}")), None);
    world.script.set_token(|token| {
        let mut user = user(token);
        user.expires = (token == "short").then(|| SystemTime::now() + seconds(120));
        Ok(Verdict::Authenticated(Arc::new(user)))
    });
    let mut running = Vec::new();
    for number in 0..20 {
        running.push(world.grant("alice", &format!("t{number}")).await.unwrap());
    }
    running.push(world.grant("short", "t0").await.unwrap());
    world.script.fail();
    // A recheck, and no change of rights: that would end the earlier approvals.
    world.access.user_lists_changed();
    for minute in 0..30_u64 {
        sleep(seconds(60)).await;
        assert!(!running.iter().any(has_ended), "minute {minute}");
        let new = world.grant("alice", "t3").await.map_err(|refusal| refusal.reason);
        // An earlier approval counts for ten minutes, and never beyond the credential's own end.
        if minute != 9 {
            let expected = if minute < 9 {
                None
            } else {
                Some(RefusalReason::AuthorizationUnavailable)
            };
            assert_eq!(new.err(), expected, "minute {minute}");
        }
        let short = world.grant("short", "t0").await;
        assert_eq!(short.is_ok(), minute < 1, "minute {minute}");
    }
    // One right in use is asked about every second.
    let asked = world.script.asked();
    assert!(asked < 3_700, "{asked}");
    world.script.set_access(|_, _| Ok(decision(true)));
    world
        .script
        .set_token(|token| Ok(Verdict::Authenticated(Arc::new(user(token)))));
    sleep(seconds(21)).await;
    world.grant("alice", "t3").await.unwrap();
    assert!(!running.iter().any(has_ended));
}

/// As after a reload with another kubeconfig: at once, though no question about a token has an answer.
#[tokio::test(start_paused = true)]
async fn another_api_server_is_asked_though_the_one_before_it_does_not_answer() {
    let mut world = World::new(|_| {});
    world.script.fail();
    for number in 0..10 {
        let refusal = world.identify(&format!("user{number}"), number).await.unwrap_err();
        assert_eq!(refusal.reason, RefusalReason::AuthorizationUnavailable);
    }
    world.script = Script::new();
    world.reload(|_| {});
    let start = Instant::now();
    world.identify("alice", 1).await.unwrap();
    assert!(start.elapsed() <= Duration::from_millis(2), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_right_for_a_service_is_that_for_each_of_its_pods() {
    let world = World::new(|_| {});
    world.publish(["web-0.web".to_owned(), "web-0.other".to_owned()], None);
    world
        .script
        .set_access(|_, action| Ok(decision(&*action.name == "web")));
    assert!(world.grant("alice", "web-0.web").await.is_ok());
    let denied = world.grant("alice", "web-0.other").await.err().unwrap();
    assert_eq!(denied.reason, RefusalReason::NotAuthorized);
}

#[tokio::test(start_paused = true)]
async fn credentials_in_clear_count_from_loopback_or_everywhere_or_nowhere() {
    let world = World::new(|_| {});
    for (rule, of_loopback, of_others) in [
        (Cleartext::Refuse, false, false),
        (Cleartext::Loopback, true, false),
        (Cleartext::Allow, true, true),
    ] {
        world.reload(|options| options.cleartext = rule);
        for (is_local, is_accepted) in [(true, of_loopback), (false, of_others)] {
            let mut clear = request("alice", 1);
            clear.is_local = is_local;
            let denial = world
                .access
                .authenticate(clear)
                .await
                .err()
                .map(|refusal| refusal.reason);
            let expected = (!is_accepted).then_some(RefusalReason::CleartextCredentials);
            assert_eq!(denial, expected, "{rule:?} {is_local}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_series_has_a_user_in_it_and_cleartext_credentials_are_counted() {
    let world = World::new(|_| {});
    world.publish(["a".to_owned()], None);
    world.grant("alice", "a").await.unwrap();
    let mut clear = request("alice", 1);
    clear.is_local = false;
    let refusal = world.access.authenticate(clear).await.unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::CleartextCredentials);
    world.access.count();
    let page = page(&world.registry).unwrap();
    assert!(!page.contains("alice"), "{page}");
    for line in [
        "switchboard_access_cleartext_credentials_total 1",
        "switchboard_access_requests_total{method=\"token_review\",result=\"allowed\"} 1",
        "switchboard_access_requests_total{method=\"none\",result=\"cleartext_credentials\"} 1",
        "switchboard_access_cache_entries{cache=\"proved\"} 1",
        "switchboard_access_reviews_total{kind=\"token\",result=\"answered\"} 1",
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
}
