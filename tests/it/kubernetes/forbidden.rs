//! Namespaces that the proxy may no longer read, because they were deleted and their Roles with them.

use std::time::{Duration, Instant};

use serde_json::json;

use super::lab;
use super::objects::{namespace, service, slice};
use super::proxy::{eventually, settings};
use super::stage::Stage;

fn a_deleted_namespace_of_the_list_counts_as_empty_after_a_restart() {
    lab::run(async |lab| {
        let settings = settings(&[("namespaces", json!(["team-a", "team-b"]))]);
        let stage = Stage::over(lab, settings, async |api| {
            api.put(namespace("team-a", &json!({})));
            api.put(namespace("team-b", &json!({})));
            api.put(slice("team-b", "svc-b", &["10.9.1.2"]));
            api.put(service("team-b", "svc-b"));
            api.open();
        });
        let mut stage = stage.await.ready().await;
        stage.serve("svc-a", "10.9.1.1").await;
        stage.proxy.reaches("svc-b.team-b:22", "10.9.1.2:22").await;
        // The Role goes with its namespace; the events have told before.
        stage.api.delete(&namespace("team-b", &json!({})));
        stage.proxy.refuses("svc-b.team-b:22", 403).await;
        stage.api.allow_namespace("team-b", false);
        let started = Instant::now();
        stage.restart_proxy().await;
        let is_ready = stage.proxy.is_ready().await;
        assert!(!is_ready || started.elapsed() >= LASTING, "a 403 may pass");
        let stage = stage.ready().await;
        stage.proxy.reaches("svc-a.team-a:22", "10.9.1.1:22").await;
        stage.proxy.refuses("svc-b.team-b:22", 403).await;
        assert_eq!(forbidden(&stage).await, Some(1.0));
        eventually("the log names the namespace", async || {
            let messages = stage.proxy.messages();
            let names_it = |line: &str| line.contains("WARN") && line.contains("namespace=\"team-b\"");
            messages.lines().any(names_it)
        })
        .await;
        is_asked_seldom(&stage).await;
        // It is made again, and its Role.
        stage.api.put(slice("team-b", "svc-b", &["10.9.1.3"]));
        stage.api.put(service("team-b", "svc-b"));
        stage.api.allow_namespace("team-b", true);
        stage.proxy.reaches("svc-b.team-b:22", "10.9.1.3:22").await;
        eventually("no namespace is forbidden", async || {
            forbidden(&stage).await == Some(0.0)
        })
        .await;
    });
}

fn without_any_namespace_that_can_be_read_the_proxy_is_not_ready() {
    lab::run(async |lab| {
        let settings = settings(&[("namespaces", json!(["team-a", "team-b"]))]);
        let stage = Stage::over(lab, settings, async |api| {
            api.allow_namespace("team-a", false);
            api.allow_namespace("team-b", false);
            api.open();
        })
        .await;
        eventually("all four rights are missing for good", async || {
            stage.proxy.messages().matches("lacks the rule").count() == 4
        })
        .await;
        let refused = stage.errors("forbidden").await;
        stage.noticed("forbidden", refused + 3.0).await;
        assert!(!stage.proxy.is_ready().await, "its Roles are missing");
        stage.proxy.refuses("svc-a.team-a:22", 503).await;
        stage.put("svc-a", "10.9.1.1");
        stage.api.allow_namespace("team-a", true);
        let stage = stage.ready().await;
        stage.proxy.reaches("svc-a.team-a:22", "10.9.1.1:22").await;
    });
}

/// A namespace that counts as empty is asked for every half a minute, and no failure is counted that would fire an alert.
async fn is_asked_seldom(stage: &Stage) {
    eventually("Services and slices count as empty", async || {
        let messages = stage.proxy.messages();
        let counts_as_empty = messages.lines().filter(|line| line.contains("counts as empty"));
        counts_as_empty.count() == 2
    })
    .await;
    let since = Instant::now();
    let (refusals, errors) = (stage.api.refusals("team-b"), stage.errors("forbidden").await);
    // Each of them once more at once, as it may have been in the middle of it.
    eventually("it is asked for", async || stage.api.refusals("team-b") >= refusals + 4).await;
    assert!(since.elapsed() >= Duration::from_secs(20), "{:?}", since.elapsed());
    assert_eq!(stage.errors("forbidden").await.to_string(), errors.to_string());
}

/// Refusals for so long are more than those of a moment.
const LASTING: Duration = Duration::from_secs(10);

/// The number of namespaces that count as empty.
async fn forbidden(stage: &Stage) -> Option<f64> {
    stage
        .proxy
        .metric("switchboard_allowlist_namespaces_forbidden", "")
        .await
}

tests_in! {
    slow:
    a_deleted_namespace_of_the_list_counts_as_empty_after_a_restart,
    without_any_namespace_that_can_be_read_the_proxy_is_not_ready,
}
