//! `targets why`: what the watch has seen of a name that is not on the allowlist, or not reached.

use std::process::Stdio;

use serde_json::{Value, json};

use super::lab;
use super::objects::{annotated, endpoint, namespace, pod, service, slice, with};
use super::proxy::{ADMIN_PORT, eventually};
use super::stage::Stage;

/// The output of `switchboard targets`, run on the proxy's host with these arguments.
fn targets(stage: &Stage, arguments: &[&str]) -> Vec<u8> {
    let mut command = stage.lab.beside_proxy(env!("CARGO_BIN_EXE_switchboard"));
    let admin = format!("127.0.0.1:{ADMIN_PORT}");
    command.arg("targets").args(arguments).args(["--admin", &admin]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// Waits until a line of the diagnosis has these words.
async fn says(stage: &Stage, name: &str, is_listed: bool, words: &str) {
    eventually(&format!("{name}: {words}"), async || {
        let report: Value = serde_json::from_slice(&targets(stage, &["why", name, "--json"])).unwrap();
        let found = &report["changed"][0];
        let mut evidence = found["evidence"].as_array().unwrap().iter();
        found["is_listed"] == is_listed && evidence.any(|line| line.as_str().unwrap().contains(words))
    })
    .await;
}

#[test]
fn a_name_that_is_not_listed_is_explained_by_what_the_watch_has_seen() {
    lab::run(async |lab| {
        let selector = ("namespace_selector", json!("ssh=on"));
        let stage = Stage::new(lab, &[selector]).await;
        stage.api.put(namespace("team-a", &json!({"ssh": "on"})));
        stage.api.put(namespace("team-b", &json!({})));
        stage.serve("devbox", "10.9.1.1").await;
        says(&stage, "team-a/devbox", true, "it takes new tunnels").await;
        says(
            &stage,
            "devbox.team-a.svc.cluster.local:23",
            false,
            "at port 22, not at 23",
        )
        .await;

        says(
            &stage,
            "team-a/none",
            false,
            "no Service of this name is seen: `allowlist.kubernetes.selector` is switchboard.dev/expose=true",
        )
        .await;
        says(
            &stage,
            "none.team-a:22",
            false,
            "kubectl get service none --namespace team-a --show-labels",
        )
        .await;
        stage.api.put(service("team-b", "away"));
        says(
            &stage,
            "team-b/away",
            false,
            "namespace_selector`, ssh=on: kubectl get namespace team-b --show-labels",
        )
        .await;
        let ports = json!([{"name": "a", "port": 80, "protocol": "TCP"}, {"name": "b", "port": 81, "protocol": "TCP"}]);
        stage.api.put(with(service("team-a", "ports"), "/spec/ports", ports));
        says(
            &stage,
            "team-a/ports",
            false,
            "the annotation `port` with one of the TCP ports of the Service: 80 (a), 81 (b)",
        )
        .await;
        let dns = json!({"type": "ExternalName", "externalName": "x.y"});
        stage.api.put(with(service("team-a", "dns"), "/spec", dns));
        says(&stage, "team-a/dns", false, "type ExternalName").await;
        says(&stage, "x-1.devbox.team-a:22", false, "has no pod of this hostname").await;
    });
}

#[test]
fn a_name_that_several_pods_claim_is_explained_by_them() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[("pods", json!({"enabled": true}))]).await;
        let named = |name: &str, address: &str| annotated(pod("team-a", name, address), &[("name", "box")]);
        stage.api.put(named("box-1", "10.9.1.1"));
        says(&stage, "box.team-a.pod:22", true, "it takes new tunnels").await;
        stage.api.put(named("box-2", "10.9.1.2"));
        let both = "2 pods have the name box in their annotation `name`, so none gets it: box-1, box-2";
        says(&stage, "box.team-a.pod:22", false, both).await;
        says(
            &stage,
            "team-a/box-1._pod",
            true,
            "another pod has the name box, too, so this one does not get it",
        )
        .await;
        says(&stage, "other.team-a.pod:22", false, "no pod of this name is seen").await;
    });
}

#[test]
fn the_list_says_whether_the_api_server_confirms_it() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        let says = async |line: &str| {
            eventually(line, async || {
                let said = String::from_utf8(targets(&stage, &[])).unwrap();
                said.lines().last().is_some_and(|last| last.starts_with(line))
            })
            .await;
        };
        stage.serve("devbox", "10.9.1.1").await;
        says("the list is current on 1 of 1 replicas").await;
        stage.api.close().await;
        says("not current: 127.0.0.1:").await;
        let report: Value = serde_json::from_slice(&targets(&stage, &["why", "team-a/none", "--json"])).unwrap();
        let first = report["changed"][0]["evidence"][0].as_str().unwrap();
        assert!(
            first.starts_with("the API server does not answer: last confirmed at "),
            "{first}"
        );
    });
}

/// The watch has no Service that its selector does not select, but the slices of all, with the labels of their Service.
#[test]
fn a_label_that_is_not_selected_is_named_if_the_service_has_slices() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        let label = |name: &str, label: &str, value: &str| {
            let labels = json!({"kubernetes.io/service-name": name, label: value});
            stage
                .api
                .put(with(slice("team-a", name, &["10.9.1.2"]), "/metadata/labels", labels));
            stage
                .api
                .put(with(service("team-a", name), "/metadata/labels", json!({label: value})));
        };
        label("wrong", "switchboard.dev/expose", "yes");
        says(
            &stage,
            "team-a/wrong",
            false,
            "the label switchboard.dev/expose=yes, and `allowlist.kubernetes.selector` is",
        )
        .await;
        label("other", "switchboard.io/expose", "true");
        says(&stage, "team-a/other", false, "the label switchboard.io/expose=true").await;
        label("without", "app", "web");
        says(&stage, "team-a/without", false, "has EndpointSlices, and no labels of").await;
    });
}

#[test]
fn a_target_that_is_not_reached_says_what_keeps_tunnels_from_it() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("devbox", "10.9.1.1").await;
        stage.api.put(service("team-a", "empty"));
        says(&stage, "team-a/empty", true, "it has no endpoint").await;
        stage.api.put(service("team-a", "unready"));
        let unready = json!([endpoint("10.9.1.3", "unready")]);
        stage
            .api
            .put(with(slice("team-a", "unready", &[]), "/endpoints", unready));
        says(&stage, "team-a/unready", true, "none of its 1 endpoints is ready").await;
        stage.api.put(service("team-a", "loop"));
        stage.api.put(slice("team-a", "loop", &["127.0.0.1"]));
        says(
            &stage,
            "team-a/loop",
            true,
            "Endpoint 127.0.0.1:22 is not dialled: loopback",
        )
        .await;
        stage
            .api
            .put(annotated(service("team-a", "stopped"), &[("stopped", "true")]));
        says(&stage, "team-a/stopped", true, "it was stopped by its owner").await;
        targets(&stage, &["cordon", "team-a/devbox"]);
        says(&stage, "team-a/devbox", true, "an operator has cordoned it").await;

        stage
            .api
            .put(annotated(service("team-a", "devbox"), &[("max-tunnels", "many")]));
        let remark = "Ignored annotation max-tunnels: expected a whole number; 0 closes the Service to new tunnels, \
                      or `unlimited` (found `many`), so no new tunnel begins";
        says(&stage, "team-a/devbox", true, remark).await;
        let listed: Value = serde_json::from_slice(&targets(&stage, &["list", "--json"])).unwrap();
        let mut rows = listed["items"].as_array().unwrap().iter();
        let row = rows.find(|row| row["target.service"] == "devbox").unwrap();
        assert_eq!(row["remarks"], json!([remark]));
    });
}

#[test]
fn a_namespace_that_is_not_watched_is_named() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[("namespaces", json!(["team-a"]))]).await;
        says(
            &stage,
            "team-b/devbox",
            false,
            "the Namespace team-b is not watched: `allowlist.kubernetes.namespaces` has team-a",
        )
        .await;
    });
}
