//! Kinds of workloads that the operator's file defines, as docs/configuration.md has them: with a real API server, with the
//! CRDs of their projects or without, or the fake one.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::cluster::{self, Ground};
use super::objects::{annotated, service, slice, with};
use super::proxy::eventually;

/// A kind: its name, its resource, its patch, an object that is asleep, and the fields that it has when it is awake.
type WorkloadKind = (&'static str, &'static str, &'static str, Value, Value);

fn kinds() -> Vec<WorkloadKind> {
    kubeflow().into_iter().chain(others()).collect()
}

/// The template of an object's pod.
fn template() -> Value {
    json!({"spec": {"containers": [{"name": "main", "image": "sshd"}]}})
}

fn object(version: &str, kind: &str, spec: Value) -> Value {
    let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "box"}});
    object["spec"] = spec;
    object
}

fn kubeflow() -> [WorkloadKind; 2] {
    let workspace = json!({
        "paused": true, "kind": "jupyterlab",
        "podTemplate": {"volumes": {}, "options": {"imageConfig": "a", "podConfig": "b"}},
    });
    [
        (
            "notebook",
            "notebooks.v1.kubeflow.org",
            r#"{"metadata": {"annotations": {"kubeflow-resource-stopped": null}}}"#,
            with(
                object("kubeflow.org/v1", "Notebook", json!({"template": template()})),
                "/metadata/annotations",
                json!({"kubeflow-resource-stopped": "2026-11-20T20:00:00Z"}),
            ),
            json!(null),
        ),
        (
            "workspace",
            "workspaces.v1beta1.kubeflow.org",
            r#"{"spec": {"paused": false}}"#,
            object("kubeflow.org/v1beta1", "Workspace", workspace),
            json!({"paused": false}),
        ),
    ]
}

fn others() -> [WorkloadKind; 4] {
    let sandbox = json!({"operatingMode": "Suspended", "podTemplate": template()});
    let cluster = json!({"suspend": true, "headGroupSpec": {"rayStartParams": {}, "template": template()}});
    let machine = json!({"running": false, "template": {"spec": {"domain": {"devices": {}}}}});
    [
        (
            "sandbox",
            "sandboxes.v1beta1.agents.x-k8s.io",
            r#"{"spec": {"operatingMode": "Running"}}"#,
            object("agents.x-k8s.io/v1beta1", "Sandbox", sandbox),
            json!({"operatingMode": "Running"}),
        ),
        (
            "devworkspace",
            "devworkspaces.v1alpha2.workspace.devfile.io",
            r#"{"spec": {"started": true}}"#,
            object(
                "workspace.devfile.io/v1alpha2",
                "DevWorkspace",
                json!({"started": false}),
            ),
            json!({"started": true}),
        ),
        (
            "raycluster",
            "rayclusters.v1.ray.io",
            r#"{"spec": {"suspend": false}}"#,
            object("ray.io/v1", "RayCluster", cluster),
            json!({"suspend": false}),
        ),
        (
            "virtualmachine",
            "virtualmachines.v1.kubevirt.io",
            r#"{"spec": {"runStrategy": "Always", "running": null}}"#,
            object("kubevirt.io/v1", "VirtualMachine", machine),
            json!({"runStrategy": "Always"}),
        ),
    ]
}

/// The setting with these kinds.
fn settings() -> [(&'static str, Value); 2] {
    let kinds = kinds().into_iter();
    let kinds = kinds.map(|(name, resource, patch, ..)| json!({"name": name, "resource": resource, "patch": patch}));
    [("wake", json!(true)), ("workload_kinds", kinds.collect())]
}

#[test]
fn the_documents_have_these_kinds() {
    let page = include_str!("../../../docs/configuration.md");
    for (name, resource, patch, ..) in kinds() {
        for part in [
            format!("name: {name}"),
            format!("resource: {resource}"),
            format!("patch: '{patch}'"),
        ] {
            assert!(page.contains(&part), "{part}");
        }
    }
}

async fn patches(ground: &Ground, result: &str) -> f64 {
    let labels = format!("result=\"{result}\"");
    let count = ground.proxy.metric("switchboard_wakes_total", &labels).await;
    count.unwrap_or_default()
}

#[test]
fn fifty_clients_start_an_object_of_each_kind_by_one_patch() {
    cluster::run(&settings(), async |ground| {
        for (number, (name, resource, _, object, awake)) in (1..).zip(kinds()) {
            ground.define(object["kind"].as_str().unwrap(), resource).await;
            let asleep = with(object, "/metadata/namespace", json!(ground.here));
            ground.apply(&asleep).await;
            let wake = format!("{name}/box");
            ground
                .apply(&annotated(service(&ground.here, name), &[("wake", &wake)]))
                .await;
            let authority = format!("{name}.{}:22", ground.here);
            let before = ground.get(&asleep).await["metadata"]["generation"].as_u64();
            eventually("fifty clients are refused for now", async || {
                let clients = join_all((0..50).map(|_| ground.proxy.connect(&authority))).await;
                clients
                    .iter()
                    .all(|login| login.as_ref().is_err_and(|refused| refused.status == 503))
            })
            .await;
            let started = f64::from(number);
            eventually(&format!("{name} is started"), async || {
                patches(ground, "started").await == started
            })
            .await;
            let object = ground.get(&asleep).await;
            for (field, value) in awake.as_object().into_iter().flatten() {
                assert_eq!(object["spec"][field], *value, "{name}");
            }
            assert!(object["spec"].get("running").is_none(), "{name}: {object}");
            assert!(
                object["metadata"]["annotations"]
                    .get("kubeflow-resource-stopped")
                    .is_none()
            );
            if let (Some(before), false) = (before, awake.is_null()) {
                assert_eq!(
                    object["metadata"]["generation"],
                    before + 1,
                    "{name}: one change of its spec"
                );
            }
            ground.apply(&slice(&ground.here, name, &["10.9.1.1"])).await;
            ground.proxy.reaches(&authority, "10.9.1.1:22").await;
        }
        // All run, but none has an endpoint any more: nothing is written.
        let name = "sandbox";
        ground
            .apply(&with(slice(&ground.here, name, &["10.9.1.1"]), "/endpoints", json!([])))
            .await;
        let authority = format!("{name}.{}:22", ground.here);
        eventually("it runs already", async || {
            ground.proxy.connect(&authority).await.is_err() && patches(ground, "running").await >= 1.0
        })
        .await;
        assert_eq!(patches(ground, "started").await, 6.0);
    });
}

#[test]
fn a_sandbox_is_started_by_a_first_login_unless_its_owner_has_stopped_it_and_by_no_reconnect() {
    cluster::run(&settings(), async |ground| {
        let [(_, resource, _, object, awake), ..] = others();
        ground.define("Sandbox", resource).await;
        let asleep = with(object, "/metadata/namespace", json!(ground.here));
        ground.apply(&asleep).await;
        let authority = format!("box.{}:22", ground.here);
        let expose = async |annotations: &[(&str, &str)]| {
            ground
                .apply(&annotated(service(&ground.here, "box"), annotations))
                .await;
        };
        let refusal = async |fields: &str| match ground.proxy.connect_with(&authority, fields).await {
            Ok(_) => String::new(),
            Err(refused) => refused.phrase,
        };
        let session = format!("Switchboard-Session: {}\r\n", "0f".repeat(16));
        let wake = ("wake", "sandbox/box");
        expose(&[wake, ("stopped", "true")]).await;
        for fields in ["", &session] {
            eventually("it was stopped", async || {
                refusal(fields).await == "the target was stopped by its owner"
            })
            .await;
        }
        expose(&[wake]).await;
        for fields in [&session, "Switchboard-Wake: ?0\r\n"] {
            eventually("it is not stopped", async || {
                refusal(fields).await.starts_with("no ready endpoint")
            })
            .await;
        }
        let still = ground.get(&asleep).await;
        assert_eq!(still["spec"]["operatingMode"], "Suspended");
        eventually("a first login starts it", async || {
            refusal("").await;
            patches(ground, "started").await == 1.0
        })
        .await;
        let started = ground.get(&asleep).await;
        assert_eq!(started["spec"]["operatingMode"], awake["operatingMode"]);
    });
}
