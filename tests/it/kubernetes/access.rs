//! The real binary asks who may go where: rights are given and taken back, and the API server fails in every way.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::api::{Api, Fault, Token, Verb};
use super::lab::{self, Lab};
use super::objects::{role, role_binding, service, slice, with};
use super::proxy::{Proxy, Refused, Tunnel, eventually, settings};
use super::stage::Stage;

/// A proxy with `access`, the target `devbox` of `team-a`, and `alice`, who may reach it.
async fn stage(lab: Lab, prepare: impl FnOnce(&Api)) -> Stage {
    let access = json!({"mode": "enforce", "cleartext": "allow", "kubernetes": {"enabled": true}});
    let settings = with(settings(&[]), "/access", access);
    let stage = Stage::over(lab, settings, async |api| {
        alice_at_devbox(api);
        prepare(api);
        api.open();
    });
    let stage = stage.await.ready().await;
    eventually("roles and bindings are watched", async || {
        stage.api.seen(Verb::Watch) >= WATCHES
    })
    .await;
    stage
}

fn alice_at_devbox(api: &Api) {
    api.put(slice("team-a", "devbox", &["10.9.1.1"]));
    api.put(service("team-a", "devbox"));
    api.put(role("team-a", "ssh", &["devbox"]));
    for user in ["alice", "bob"] {
        api.know(user, Token::new(user, &["switchboard"]));
    }
    api.put(binding("alice"));
}

fn binding(user: &str) -> Value {
    role_binding("team-a", user, "ssh", user)
}

fn bearer(token: &str) -> String {
    format!("Proxy-Authorization: Bearer {token}\r\n")
}

async fn login(proxy: &Proxy, token: &str) -> Result<Tunnel, Refused> {
    proxy.connect_with(DEVBOX, &bearer(token)).await
}

async fn is_refused(proxy: &Proxy, token: &str, status: u16, phrase: &str) {
    let refused = login(proxy, token).await.unwrap_err();
    assert!(
        refused.status == status && refused.phrase.contains(phrase),
        "{token}: {refused:?}"
    );
}

async fn unauthorized(proxy: &Proxy) -> f64 {
    let closed = proxy
        .metric("switchboard_tunnels_closed_total", "reason=\"access_revoked\"")
        .await;
    closed.unwrap_or_default()
}

#[test]
fn a_binding_that_is_removed_ends_the_tunnels_of_its_user_and_no_others() {
    lab::run(async |lab| {
        let stage = stage(lab, |api| api.put(binding("bob"))).await;
        let mut alices = [
            login(&stage.proxy, "alice").await.unwrap(),
            login(&stage.proxy, "alice").await.unwrap(),
        ];
        let mut bobs = login(&stage.proxy, "bob").await.unwrap();
        let started = Instant::now();
        stage.api.delete(&binding("alice"));
        for tunnel in &mut alices {
            tunnel.ended().await;
        }
        eprintln!(
            "figure: the last tunnel of a removed binding ended after {:?}",
            started.elapsed()
        );
        is_refused(&stage.proxy, "alice", 403, "alice may not ssh to devbox.team-a").await;
        eventually("both are counted", async || unauthorized(&stage.proxy).await == 2.0).await;
        bobs.echo().await.unwrap();
        // Given back: at once for new tunnels.
        stage.api.put(binding("alice"));
        eventually("alice is back", async || login(&stage.proxy, "alice").await.is_ok()).await;
        // By its role.
        stage.api.delete(&role("team-a", "ssh", &["devbox"]));
        bobs.ended().await;
    });
}

#[test]
fn a_binding_that_is_removed_before_a_late_first_list_of_bindings_ends_the_tunnels_of_its_user() {
    lab::run(async |lab| {
        let access = json!({"mode": "enforce", "cleartext": "allow", "kubernetes": {"enabled": true, "recheck": "1d"}});
        let settings = with(settings(&[]), "/access", access);
        let stage = Stage::over(lab, settings, async |api| {
            alice_at_devbox(api);
            api.allow("rolebindings", false);
            api.open();
        });
        let stage = stage.await.ready().await;
        let mut tunnel = login(&stage.proxy, "alice").await.unwrap();
        // The age of the replica, not a wait for anything: all rights are asked about at 2 s.
        sleep(Duration::from_secs(3)).await;
        tunnel.echo().await.unwrap();
        stage.api.delete(&binding("alice"));
        stage.api.allow("rolebindings", true);
        tunnel.ended().await;
    });
}

#[test]
fn an_account_that_is_deleted_loses_its_tunnels_and_its_token_at_once() {
    lab::run(async |lab| {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {
            "name": "ci", "namespace": "team-a", "uid": "u-ci"}});
        let subject = json!([{"kind": "ServiceAccount", "name": "ci", "namespace": "team-a"}]);
        let stage = stage(lab, |api| {
            api.put(account.clone());
            api.put(with(binding("ci"), "/subjects", subject));
            let mut token = Token::new("system:serviceaccount:team-a:ci", &["switchboard"]);
            token.user["uid"] = json!("u-ci");
            api.know("cis", token);
        })
        .await;
        let mut tunnel = login(&stage.proxy, "cis").await.unwrap();
        // The API server still says yes for 10 s, and this one for good.
        stage.api.delete(&account);
        tunnel.ended().await;
        assert_eq!(login(&stage.proxy, "cis").await.unwrap_err().status, 407);
        assert!(login(&stage.proxy, "alice").await.is_ok());
    });
}

#[test]
fn an_outage_ends_no_tunnel_and_a_right_that_is_lost_in_it_ends_after_it() {
    lab::run(async |lab| {
        let stage = stage(lab, |api| api.put(binding("carol"))).await;
        stage.api.know("carol", Token::new("carol", &["switchboard"]));
        let mut alices = login(&stage.proxy, "alice").await.unwrap();
        let mut carols = login(&stage.proxy, "carol").await.unwrap();
        // A change that a watch tells late has these reviewed again.
        eventually("both are remembered", async || {
            let entries = stage
                .proxy
                .metric("switchboard_access_cache_entries", "cache=\"allowed\"")
                .await;
            entries.is_some_and(|count| count >= 2.0)
        })
        .await;
        stage.api.close().await;
        stage.noticed("connect", 0.0).await;
        // Earlier answers count, and new users wait.
        login(&stage.proxy, "alice").await.unwrap();
        is_refused(&stage.proxy, "bob", 503, "try again").await;
        alices.echo().await.unwrap();
        carols.echo().await.unwrap();
        stage.api.delete(&binding("alice"));
        stage.api.open();
        let started = Instant::now();
        alices.ended().await;
        eprintln!(
            "figure: after an outage, a tunnel whose right was lost in it ended after {:?}",
            started.elapsed()
        );
        carols.echo().await.unwrap();
        eventually("reviews are answered", async || {
            login(&stage.proxy, "bob")
                .await
                .is_err_and(|refused| refused.status == 403)
        })
        .await;
        eventually("one is counted", async || unauthorized(&stage.proxy).await == 1.0).await;
    });
}

#[test]
fn errors_of_the_api_server_end_no_tunnel_however_often_it_is_asked() {
    lab::run(async |lab| {
        let stage = stage(lab, |_| {}).await;
        let mut tunnel = login(&stage.proxy, "alice").await.unwrap();
        let no = r#"{"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
            "status": {"allowed": false, "evaluationError": "the webhook does not answer"}}"#;
        for fault in [
            Fault::Status(500),
            Fault::Status(403),
            Fault::Status(401),
            Fault::TooMany,
            Fault::CutBody,
            Fault::Body("{}"),
            Fault::Body(no),
        ] {
            stage.api.fail(Verb::AccessReview, fault, usize::MAX);
            let rechecks = async || {
                let rechecks = stage
                    .proxy
                    .metric("switchboard_access_rechecks_total", "result=\"unknown\"")
                    .await;
                rechecks.unwrap_or_default()
            };
            let before = rechecks().await;
            // A change of the namespace has its tunnels asked about.
            stage.api.put(role("team-a", "other", &[]));
            eventually("it is asked in vain", async || rechecks().await > before).await;
            tunnel.echo().await.unwrap();
            stage.api.heal();
        }
        assert_eq!(unauthorized(&stage.proxy).await.to_string(), "0");
    });
}

#[test]
fn tokens_that_are_not_good_are_refused_with_the_reason_and_never_logged() {
    lab::run(async |lab| {
        let stage = stage(lab, |api| {
            let mut expired = Token::new("alice", &["switchboard"]);
            expired.is_expired = true;
            api.know("expired-s3cret", expired);
            api.know("elsewhere-s3cret", Token::new("alice", &["vault"]));
            api.know("anonymous-s3cret", Token::new("system:anonymous", &["switchboard"]));
        })
        .await;
        for (token, phrase) in [
            ("invalid-s3cret", "the token is not valid"),
            ("expired-s3cret", "the token has expired"),
            ("elsewhere-s3cret", "the token is for another audience"),
            ("anonymous-s3cret", ""),
        ] {
            is_refused(&stage.proxy, token, 407, phrase).await;
        }
        let asked = stage.api.seen(Verb::TokenReview);
        for token in [
            " alice",
            "%20alice",
            "alice alice",
            "ali\u{e9}ce",
            &"a".repeat(13 << 10),
        ] {
            let refused = login(&stage.proxy, token).await.unwrap_err();
            assert!([400, 407, 431].contains(&refused.status), "{token}: {refused:?}");
        }
        assert_eq!(stage.api.seen(Verb::TokenReview), asked, "none of these is asked about");
        let (_, metrics) = stage.proxy.page("/metrics").await.unwrap();
        let lines = stage.proxy.access().iter().map(ToString::to_string).collect::<String>();
        for text in [stage.proxy.messages(), lines, metrics] {
            assert!(!text.contains("s3cret"), "{text}");
        }
    });
}

/// The client of the API server and its libraries have the token in their hands, too. They are silent by default; a
/// search for a fault can make them speak.
#[test]
fn no_token_that_is_reviewed_is_in_what_is_written_even_by_libraries() {
    lab::run(async |lab| {
        let mut stage = stage(lab, |api| {
            api.know("alice-s3cret", Token::new("alice", &["switchboard"]))
        })
        .await;
        stage.restart_proxy_logging(LIBRARIES).await;
        eventually("the proxy is ready", async || stage.proxy.is_ready().await).await;
        let basic = |token: &str| {
            let encoded = STANDARD.encode(format!("any:{token}"));
            format!("Proxy-Authorization: Basic {encoded}\r\n")
        };
        let mut tokens = vec!["alice-s3cret".to_owned()];
        for fields in [bearer("alice-s3cret"), basic("alice-s3cret")] {
            let mut tunnel = stage.proxy.connect_with(DEVBOX, &fields).await.unwrap();
            tunnel.echo().await.unwrap();
        }
        for (index, (fault, status)) in [
            (None, 407),
            (Some(Fault::Status(500)), 503),
            (Some(Fault::CutBody), 503),
            (Some(Fault::Body("{}")), 503),
        ]
        .into_iter()
        .enumerate()
        {
            if let Some(fault) = fault {
                stage.api.fail(Verb::TokenReview, fault, usize::MAX);
            }
            for kind in ["bearer", "basic"] {
                let token = format!("{kind}-{index}-s3cret");
                let fields = if kind == "basic" { basic(&token) } else { bearer(&token) };
                let refused = stage.proxy.connect_with(DEVBOX, &fields).await.unwrap_err();
                assert_eq!(refused.status, status, "{token}: {refused:?}");
                assert!(!refused.phrase.contains("s3cret"), "{refused:?}");
                tokens.push(token);
            }
            stage.api.heal();
        }
        let (_, metrics) = stage.proxy.page("/metrics").await.unwrap();
        let lines = stage.proxy.access().iter().map(ToString::to_string).collect::<String>();
        let messages = stage.proxy.messages();
        assert!(messages.contains("TRACE"), "{messages}");
        for text in [messages, lines, metrics] {
            for line in text.lines() {
                let encoded =
                    |token: &str| [token.to_owned(), format!("any:{token}")].map(|text| STANDARD.encode(text));
                let is_told = tokens
                    .iter()
                    .any(|token| encoded(token).iter().any(|encoded| line.contains(encoded)));
                assert!(!is_told && !line.contains("s3cret"), "{line}");
            }
        }
    });
}

#[test]
fn missing_rights_of_the_proxy_are_named_once_and_ended_by_the_grant() {
    lab::run(async |lab| {
        let stage = Stage::over(
            lab,
            with(
                settings(&[]),
                "/access",
                json!({
                    "mode": "enforce", "cleartext": "allow", "kubernetes": {"enabled": true},
                }),
            ),
            async |api| {
                api.put(slice("team-a", "devbox", &["10.9.1.1"]));
                api.put(service("team-a", "devbox"));
                api.put(role("team-a", "ssh", &["devbox"]));
                api.put(binding("alice"));
                api.know("alice", Token::new("alice", &["switchboard"]));
                api.allow("rolebindings", false);
                api.allow("tokenreviews", false);
                api.open();
            },
        )
        .await
        .ready()
        .await;
        is_refused(&stage.proxy, "alice", 503, "try again").await;
        let says = async |text: &str| {
            eventually(text, async || stage.proxy.messages().contains(text)).await;
        };
        says("system:auth-delegator").await;
        says("resources: [rolebindings], verbs: [list, watch]").await;
        stage.api.allow("tokenreviews", true);
        eventually("alice is in", async || login(&stage.proxy, "alice").await.is_ok()).await;
        let warned = stage.proxy.messages().matches("verbs: [list, watch]").count();
        assert_eq!(warned, 1, "{}", stage.proxy.messages());
    });
}

#[test]
fn who_is_known_does_not_wait_for_reviews_that_hang() {
    lab::run(async |lab| {
        let stage = stage(lab, |api| api.put(binding("bob"))).await;
        let mut tunnel = login(&stage.proxy, "alice").await.unwrap();
        stage.api.fail(Verb::TokenReview, Fault::Hang, usize::MAX);
        let asked = stage.api.seen(Verb::TokenReview);
        let proxy = Arc::clone(&stage.proxy);
        let waiting = tokio::spawn(async move { login(&proxy, "bob").await.err().map(|refused| refused.status) });
        eventually("bob waits", async || stage.api.seen(Verb::TokenReview) > asked).await;
        // By a review that is remembered, or after ten seconds by an earlier yes.
        login(&stage.proxy, "alice").await.unwrap();
        tunnel.echo().await.unwrap();
        assert_eq!(waiting.await.unwrap(), Some(503));
        stage.api.heal();
        eventually("bob is in", async || login(&stage.proxy, "bob").await.is_ok()).await;
    });
}

#[test]
fn a_flood_of_invalid_tokens_keeps_no_user_out_and_asks_no_more_than_eight_at_once() {
    lab::run(async |lab| {
        let stage = stage(lab, |api| {
            for user in 0..USERS {
                let name = format!("user-{user}");
                api.know(&name, Token::new(&name, &["switchboard"]));
                api.put(binding(&name));
            }
        })
        .await;
        login(&stage.proxy, "alice").await.unwrap();
        // So slow that the flood reaches the bound: unlike at full speed, eight are under way together.
        stage.api.fail(Verb::TokenReview, Fault::Slow(SLOW), usize::MAX);
        let started = Instant::now();
        let mut invalid = JoinSet::new();
        for flooder in 0..FLOODERS {
            let proxy = Arc::clone(&stage.proxy);
            let from = IpAddr::V4(Ipv4Addr::new(10, 9, 66, u8::try_from(flooder + 1).unwrap()));
            invalid.spawn(async move {
                let mut answers = Vec::new();
                for number in 0..INVALID / FLOODERS {
                    let token = bearer(&format!("invalid-{flooder}-{number}"));
                    answers.push(proxy.connect_from(Some(from), DEVBOX, &token).await.unwrap_err().status);
                }
                answers
            });
        }
        let mut times = Vec::new();
        for user in 0..USERS {
            let from = IpAddr::V4(Ipv4Addr::new(10, 9, 77, u8::try_from(user + 1).unwrap()));
            let started = Instant::now();
            let token = bearer(&format!("user-{user}"));
            let answer = stage.proxy.connect_from(Some(from), DEVBOX, &token).await;
            assert!(answer.is_ok(), "user {user}: {answer:?}");
            times.push(started.elapsed());
        }
        let asked = stage.api.seen(Verb::TokenReview);
        let answers: Vec<_> = invalid.join_all().await.into_iter().flatten().collect();
        let took = started.elapsed();
        assert!(answers.iter().all(|status| [407, 503].contains(status)));
        let most = stage.api.most_reviews();
        assert_eq!(most, 8, "token reviews at once");
        // A user that is known is asked about no more: invalid tokens do not evict it.
        assert!(login(&stage.proxy, "alice").await.is_ok());
        times.sort();
        let late = times[times.len() - 1];
        eprintln!(
            "figure: {INVALID} invalid tokens in {took:?}, at most {most} reviews at once, {asked} when the users were in"
        );
        eprintln!(
            "figure: {USERS} users meanwhile: median {:?}, latest {late:?}",
            times[times.len() / 2]
        );
    });
}

const DEVBOX: &str = "devbox.team-a:22";
/// Services, slices, and what rights are made of.
pub(super) const WATCHES: usize = 7;
const USERS: usize = 50;
const FLOODERS: usize = 40;
const INVALID: usize = 10_000;
const LIBRARIES: &str = "trace,h2=trace,hyper=trace,hyper_util=trace,kube=trace,kube_client=trace,tower=trace,\
                         tower_http=trace,rustls=trace";
/// The time of a review.
const SLOW: Duration = Duration::from_millis(10);
