//! Pods without a Service: with a real API server or the fake one.

use serde_json::json;

use super::cluster;
use super::objects::{annotated, pod, service, slice, with};
use super::proxy::eventually;

/// The key that puts labelled pods on the allowlist.
fn pods() -> [(&'static str, serde_json::Value); 2] {
    [("pods", json!({"enabled": true})), ("events", json!(true))]
}

#[test]
fn a_labelled_pod_answers_to_its_name_while_it_is_ready() {
    cluster::run(&pods(), async |ground| {
        let (proxy, here) = (&ground.proxy, ground.here.as_str());
        let bare = pod(here, "box", "10.9.1.1");
        ground.apply_pod(&bare).await;
        let name = format!("box.{here}.pod:22");
        proxy.reaches(&name, "10.9.1.1:22").await;
        for other in [
            format!("box.{here}:22"),
            format!("box._pod.{here}:22"),
            format!("box.{}.pod:22", ground.there),
        ] {
            assert_eq!(proxy.connect(&other).await.unwrap_err().status, 403, "{other}");
        }
        let exposed = format!("Exposed as box.{here}.pod:22");
        eventually("an Event of the pod says so", async || {
            let events = ground.events(here).await;
            events
                .iter()
                .any(|event| event["message"] == exposed && event["involvedObject"]["kind"] == "Pod")
        })
        .await;
        // A Service of its name is another target.
        ground.apply(&slice(here, "box", &["10.9.1.9"])).await;
        ground.apply(&service(here, "box")).await;
        proxy.reaches(&format!("box.{here}:22"), "10.9.1.9:22").await;
        let unready = json!([{"type": "Ready", "status": "False"}]);
        ground
            .apply_pod(&with(bare.clone(), "/status/conditions", unready))
            .await;
        proxy.refuses(&name, 503).await;
        ground.apply_pod(&bare).await;
        proxy.reaches(&name, "10.9.1.1:22").await;
        let closed = annotated(bare.clone(), &[("max-tunnels", "0")]);
        ground.apply_pod(&closed).await;
        proxy.refuses(&name, 503).await;
        ground.delete_pod(&bare).await;
        proxy.refuses(&name, 403).await;
    });
}

#[test]
fn a_pod_has_the_further_name_of_its_annotation_unless_another_one_has_it() {
    cluster::run(&pods(), async |ground| {
        let (proxy, here) = (&ground.proxy, ground.here.as_str());
        let named = |pod| annotated(pod, &[("name", "box")]);
        let first = pod(here, "box-7f4c", "10.9.1.1");
        let name = format!("box.{here}.pod:22");
        ground.apply_pod(&named(first.clone())).await;
        proxy.reaches(&name, "10.9.1.1:22").await;
        proxy.reaches(&format!("box-7f4c.{here}.pod:22"), "10.9.1.1:22").await;
        let mut tunnel = proxy.connect(&name).await.unwrap();
        let second = named(pod(here, "box-92aa", "10.9.1.2"));
        ground.apply_pod(&second).await;
        proxy.refuses(&name, 403).await;
        tunnel.echo().await.unwrap();
        proxy.reaches(&format!("box-92aa.{here}.pod:22"), "10.9.1.2:22").await;
        eventually("an Event says so", async || {
            let events = ground.events(here).await;
            let said = "another pod has the name box, too, so this one does not get it";
            let is_it = |event: &serde_json::Value| {
                event["involvedObject"]["name"] == "box-92aa" && event["message"].as_str().unwrap().contains(said)
            };
            events.iter().any(is_it)
        })
        .await;
        ground.delete_pod(&first).await;
        proxy.reaches(&name, "10.9.1.2:22").await;
        tunnel.ended().await;
        // A pod that is called so has the name before others.
        let own = pod(here, "box", "10.9.1.3");
        ground.apply_pod(&own).await;
        proxy.reaches(&name, "10.9.1.3:22").await;
        ground.delete_pod(&own).await;
        proxy.reaches(&name, "10.9.1.2:22").await;
        ground.delete_pod(&second).await;
        proxy.refuses(&name, 403).await;
    });
}

#[test]
fn a_pod_of_a_warm_pool_is_reached_once_it_is_claimed() {
    cluster::run(&pods(), async |ground| {
        let (proxy, here) = (&ground.proxy, ground.here.as_str());
        let claimed = pod(here, "box", "10.9.1.1");
        let labels = json!({"switchboard.dev/expose": "true", "agents.x-k8s.io/warm-pool-sandbox": "3f2a"});
        ground
            .apply_pod(&with(claimed.clone(), "/metadata/labels", labels))
            .await;
        ground.apply_pod(&pod(here, "other", "10.9.1.2")).await;
        proxy.reaches(&format!("other.{here}.pod:22"), "10.9.1.2:22").await;
        let name = format!("box.{here}.pod:22");
        assert_eq!(proxy.connect(&name).await.unwrap_err().status, 403);
        ground.apply_pod(&claimed).await;
        proxy.reaches(&name, "10.9.1.1:22").await;
        ground.delete_pod(&claimed).await;
    });
}

#[test]
fn a_pod_that_is_made_again_under_its_name_inherits_no_tunnel() {
    cluster::run(&pods(), async |ground| {
        let (proxy, here) = (&ground.proxy, ground.here.as_str());
        let bare = pod(here, "box", "10.9.1.1");
        let name = format!("box.{here}.pod:22");
        ground.apply_pod(&bare).await;
        proxy.reaches(&name, "10.9.1.1:22").await;
        let mut tunnel = proxy.connect(&name).await.unwrap();
        ground.delete_pod(&bare).await;
        ground.apply_pod(&bare).await;
        tunnel.ended().await;
        proxy.reaches(&name, "10.9.1.1:22").await;
        let removed = async || {
            let lines = proxy.access();
            lines
                .iter()
                .any(|line| line["reason"] == "target_removed" && line["target.service"] == "box._pod")
        };
        eventually("its access line says so", removed).await;
        ground.delete_pod(&bare).await;
    });
}

mod measured {
    use std::fs;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use serde_json::{Value, json};
    use tokio::task::JoinSet;
    use tokio::time::interval;

    use super::{pod, service, slice};
    use crate::kubernetes::lab;
    use crate::kubernetes::proxy::{PATIENCE, settings, within};
    use crate::kubernetes::stage::Stage;

    /// The objects of the target of that number.
    type Objects = fn(usize) -> Vec<Value>;

    fn as_pods(number: usize) -> Vec<Value> {
        let mut pod = pod("team-a", &format!("box-{number}"), "10.9.1.1");
        // About as long as that of a pod of a cluster.
        pod["metadata"]["managedFields"] = json!([{"fieldsV1": {"f:spec": "x".repeat(3000)}}]);
        vec![pod]
    }

    fn as_services(number: usize) -> Vec<Value> {
        let name = format!("box-{number}");
        vec![slice("team-a", &name, &["10.9.1.1"]), service("team-a", &name)]
    }

    /// The seconds of CPU and the KiB of memory of a process.
    fn usage(id: u32) -> (f64, u64) {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: f64 = fields[11..13].iter().map(|field| field.parse::<f64>().unwrap()).sum();
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        (ticks / 100.0, line.trim_end_matches("kB").trim().parse().unwrap())
    }

    /// Lists ten thousand targets, and replaces a hundred a second beside 200 tunnels, of which none is lost.
    async fn churn(lab: lab::Lab, suffix: &str, objects: Objects) {
        let stage = Stage::over(lab, settings(&[("pods", json!({"enabled": true}))]), async |api| {
            (0..TARGETS).flat_map(objects).for_each(|object| api.put(object));
        });
        let stage = stage.await;
        let (_, before) = usage(stage.proxy.id());
        let started = Instant::now();
        stage.api.open();
        let listed = async || stage.proxy.metric("switchboard_allowlist_targets", "").await == Some(10_000.0);
        within(PATIENCE, "all are listed", listed).await;
        let (took, (listing, after)) = (started.elapsed(), usage(stage.proxy.id()));
        let mut tunnels = JoinSet::new();
        for number in 0..200 {
            let (proxy, authority) = (
                Arc::clone(&stage.proxy),
                format!("box-{}.team-a{suffix}:22", number % 4),
            );
            tunnels.spawn(async move { proxy.connect(&authority).await.unwrap() });
        }
        let mut tunnels = tunnels.join_all().await;
        let (idle, _) = usage(stage.proxy.id());
        // The pace of the churn, which decides nothing.
        let mut ticks = interval(Duration::from_millis(10));
        for number in 4..4 + CHURNED {
            ticks.tick().await;
            for object in objects(number) {
                stage.api.delete(&object);
                stage.api.put(object);
            }
        }
        let last = format!("box-{}.team-a{suffix}:22", 3 + CHURNED);
        stage.proxy.reaches(&last, "10.9.1.1:22").await;
        let (churned, _) = usage(stage.proxy.id());
        for tunnel in &mut tunnels {
            tunnel.echo().await.unwrap();
        }
        eprintln!(
            "figure: 10,000 targets{suffix}: listed after {took:?} with {listing:.2} s of CPU and {} KiB more memory; \
             {CHURNED} replaced at 100 a second beside 200 tunnels: {:.2} s of CPU, 0 tunnels lost",
            after.saturating_sub(before),
            churned - idle
        );
    }

    const TARGETS: usize = 10_000;
    const CHURNED: usize = 1000;

    #[test]
    fn ten_thousand_pods_are_listed_and_churn_beside_two_hundred_tunnels() {
        lab::run(async |lab| churn(lab, ".pod", as_pods).await);
    }

    #[test]
    fn ten_thousand_services_are_listed_and_churn_beside_two_hundred_tunnels() {
        lab::run(async |lab| churn(lab, "", as_services).await);
    }
}
