//! The proxy's writes, where the operator has switched them on: a request starts a workload, a Notebook is told of activity,
//! and a tenant reads Events about a Service.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::api::{Fault, Verb};
use super::cluster;
use super::lab;
use super::objects::{annotated, service, slice, with};
use super::proxy::eventually;
use super::stage::Stage;

fn workload(kind: &str, namespace: &str, name: &str, replicas: u32) -> Value {
    let labels = json!({"app": name});
    let mut spec = json!({
        "replicas": replicas, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "sshd", "image": "sshd"}]}},
    });
    if kind == "StatefulSet" {
        spec["serviceName"] = name.into();
    }
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"namespace": namespace, "name": name}, "spec": spec})
}

fn notebook(name: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": "kubeflow.org/v1", "kind": "Notebook",
        "metadata": {"namespace": "team-a", "name": name, "annotations": annotations},
    })
}

async fn wakes(stage: &Stage, result: &str) -> f64 {
    let labels = format!("result=\"{result}\"");
    let count = stage.proxy.metric("switchboard_wakes_total", &labels).await;
    count.unwrap_or_default()
}

fn replicas(stage: &Stage, like: &Value) -> Value {
    stage.api.object(like).unwrap()["spec"]["replicas"].clone()
}

#[test]
fn a_request_for_a_service_without_endpoints_starts_its_workload() {
    let on = [
        ("wake", true.into()),
        ("wake_timeout", "40s".into()),
        ("events", true.into()),
    ];
    cluster::run(&on, async |ground| {
        let here = &ground.here;
        for (kind, word, address) in [
            ("StatefulSet", "statefulset", "10.9.1.1"),
            ("Deployment", "deployment", "10.9.1.2"),
        ] {
            let asleep = workload(kind, here, word, 0);
            ground.apply(&asleep).await;
            let wake = format!("{word}/{word}");
            ground.apply(&annotated(service(here, word), &[("wake", &wake)])).await;
            let authority = format!("{word}.{here}:22");
            let refused = ground.proxy.refuses(&authority, 503).await;
            assert_eq!(refused.phrase, format!("{here}/{word} is starting, try again in 30 s"));
            let is_awake = async || ground.get(&asleep).await["spec"]["replicas"] == 1;
            eventually("one replica is wanted", is_awake).await;
            ground.apply(&slice(here, word, &[address])).await;
            ground.proxy.reaches(&authority, &format!("{address}:22")).await;
            let waking = async || {
                let events = ground.events(here).await;
                events.iter().any(|event| {
                    event["reason"] == "Waking" && event["message"] == format!("Starting {wake} for a client")
                })
            };
            eventually("an Event says so", waking).await;
        }
    });
}

#[test]
fn a_session_that_goes_on_and_a_client_that_asks_so_start_nothing_and_a_stopped_service_refuses_all() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[("wake", true.into())]).await;
        let asleep = workload("StatefulSet", "team-a", "devbox", 0);
        stage.api.put(asleep.clone());
        let wake = ("wake", "statefulset/devbox");
        let devbox = |annotations: &[_]| annotated(service("team-a", "devbox"), annotations);
        stage.api.put(devbox(&[wake]));
        eventually("it is on the allowlist", async || {
            stage
                .proxy
                .connect("devbox.team-a:22")
                .await
                .is_err_and(|refused| refused.status != 403)
        })
        .await;
        let starts = async || wakes(&stage, "started").await;
        eventually("a login starts it", async || starts().await == 1.0).await;
        let refusal = async |fields: &str| stage.proxy.connect_with("devbox.team-a:22", fields).await.unwrap_err();
        // As it stops, its start is no longer remembered.
        stage.api.put(asleep.clone());
        stage.api.put(slice("team-a", "devbox", &["10.9.1.1"]));
        stage.proxy.reaches("devbox.team-a:22", "10.9.1.1:22").await;
        stage
            .api
            .put(with(slice("team-a", "devbox", &["10.9.1.1"]), "/endpoints", json!([])));
        let no_wake = "Switchboard-Wake: ?0\r\n";
        eventually("it has no endpoint", async || {
            stage.proxy.connect_with("devbox.team-a:22", no_wake).await.is_err()
        })
        .await;
        let session = format!("Switchboard-Session: {}\r\n", "0f".repeat(16));
        for fields in [no_wake, &session] {
            let refused = refusal(fields).await;
            assert!(refused.phrase.starts_with("no ready endpoint"), "{refused:?}");
        }
        assert_eq!((starts().await, replicas(&stage, &asleep)), (1.0, json!(0)));
        stage
            .api
            .put(devbox(&[wake, ("stopped", "until 2999-01-01T00:00:00Z")]));
        eventually("its owner has stopped it", async || {
            let phrase = refusal("").await.phrase;
            phrase == "the target was stopped by its owner until 2999-01-01T00:00:00Z"
        })
        .await;
    });
}

#[test]
fn a_thousand_requests_are_one_patch_and_a_workload_that_runs_is_left_alone() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[("wake", true.into())]).await;
        let asleep = workload("StatefulSet", "team-a", "devbox", 0);
        stage.api.put(asleep.clone());
        stage.api.put(workload("Deployment", "team-a", "running", 3));
        stage.api.put(annotated(
            service("team-a", "devbox"),
            &[("wake", "statefulset/devbox")],
        ));
        stage.api.put(annotated(
            service("team-a", "running"),
            &[("wake", "deployment/running")],
        ));
        stage.proxy.refuses("running.team-a:22", 503).await;
        eventually("it runs already", async || wakes(&stage, "running").await == 1.0).await;
        assert_eq!(replicas(&stage, &workload("Deployment", "team-a", "running", 0)), 3);
        stage.proxy.refuses("devbox.team-a:22", 503).await;
        let mut clients = JoinSet::new();
        for _ in 0..1000 {
            let proxy = Arc::clone(&stage.proxy);
            clients.spawn(async move { proxy.connect("devbox.team-a:22").await.unwrap_err().status });
        }
        assert!(clients.join_all().await.iter().all(|status| *status == 503));
        // The clients wait for an endpoint, and not for the API server's answer to the patch.
        eventually("it is started", async || wakes(&stage, "started").await == 1.0).await;
        assert_eq!(replicas(&stage, &asleep), 1);
        let labels = "reason=\"target_starting\"";
        let starting = stage.proxy.metric("switchboard_connect_requests_total", labels).await;
        assert!(starting.unwrap() > 1.0);
        assert_eq!(wakes(&stage, "limited").await, 0.0);
    });
}

#[test]
fn a_notebook_that_was_stopped_is_resumed() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[("wake", true.into())]).await;
        let stopped = notebook(
            "devbox",
            &json!({"kubeflow-resource-stopped": "2026-11-20T20:00:00Z", "a": "b"}),
        );
        stage.api.put(stopped.clone());
        stage
            .api
            .put(annotated(service("team-a", "devbox"), &[("wake", "notebook/devbox")]));
        stage.proxy.refuses("devbox.team-a:22", 503).await;
        eventually("it is resumed", async || {
            stage.api.object(&stopped).unwrap()["metadata"]["annotations"] == json!({"a": "b"})
        })
        .await;
    });
}

#[test]
fn nothing_is_started_for_a_client_that_may_not_reach_the_service_or_where_it_is_switched_off() {
    lab::run(async |lab| {
        let mut stage = Stage::new(lab, &[("wake", true.into())]).await;
        let asleep = workload("StatefulSet", "team-a", "devbox", 0);
        stage.api.put(asleep.clone());
        let closed = annotated(
            service("team-a", "devbox"),
            &[("wake", "statefulset/devbox"), ("allowed-clients", "alice")],
        );
        stage.api.put(closed);
        stage.proxy.refuses("devbox.team-a:22", 403).await;
        // Another Service shows that whatever was asked for would have been answered by now.
        stage.api.put(workload("StatefulSet", "team-a", "other", 0));
        stage
            .api
            .put(annotated(service("team-a", "other"), &[("wake", "statefulset/other")]));
        stage.proxy.refuses("other.team-a:22", 503).await;
        eventually("the other starts", async || wakes(&stage, "started").await == 1.0).await;
        assert_eq!(replicas(&stage, &asleep), 0);
        stage.settings = with(stage.settings.clone(), "/allowlist/kubernetes/wake", false.into());
        stage.restart_proxy().await;
        let open = annotated(service("team-a", "devbox"), &[("wake", "statefulset/devbox")]);
        stage.api.put(open);
        let refused = async || {
            let refused = stage.proxy.connect("devbox.team-a:22").await.unwrap_err();
            refused.phrase == "no ready endpoint for team-a/devbox (0 of 0 ready)"
        };
        eventually("it is refused for good", refused).await;
        let told = async || stage.proxy.metric("switchboard_annotation_errors_total", "").await >= Some(2.0);
        eventually("the annotations have no effect", told).await;
        assert_eq!(replicas(&stage, &asleep), 0);
    });
}

#[test]
fn a_workload_that_cannot_be_started_is_no_endpoint_and_the_tenant_reads_why() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[("wake", true.into()), ("events", true.into())]).await;
        stage
            .api
            .put(annotated(service("team-a", "devbox"), &[("wake", "statefulset/gone")]));
        stage.proxy.refuses("devbox.team-a:22", 503).await;
        eventually("it fails", async || wakes(&stage, "failed").await >= 1.0).await;
        let refused = stage.proxy.refuses("devbox.team-a:22", 503).await;
        assert!(refused.phrase.starts_with("no ready endpoint"), "{}", refused.phrase);
        told(&stage, "WakeFailed", "Cannot start statefulset/gone: 404").await;
    });
}

#[test]
fn a_notebook_is_told_of_activity_and_no_later_time_is_overwritten() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[("report_activity", true.into())]).await;
        let last = |like: &Value| stage.api.object(like).unwrap()["metadata"]["annotations"][LAST_ACTIVITY].clone();
        let old = notebook("old", &json!({LAST_ACTIVITY: "2020-01-01T00:00:00Z"}));
        let later = notebook("later", &json!({LAST_ACTIVITY: "2099-01-01T00:00:00Z"}));
        // Later than now, though its digits are earlier than those of some hours of the day.
        let zoned = zoned(Duration::from_secs(3600), -12);
        let zoned = notebook("zoned", &json!({LAST_ACTIVITY: zoned}));
        let raced = notebook("raced", &json!({LAST_ACTIVITY: "2020-01-01T00:00:00Z"}));
        stage
            .api
            .put_after_read(notebook("raced", &json!({LAST_ACTIVITY: "2099-01-01T00:00:00Z"})));
        for (name, notebook) in [("old", &old), ("later", &later), ("zoned", &zoned), ("raced", &raced)] {
            stage.api.put(notebook.clone());
            stage.api.put(slice("team-a", name, &["10.9.1.1"]));
            let report = format!("notebook/{name}");
            stage
                .api
                .put(annotated(service("team-a", name), &[("report-activity", &report)]));
            stage.proxy.reaches(&format!("{name}.team-a:22"), "10.9.1.1:22").await;
        }
        eventually("all were looked at", async || {
            let written = "result=\"written\"";
            stage.proxy.metric("switchboard_activity_reports_total", written).await == Some(4.0)
        })
        .await;
        let told = humantime::parse_rfc3339(last(&old).as_str().unwrap()).unwrap();
        assert!(told.elapsed().unwrap() < Duration::from_secs(300), "{told:?}");
        for other in [&later, &raced] {
            assert_eq!(last(other), "2099-01-01T00:00:00Z");
        }
        assert_eq!(last(&zoned), zoned["metadata"]["annotations"][LAST_ACTIVITY]);
    });
}

/// The time so long from now, as clocks show it so many hours west of Greenwich.
fn zoned(from_now: Duration, hours: i64) -> String {
    let instant = jiff::Timestamp::try_from(SystemTime::now() + from_now).unwrap();
    let shown = instant + jiff::SignedDuration::from_hours(hours);
    shown.to_string().replace('Z', &format!("{hours:+03}:00"))
}

/// Waits for an Event of that reason about a Service of `team-a`, whose message begins so.
pub(super) async fn told(stage: &Stage, reason: &str, message: &str) -> Value {
    let mut found = Value::Null;
    eventually(&format!("an Event {reason}: {message}"), async || {
        let events = stage.api.objects("events", "team-a");
        let is_it = |event: &&Value| {
            let said = event["message"].as_str().unwrap_or_default();
            event["reason"] == reason && said.starts_with(message)
        };
        found = events.iter().find(is_it).cloned().unwrap_or_default();
        !found.is_null()
    })
    .await;
    found
}

#[test]
fn a_tenant_reads_in_events_what_became_of_a_service() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[("events", true.into())]).await;
        stage.serve("devbox", "10.9.1.1").await;
        let event = told(&stage, "Exposed", "Exposed as devbox.team-a:22").await;
        let about = stage.api.object(&service("team-a", "devbox")).unwrap();
        assert_eq!(event["involvedObject"]["uid"], about["metadata"]["uid"]);
        assert_eq!(
            (&event["type"], &event["source"]["component"]),
            (&"Normal".into(), &"switchboard".into())
        );
        stage
            .api
            .put(annotated(service("team-a", "faulty"), &[("max-tunnels", "many")]));
        let event = told(&stage, "IgnoredAnnotation", "Ignored annotation max-tunnels: ").await;
        assert_eq!(event["type"], "Warning");
        stage.api.put(slice("team-a", "loop", &["127.0.0.1"]));
        stage.api.put(service("team-a", "loop"));
        told(
            &stage,
            "EndpointRefused",
            "Endpoint 127.0.0.1:22 is not dialled: loopback",
        )
        .await;
        let ports = json!([{"name": "a", "port": 80, "protocol": "TCP"}, {"name": "b", "port": 81, "protocol": "TCP"}]);
        stage.api.put(with(service("team-a", "web"), "/spec/ports", ports));
        told(&stage, "NoUsablePort", "No port reaches sshd: ").await;
        stage.api.put(with(
            service("team-a", "dns"),
            "/spec",
            json!({"type": "ExternalName", "externalName": "x.y"}),
        ));
        told(&stage, "NotExposed", "A Service of type ExternalName").await;
    });
}

#[test]
fn the_events_of_a_service_are_bounded_and_a_server_that_refuses_them_delays_no_tunnel() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[("events", true.into())]).await;
        for number in 0..30 {
            let value = format!("many-{number}");
            stage
                .api
                .put(annotated(service("team-a", "devbox"), &[("max-tunnels", &value)]));
            let counted = async || {
                let count = stage.proxy.metric("switchboard_annotation_errors_total", "").await;
                count >= Some(f64::from(number) + 1.0)
            };
            eventually("the annotation is read", counted).await;
        }
        let dropped = async || {
            let count = stage
                .proxy
                .metric("switchboard_service_events_total", "result=\"dropped\"")
                .await;
            count >= Some(20.0)
        };
        eventually("the rest is dropped", dropped).await;
        assert!(stage.api.objects("events", "team-a").len() <= 10);
        stage.api.allow("events", false);
        stage.serve("other", "10.9.1.2").await;
        let failed = async || {
            let count = stage
                .proxy
                .metric("switchboard_service_events_total", "result=\"failed\"")
                .await;
            count >= Some(1.0)
        };
        eventually("it is refused", failed).await;
        stage.proxy.reaches("other.team-a:22", "10.9.1.2:22").await;
        stage.api.fail(Verb::Other, Fault::Hang, 100);
        stage.serve("third", "10.9.1.3").await;
    });
}

const LAST_ACTIVITY: &str = "notebooks.kubeflow.org/last-activity";
