//! The whole of it, from the configuration to the tunnel: users of the API server and of a file, the cluster's RBAC, and
//! Services and targets that name their users themselves.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use switchboard::tunnel::outcome::RefusalReason;

use super::api::{Api, Token};
use super::lab::{self, Lab};
use super::objects::{annotated, role, role_binding, service, slice, with};
use super::proxy::{Tunnel, eventually, settings};
use super::stage::Stage;

/// `ann` and `bob` have tokens, and bob may reach every Service of team-a.
fn users(api: &Api) {
    api.know("anns-token", Token::new("ann", &["switchboard"]));
    api.know("bobs-token", Token::new("bob", &["switchboard"]));
    api.put(role("team-a", "ssh", &[]));
    api.put(role_binding("team-a", "bob", "ssh", "bob"));
}

async fn stage(lab: Lab, access: Value) -> Stage {
    let settings = with(settings(&[]), "/access", access);
    let prepare = async |api: &Api| {
        users(api);
        api.open();
    };
    Stage::over(lab, settings, prepare).await.ready().await
}

fn enforced() -> Value {
    json!({"mode": "enforce", "cleartext": "allow", "kubernetes": {"enabled": true, "recheck": "1d"}})
}

impl Stage {
    /// The status and phrase that the bearer of the token gets; `200` for a tunnel.
    async fn answer(&self, authority: &str, token: &str) -> String {
        match self.tunnel(authority, token).await {
            Ok(_) => "200".to_owned(),
            Err(answer) => answer,
        }
    }

    async fn tunnel(&self, authority: &str, token: &str) -> Result<Tunnel, String> {
        let field = match token {
            "" => String::new(),
            token => format!("Proxy-Authorization: Bearer {token}\r\n"),
        };
        let connected = self.proxy.connect_with(authority, &field).await;
        connected.map_err(|refused| format!("{} {}", refused.status, refused.phrase))
    }

    async fn answers(&self, authority: &str, token: &str, expected: &str) {
        eventually(&format!("{authority} answers {token} {expected}"), async || {
            self.answer(authority, token).await == expected
        })
        .await;
    }

    fn put_with(&self, name: &str, pod: &str, annotations: &[(&str, &str)]) {
        self.api.put(slice("team-a", name, &[pod]));
        self.api.put(annotated(service("team-a", name), annotations));
    }

    async fn ended_as(&self, reason: &str, user: &str) {
        eventually(&format!("a tunnel of {user} ends as {reason}"), async || {
            let lines = self.proxy.access();
            lines
                .iter()
                .any(|line| line["reason"] == reason && line["user.name"] == user)
        })
        .await;
    }
}

#[test]
fn a_service_names_its_users_in_place_of_the_cluster_and_takes_them_back() {
    lab::run(async |lab| {
        let stage = stage(lab, enforced()).await;
        stage.put("open", "10.9.1.1");
        stage.put_with("own", "10.9.1.2", &[("allowed-users", "ann, carol")]);
        stage.answers("open.team-a:22", "bobs-token", "200").await;
        stage.answers("own.team-a:22", "anns-token", "200").await;
        let gone = format!("403 {}", RefusalReason::NotAllowed.phrase());
        for (name, token, expected) in [
            ("open.team-a:22", "anns-token", "403 ann may not ssh to open.team-a"),
            // The binding that opens the whole namespace to bob does not count.
            ("own.team-a:22", "bobs-token", "403 bob may not ssh to own.team-a"),
            ("gone.team-a:22", "bobs-token", &gone),
        ] {
            assert_eq!(stage.answer(name, token).await, expected);
        }
        for name in ["open.team-a:22", "own.team-a:22", "gone.team-a:22"] {
            let answer = stage.answer(name, "").await;
            assert!(answer.starts_with("407 credentials are required"), "{name}: {answer}");
        }
        let mut of_ann = stage.tunnel("own.team-a:22", "anns-token").await.unwrap();
        let mut of_bob = stage.tunnel("open.team-a:22", "bobs-token").await.unwrap();
        stage.put_with("own", "10.9.1.2", &[("allowed-users", "carol,bob")]);
        of_ann.ended().await;
        stage.ended_as("access_revoked", "ann").await;
        stage.answers("own.team-a:22", "bobs-token", "200").await;
        of_bob.echo().await.unwrap();
        // No user, and not every user with a right of the cluster.
        stage.put_with("own", "10.9.1.2", &[("allowed-users", " ,")]);
        stage
            .answers("own.team-a:22", "bobs-token", "403 bob may not ssh to own.team-a")
            .await;
        eventually("the log names the annotation", async || {
            stage.proxy.messages().contains("expected names between commas")
        })
        .await;
        of_bob.echo().await.unwrap();
    });
}

#[test]
fn a_target_is_judged_as_what_would_be_dialled_by_whatever_name_it_is_asked_for() {
    lab::run(async |lab| {
        let twin = json!({"name": "twin.team-a:22", "addresses": ["10.9.1.1:22"], "allowed_users": ["ann"]});
        let settings = with(settings(&[]), "/access", enforced());
        let settings = with(settings, "/allowlist/static", json!([twin]));
        let prepare = async |api: &Api| {
            users(api);
            api.open();
        };
        let stage = Stage::over(lab, settings, prepare).await.ready().await;
        stage.put("twin", "10.9.1.2");
        // The Service: bob's by RBAC. The static target of its shortest name: ann's by its list.
        stage.answers("twin.team-a.svc:22", "bobs-token", "200").await;
        for (name, token, expected) in [
            ("twin.team-a:22", "bobs-token", "403 bob may not ssh to twin.team-a:22"),
            ("TWIN.team-a.:22", "bobs-token", "403 bob may not ssh to twin.team-a:22"),
            ("twin.team-a:22", "anns-token", "200"),
            ("Twin.Team-A.Svc.cluster.local.:22", "bobs-token", "200"),
            ("twin.team-a.svc:22", "anns-token", "403 ann may not ssh to twin.team-a"),
        ] {
            assert_eq!(stage.answer(name, token).await, expected, "{name}");
        }
    });
}

#[test]
fn report_refuses_nobody_and_says_whom_it_would_refuse() {
    lab::run(async |lab| {
        let stage = stage(lab, with(enforced(), "/mode", json!("report"))).await;
        stage.put("box", "10.9.1.1");
        stage.answers("box.team-a:22", "anns-token", "200").await;
        drop(stage.tunnel("box.team-a:22", "").await.unwrap());
        eventually("both are in the access log", async || {
            let lines = stage.proxy.access();
            let says = |user: &str, reason: &str| {
                lines.iter().any(|line| {
                    line["user.name"] == user
                        && line["status"] == 200
                        && line["authorization.reason"].as_str().unwrap().contains(reason)
                })
            };
            says("ann", "may not ssh to box.team-a") && says("", "credentials are required")
        })
        .await;
    });
}

/// The target is never dialled: the answer tells whether it would be.
#[test]
fn a_user_of_the_file_is_taken_back_with_the_line_and_with_the_list_of_the_target() {
    lab::run(async |lab| {
        let path = lab.directory().join("users");
        fs::write(&path, format!("dora:{HASH}:ops\n")).unwrap();
        let access = json!({"mode": "enforce", "cleartext": "allow", "users": {"file": path}});
        let target = json!({"name": "box.local:22", "addresses": ["10.9.1.1:22"], "allowed_groups": ["ops"]});
        let settings = with(settings(&[]), "/access", access);
        let settings = with(settings, "/allowlist/static", json!([target]));
        let mut stage = Stage::over(lab, settings, async |api| api.open()).await.ready().await;
        // dora:secret, dora:wrong
        let (right, wrong) = ("Basic ZG9yYTpzZWNyZXQ=", "Basic ZG9yYTp3cm9uZw==");
        let field = |credential: &str| format!("Proxy-Authorization: {credential}\r\n");
        let refused = stage
            .proxy
            .connect_with("box.local:22", &field(wrong))
            .await
            .unwrap_err();
        assert_eq!(refused.status, 407, "{refused:?}");
        let mut tunnel = stage.proxy.connect_with("box.local:22", &field(right)).await.unwrap();
        tunnel.echo().await.unwrap();
        let no_group = with(
            stage.settings.clone(),
            "/allowlist/static/0/allowed_groups",
            json!(["dev"]),
        );
        stage.settings = no_group;
        fs::write(
            stage.lab.directory().join("switchboard.yaml"),
            stage.settings.to_string(),
        )
        .unwrap();
        let process = Pid::from_raw(stage.proxy.id().try_into().unwrap()).unwrap();
        kill_process(process, Signal::HUP).unwrap();
        tunnel.ended().await;
        stage.ended_as("access_revoked", "dora").await;
        let refused = stage
            .proxy
            .connect_with("box.local:22", &field(right))
            .await
            .unwrap_err();
        assert_eq!(
            (refused.status, &*refused.phrase),
            (403, "dora may not ssh to box.local:22")
        );
    });
}

/// Of `secret`, by crypt(3).
const HASH: &str = "$2b$05$C4ig4r120vyo1vh3fN8r8eddKnyGQAkEoAfFDQZ/bfVWLmETlp4ki";
