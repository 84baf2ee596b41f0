//! The reviewer asks an API server that answers, refuses, errs, is slow, silent or gone: what is no answer is never a no.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use switchboard::base::secret::Secret;
use switchboard::kubernetes::ApiReviewer;
use switchboard::policy::access::{
    Action, Decision, Kubernetes, Method, NoAnswer, Permission, ReviewError, Reviewer, User, Verdict,
};
use switchboard::protocol::jwt::Jwt;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::api::{Api, Fault, Token, Verb};
use super::lab::{self, API, Lab};
use super::objects::{role, role_binding};
use super::proxy::eventually;

/// A server, and a reviewer of those audiences.
struct Scene {
    api: Api,
    reviewer: ApiReviewer,
}

impl Scene {
    fn new(lab: &Lab, audiences: &[&str]) -> Self {
        let api = Api::new(lab.directory(), API);
        api.open();
        api.know("good", Token::new("alice", &["switchboard"]));
        api.put(role("team-a", "ssh", &["devbox"]));
        api.put(role_binding("team-a", "alice", "ssh", "alice"));
        let options = Kubernetes {
            audiences: audiences.iter().map(|&name| name.into()).collect(),
            ..Kubernetes::default()
        };
        Self {
            reviewer: ApiReviewer::new(&options, Some(api.kubeconfig())),
            api,
        }
    }

    async fn token(&self, text: &str) -> Result<Verdict, ReviewError> {
        let jwt = Jwt::read(text).ok().flatten();
        self.reviewer.review_token(&Secret::from(text), jwt.as_ref()).await
    }

    /// The name of the token's user, or the sentence of its refusal.
    async fn bearer(&self, text: &str) -> Result<String, String> {
        match self.token(text).await.unwrap() {
            Verdict::Authenticated(user) => Ok(user.name.to_string()),
            Verdict::Rejected(sentence) => Err(sentence.to_string()),
        }
    }

    async fn access(&self, user: &str) -> Result<Decision, ReviewError> {
        self.reviewer.review_access(&named(user), &ssh("devbox")).await
    }

    /// Both questions have that kind of failure, or one of two, each with a message that has all of these parts.
    async fn both_fail(&self, kind: &str, parts: &[&str]) {
        let answers = [
            self.token("good").await.map(|_| ()),
            self.access("alice").await.map(|_| ()),
        ];
        for answer in answers {
            let unavailable = answer.unwrap_err();
            assert!(
                kind.split('|')
                    .any(|kind| kind.eq_ignore_ascii_case(&format!("{:?}", unavailable.kind))),
                "{kind}: {unavailable}"
            );
            for part in parts {
                assert!(unavailable.message.contains(part), "{unavailable}");
            }
        }
    }

    async fn both_work(&self) {
        assert_eq!(self.bearer("good").await.as_deref(), Ok("alice"));
        assert!(self.access("alice").await.unwrap().allowed);
    }

    fn fail_both(&self, fault: Fault) {
        for verb in [Verb::TokenReview, Verb::AccessReview] {
            self.api.fail(verb, fault, usize::MAX);
        }
    }

    fn asked(&self) -> usize {
        self.api.seen(Verb::TokenReview) + self.api.seen(Verb::AccessReview)
    }
}

fn named(user: &str) -> User {
    User {
        name: user.into(),
        uid: None,
        groups: vec!["system:authenticated".into()],
        extra: BTreeMap::new(),
        method: Method::TokenReview,
        expires: None,
    }
}

fn ssh(name: &str) -> Action {
    Action {
        permission: Permission::default(),
        namespace: "team-a".into(),
        name: name.into(),
    }
}

#[test]
fn a_token_proves_its_user_and_the_user_may_what_a_binding_says() {
    lab::run(async |lab| {
        let scene = Scene::new(&lab, &["switchboard"]);
        scene.api.know(
            "full",
            Token {
                user: json!({
                    "username": "bob", "uid": "u-7", "groups": ["ops"], "extra": {"example.com/k": ["v", "w"]},
                }),
                ..Token::new("", &["switchboard"])
            },
        );
        let Verdict::Authenticated(bob) = scene.token("full").await.unwrap() else {
            panic!("it is a good token");
        };
        let expected = User {
            uid: Some("u-7".into()),
            groups: vec!["ops".into(), "system:authenticated".into()],
            extra: BTreeMap::from([("example.com/k".into(), vec!["v".into(), "w".into()])]),
            ..named("bob")
        };
        assert_eq!(*bob, expected);
        assert!(scene.api.reviewers_agent().starts_with("switchboard-access/"));
        let allowed = scene.access("alice").await.unwrap();
        assert!(allowed.allowed && allowed.complete);
        assert_eq!(
            &*allowed.reason,
            r#"RBAC: allowed by RoleBinding "alice/team-a" of Role "ssh" to User "alice""#
        );
        for refused in [
            scene.reviewer.review_access(&bob, &ssh("devbox")).await,
            scene.reviewer.review_access(&named("alice"), &ssh("other")).await,
            scene.reviewer.review_access(&named("Alice"), &ssh("devbox")).await,
        ] {
            let refused = refused.unwrap();
            assert!(!refused.allowed && refused.complete, "{refused:?}");
        }
        // By group: what the token says of its user is passed on.
        scene.api.put(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "ops"},
            "roleRef": {"kind": "ClusterRole", "name": "ssh"}, "subjects": [{"kind": "Group", "name": "ops"}],
        }));
        let dangling = scene.reviewer.review_access(&bob, &ssh("devbox")).await.unwrap();
        assert!(
            !dangling.allowed && dangling.reason.contains("not found"),
            "{dangling:?}"
        );
        scene.api.put(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "ssh"},
            "rules": [{"apiGroups": [""], "resources": ["services/ssh"], "verbs": ["create"]}],
        }));
        assert!(
            scene
                .reviewer
                .review_access(&bob, &ssh("devbox"))
                .await
                .unwrap()
                .allowed
        );
    });
}

#[test]
fn a_token_that_is_not_good_is_refused_with_a_sentence_that_quotes_nothing_of_it() {
    lab::run(async |lab| {
        let scene = Scene::new(&lab, &["switchboard"]);
        let mut expired = Token::new("alice", &["switchboard"]);
        expired.is_expired = true;
        scene.api.know("expired", expired);
        scene.api.know("elsewhere", Token::new("alice", &["vault"]));
        scene.api.know("nobody", Token::new("", &["switchboard"]));
        scene
            .api
            .know("anonymous", Token::new("system:anonymous", &["switchboard"]));
        for (text, sentence) in [
            ("invalid", "the token is not valid"),
            ("expired", "the token has expired"),
            ("elsewhere", "the token is for another audience"),
            ("nobody", "the token is not valid"),
            ("anonymous", "the token is not valid"),
        ] {
            assert_eq!(scene.bearer(text).await, Err(sentence.to_owned()), "{text}");
        }
        scene.api.know("brief", Token::new("alice", &["switchboard"]));
        assert_eq!(scene.bearer("brief").await.as_deref(), Ok("alice"));
        scene.api.forget("brief");
        assert!(scene.bearer("brief").await.is_err(), "no answer is remembered here");
        let asked = scene.asked();
        for text in [" good", "good ", "go\nod", "go\u{e9}d"] {
            assert_eq!(
                scene.bearer(text).await,
                Err("the token is not valid".to_owned()),
                "{text:?}"
            );
        }
        assert_eq!(scene.asked(), asked, "none of these is asked about");
        // A server that knows no audiences gives a yes to each token.
        let yes = r#"{"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "status": {"authenticated": true,
            "user": {"username": "alice"}}}"#;
        scene.api.fail(Verb::TokenReview, Fault::Body(yes), 1);
        let sentence = "the token is for another audience".to_owned();
        assert_eq!(scene.bearer("elsewhere").await, Err(sentence));
    });
}

#[test]
fn named_audiences_and_the_servers_own_are_two_questions() {
    lab::run(async |lab| {
        let own = "https://kubernetes.default.svc.cluster.local";
        for (audiences, switchboards, servers) in [
            (&["switchboard"][..], true, false),
            (&[""], false, true),
            (&[], false, true),
            (&["switchboard", ""], true, true),
            (&["", "other"], false, true),
        ] {
            let api = Scene::new(&lab, audiences);
            api.api.know("servers", Token::new("bob", &[own]));
            assert_eq!(api.bearer("good").await.is_ok(), switchboards, "{audiences:?}");
            assert_eq!(api.bearer("servers").await.is_ok(), servers, "{audiences:?}");
            api.api.close().await;
        }
    });
}

#[test]
fn what_is_no_answer_is_never_a_no() {
    lab::run(async |lab| {
        let scene = Scene::new(&lab, &["switchboard"]);
        scene.both_work().await;
        for (fault, kind) in [
            (Fault::Status(500), "silence"),
            (Fault::CutBody, "silence"),
            (Fault::Long(300 << 10), "silence"),
        ] {
            scene.fail_both(fault);
            scene.both_fail(kind, &[]).await;
            scene.api.heal();
            scene.both_work().await;
        }
    });
}

#[test]
fn a_server_that_hangs_is_not_waited_for_longer_than_the_deadline() {
    lab::run(async |lab| {
        let scene = Scene::new(&lab, &["switchboard"]);
        scene.both_work().await;
        scene.fail_both(Fault::Hang);
        scene.both_fail("silence", &["no answer within 3 s"]).await;
        scene.api.heal();
        scene.both_work().await;
        scene.fail_both(Fault::Slow(Duration::from_millis(300)));
        scene.both_work().await;
        scene.api.heal();
        // Half open: nothing comes on the connections that there are, and another server takes the place of this one.
        scene.api.freeze(true);
        // The second question may be on a new connection, whose handshake has a deadline of its own.
        scene.both_fail("silence|unreachable", &[]).await;
        scene.api.close().await;
        scene.both_fail("unreachable", &[]).await;
        scene.api.freeze(false);
        scene.api.open();
        scene.both_work().await;
    });
}

#[test]
fn a_rotated_token_is_read_from_its_file_and_the_question_asked_again() {
    lab::run(async |lab| {
        let scene = Scene::new(&lab, &["switchboard"]);
        scene.both_work().await;
        scene.api.rotate_token("second");
        scene.api.write_token("second");
        scene.both_work().await;
        // The file is late.
        scene.api.rotate_token("third");
        scene.both_fail("refused", &["switchboard's own credentials"]).await;
        scene.api.write_token("third");
        eventually("the new file is read", async || scene.token("good").await.is_ok()).await;
        scene.both_work().await;
        // Certificates of another authority.
        scene.api.close().await;
        scene.api.renew_authority();
        scene.api.open();
        eventually("the new authority is read", async || scene.token("good").await.is_ok()).await;
    });
}

#[test]
fn wrong_credentials_are_not_tried_with_a_new_connection_for_each_question() {
    lab::run(async |lab| {
        let scene = Scene::new(&lab, &["switchboard"]);
        scene.both_work().await;
        scene.api.rotate_token("second");
        let (asked, started) = (scene.asked(), Instant::now());
        for _ in 0..50 {
            scene.both_fail("refused", &[]).await;
        }
        // One more for the first one, and one for each second since.
        let more = scene.asked() - asked - 100;
        let most = 1 + usize::try_from(started.elapsed().as_secs()).unwrap();
        assert!(more <= most, "{more} of {most}");
    });
}

#[test]
fn a_missing_right_is_named_with_the_command_that_grants_it() {
    lab::run(async |lab| {
        let scene = Scene::new(&lab, &["switchboard"]);
        scene.both_work().await;
        for plural in ["tokenreviews", "subjectaccessreviews"] {
            scene.api.allow(plural, false);
        }
        let parts = [
            "system:auth-delegator",
            "kubectl create clusterrolebinding",
            "cannot create resource",
        ];
        scene.both_fail("refused", &parts).await;
        for plural in ["tokenreviews", "subjectaccessreviews"] {
            scene.api.allow(plural, true);
        }
        scene.both_work().await;
    });
}

#[test]
fn a_server_that_asks_for_a_wait_is_not_asked_meanwhile() {
    lab::run(async |lab| {
        let scene = Scene::new(&lab, &["switchboard"]);
        scene.both_work().await;
        scene.api.fail(Verb::TokenReview, Fault::TooManyFor(2), 1);
        let started = Instant::now();
        assert_eq!(scene.token("good").await.unwrap_err().kind, NoAnswer::Refused);
        let asked = scene.asked();
        while scene
            .access("alice")
            .await
            .is_err_and(|error| error.kind == NoAnswer::Refused)
        {
            // However slow the machine is: as long as the answer is this one, nothing was asked.
            assert_eq!(scene.asked(), asked);
            sleep(Duration::from_millis(20)).await;
        }
        assert!(started.elapsed() >= Duration::from_secs(2), "{:?}", started.elapsed());
        scene.both_work().await;
    });
}

#[test]
fn an_answer_that_quotes_the_token_leaves_no_part_of_it_in_the_message() {
    lab::run(async |lab| {
        let scene = Scene::new(&lab, &["switchboard"]);
        let secret = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl";
        let body = r#"{"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "spec":
            "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl", "status": "eyJhbGciOiJSUzI1NiJ9"}"#;
        scene.api.fail(Verb::TokenReview, Fault::Body(body), 1);
        let message = scene.token(secret).await.unwrap_err().message;
        assert!(!message.contains("eyJ"), "{message}");
        assert!(!format!("{:?}", scene.reviewer).contains("eyJ"));
    });
}

#[test]
fn a_no_of_a_server_that_has_just_come_back_is_incomplete_and_a_yes_is_not() {
    lab::run(async |lab| {
        let scene = Scene::new(&lab, &["switchboard"]);
        scene.both_work().await;
        assert!(scene.access("bob").await.unwrap().complete);
        scene.api.close().await;
        scene.both_fail("unreachable", &[]).await;
        scene.api.open();
        let since = Instant::now();
        let decided = scene.access("bob").await.unwrap();
        // On a machine that is stopped for that long, it is complete by right.
        let is_new = since.elapsed() < Duration::from_secs(1);
        assert!(!decided.allowed, "{decided:?}");
        assert!(!decided.complete || !is_new, "{decided:?}");
        let allowed = scene.access("alice").await.unwrap();
        assert!(allowed.allowed && allowed.complete);
        eventually("a no is complete", async || scene.access("bob").await.unwrap().complete).await;
    });
}

#[test]
fn many_questions_at_once_share_one_client() {
    lab::run(async |lab| {
        let scene = Scene::new(&lab, &["switchboard"]);
        scene.fail_both(Fault::Slow(Duration::from_millis(100)));
        let reviewer: Arc<dyn Reviewer> = Arc::new(scene.reviewer);
        let mut questions = JoinSet::new();
        for _ in 0..20 {
            let reviewer = Arc::clone(&reviewer);
            questions.spawn(async move { reviewer.review_token(&Secret::from("good"), None).await.is_ok() });
        }
        assert_eq!(questions.join_all().await, [true; 20]);
        assert!(scene.api.most_reviews() > 1);
    });
}
