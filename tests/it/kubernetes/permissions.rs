//! Permissions, given and taken back: with a real API server or the fake one.

use std::time::Instant;

use serde_json::{Value, json};

use super::cluster::{self, Ground};
use super::lab::PROXY;
use super::objects::{endpoint, pod, role, role_binding, service, slice, with};
use super::proxy::{PORT, Refused, Tunnel, eventually};

/// The Service `web`, which the object `box` owns, with its pod `web-0`, and the pod `bare` of that owner.
async fn prepare(ground: &Ground) -> String {
    let here = &ground.here;
    let named = with(endpoint("10.9.1.1", "ready"), "/hostname", json!("web-0"));
    ground
        .apply(&with(slice(here, "web", &["10.9.1.1"]), "/endpoints", json!([named])))
        .await;
    ground.apply(&owned(ground, "box")).await;
    let labels = json!({"switchboard.dev/expose": "true", "switchboard.dev/owner": "box"});
    let bare = with(pod(here, "bare", "10.9.1.2"), "/metadata/labels", labels);
    ground.apply_pod(&bare).await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "ci", "namespace": here}});
    ground.apply(&account).await;
    ground.token("ci").await
}

fn owned(ground: &Ground, owner: &str) -> Value {
    let labels = json!({"switchboard.dev/expose": "true", "switchboard.dev/owner": owner});
    let service = with(service(&ground.here, "web"), "/spec/clusterIP", json!("None"));
    with(service, "/metadata/labels", labels)
}

fn binding(ground: &Ground) -> Value {
    let subject = json!([{"kind": "ServiceAccount", "name": "ci", "namespace": ground.here}]);
    with(role_binding(&ground.here, "ci", "ssh", ""), "/subjects", subject)
}

async fn login(ground: &Ground, name: &str, token: &str) -> Result<Tunnel, Refused> {
    let field = format!("Proxy-Authorization: Bearer {token}\r\n");
    let domain = if name == "bare" { ".pod" } else { "" };
    let authority = format!("{name}.{}{domain}:22", ground.here);
    ground.proxy.connect_with(&authority, &field).await
}

/// Gives the rule to a user, who then reaches the name, and takes it back.
async fn is_given_and_taken(ground: &Ground, name: &str, rule: Value) {
    let token = prepare(ground).await;
    let role = with(role(&ground.here, "ssh", &[]), "/rules", json!([rule]));
    ground.apply(&role).await;
    let refused = login(ground, name, &token).await.unwrap_err();
    assert_eq!(refused.status, 403, "{refused:?}");
    ground.apply(&binding(ground)).await;
    let started = Instant::now();
    eventually("the permission counts", async || {
        login(ground, name, &token).await.is_ok()
    })
    .await;
    let given = started.elapsed();
    let mut tunnel = login(ground, name, &token).await.unwrap();
    ground.delete(&binding(ground)).await;
    let started = Instant::now();
    tunnel.ended().await;
    eprintln!(
        "figure: {name}: given after {given:?}, its tunnel ended after {:?}",
        started.elapsed()
    );
    assert_eq!(login(ground, name, &token).await.unwrap_err().status, 403);
}

#[test]
fn create_services_ssh_by_the_name_of_the_service() {
    cluster::run_with_permission(&json!("ssh"), async |ground| {
        let rule =
            json!({"apiGroups": [""], "resources": ["services/ssh"], "verbs": ["create"], "resourceNames": ["web"]});
        is_given_and_taken(ground, "web-0.web", rule).await;
    });
}

#[test]
fn create_pods_ssh_by_the_name_of_a_pod_without_a_service() {
    cluster::run_with_permission(&json!("ssh"), async |ground| {
        let rule =
            json!({"apiGroups": [""], "resources": ["pods/ssh"], "verbs": ["create"], "resourceNames": ["bare"]});
        is_given_and_taken(ground, "bare", rule).await;
    });
}

#[test]
fn create_pods_ssh_by_the_name_of_the_pod() {
    let permission = json!({"verb": "create", "resource": "pods", "subresource": "ssh", "name": "pod"});
    cluster::run_with_permission(&permission, async |ground| {
        let rule =
            json!({"apiGroups": [""], "resources": ["pods/ssh"], "verbs": ["create"], "resourceNames": ["web-0"]});
        is_given_and_taken(ground, "web-0.web", rule).await;
    });
}

#[test]
fn connect_workspaces_by_the_name_of_the_owner_which_may_change() {
    let permission = json!({"verb": "connect", "group": "kubeflow.org", "resource": "workspaces", "name": "owner"});
    cluster::run_with_permission(&permission, async |ground| {
        let rule = json!({
            "apiGroups": ["kubeflow.org"], "resources": ["workspaces"], "verbs": ["connect"], "resourceNames": ["box"],
        });
        is_given_and_taken(ground, "web", rule).await;
        ground.apply(&binding(ground)).await;
        let token = ground.token("ci").await;
        eventually("it is given back", async || login(ground, "web", &token).await.is_ok()).await;
        let mut tunnel = login(ground, "web", &token).await.unwrap();
        ground.apply(&owned(ground, "other")).await;
        tunnel.ended().await;
        assert_eq!(login(ground, "web", &token).await.unwrap_err().status, 403);
    });
}

#[test]
fn create_sandboxes_by_the_name_of_the_owner_of_a_pod_without_a_service() {
    let permission = json!({"verb": "create", "group": "agents.x-k8s.io", "resource": "sandboxes", "name": "owner"});
    cluster::run_with_permission(&permission, async |ground| {
        let rule = json!({
            "apiGroups": ["agents.x-k8s.io"], "resources": ["sandboxes"], "verbs": ["create"], "resourceNames": ["box"],
        });
        is_given_and_taken(ground, "bare", rule).await;
    });
}

/// Waits until `ls` of that user prints these names, as far as they are before the namespace.
async fn lists(ground: &Ground, token: &str, expected: &[&str]) {
    eventually(&format!("{expected:?} are listed"), async || {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_switchboard"));
        let proxy = format!("--proxy=http://{PROXY}:{PORT}");
        // A real cluster may have more names than are asked about one by one.
        command.args(["ls", "--allow-cleartext", &proxy, &ground.here]);
        command.env("SWITCHBOARD_TOKEN", token).env("HOME", "/nonexistent");
        let output = command.output().await.unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let here = format!(".{}.", ground.here);
        let names: Vec<_> = text.lines().map(|line| line.split(&here).next().unwrap()).collect();
        names == expected && text.lines().all(|line| line.ends_with(" ready"))
    })
    .await;
}

#[test]
fn a_user_lists_the_names_that_rbac_opens_and_no_other_one() {
    cluster::run_with_permission(&json!("ssh"), async |ground| {
        let token = prepare(ground).await;
        lists(ground, &token, &[]).await;
        let rule = |resource: &str, names: &[&str]| {
            with(
                role(&ground.here, "ssh", names),
                "/rules/0/resources",
                json!([resource]),
            )
        };
        ground.apply(&rule("services/ssh", &["web"])).await;
        ground.apply(&binding(ground)).await;
        lists(ground, &token, &["web", "web-0.web"]).await;
        // Without names it is the whole namespace.
        ground.apply(&rule("pods/ssh", &[])).await;
        lists(ground, &token, &["bare"]).await;
        ground.apply(&rule("*", &[])).await;
        lists(ground, &token, &["bare", "web", "web-0.web"]).await;
        ground.delete(&binding(ground)).await;
        lists(ground, &token, &[]).await;
    });
}
