//! A reload that needs other watches: what is known stays, what is held is held on, and what is new is not forbidden.

use serde_json::json;

use super::api::{Cut, Verb};
use super::lab;
use super::objects::{pod, service, slice, with};
use super::proxy::{eventually, settings};
use super::stage::Stage;

#[test]
fn removals_that_are_held_stay_so_after_a_reload_of_something_else() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        for index in 0..12 {
            stage.put(&format!("svc-{index}"), "10.9.1.1");
        }
        stage.serve("svc-x", "10.9.1.1").await;
        let mut tunnel = stage.proxy.connect("svc-x.team-a:22").await.unwrap();
        let held = async || stage.proxy.metric("switchboard_allowlist_removals_held", "").await == Some(1.0);
        stage.api.lose(|_, _| true);
        stage.api.cut(Cut::Expired);
        eventually("the removals are held", held).await;
        let lists = stage.api.seen(Verb::List);
        stage
            .reload(&with(
                stage.settings.clone(),
                "/allowlist/kubernetes/events",
                json!(true),
            ))
            .await;
        eventually("both are listed again", async || {
            stage.api.seen(Verb::List) >= lists + 2
        })
        .await;
        // What comes after the lists is applied after them.
        stage.serve("new", "10.9.1.2").await;
        assert!(held().await);
        tunnel.echo().await.unwrap();
        assert!(stage.proxy.connect("svc-7.team-a:22").await.is_ok());
    });
}

#[test]
fn names_of_a_namespace_that_a_reload_has_added_are_unknown_and_not_forbidden() {
    lab::run(async |lab| {
        let settings = settings(&[("namespaces", json!(["team-a"]))]);
        let stage = Stage::over(lab, settings, async |api| {
            api.put(slice("team-b", "svc-b", &["10.9.1.2"]));
            api.put(service("team-b", "svc-b"));
            api.open();
        });
        let stage = stage.await.ready().await;
        stage.serve("svc-a", "10.9.1.1").await;
        stage.proxy.refuses("svc-b.team-b:22", 403).await;
        // A refusal of a moment.
        stage.api.allow_namespace("team-b", false);
        let both = with(
            stage.settings.clone(),
            "/allowlist/kubernetes/namespaces",
            json!(["team-a", "team-b"]),
        );
        stage.reload(&both).await;
        let hammer = stage.hammer("svc-b.team-b:22");
        stage.proxy.refuses("svc-b.team-b:22", 503).await;
        stage.proxy.refuses("other.team-a:22", 403).await;
        stage.proxy.refuses("svc-b.team-c:22", 403).await;
        stage.proxy.reaches("svc-a.team-a:22", "10.9.1.1:22").await;
        stage.api.allow_namespace("team-b", true);
        stage.proxy.reaches("svc-b.team-b:22", "10.9.1.2:22").await;
        stage.proxy.refuses("other.team-b:22", 403).await;
        let answers = hammer.stop().await;
        assert!(!answers.contains(&403), "a name that is not known yet is not forbidden");
    });
}

/// Alerts about a list that is not confirmed know a watched cluster by this metric.
#[test]
fn a_reload_to_static_targets_leaves_nothing_of_the_cluster() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        let errors = async || stage.proxy.metric("switchboard_endpoint_errors_total", "").await;
        assert!(errors().await.is_some());
        stage.api.close().await;
        let is_unconfirmed = async || {
            let (_, page) = stage.proxy.page("/readyz?verbose").await.unwrap();
            page.contains("has not been confirmed")
        };
        eventually("it is not confirmed", is_unconfirmed).await;
        let statics = with(
            stage.settings.clone(),
            "/allowlist",
            json!({"static": [{"name": "a:22", "addresses": ["10.9.1.1:22"]}]}),
        );
        stage.reload(&statics).await;
        assert_eq!(errors().await, None);
        assert!(!is_unconfirmed().await);
        stage.proxy.refuses("svc-a.team-a:22", 403).await;
        stage.proxy.reaches("a:22", "10.9.1.1:22").await;
    });
}

#[test]
fn targets_that_a_reload_may_exclude_get_no_new_tunnel_before_they_are_listed() {
    lab::run(async |lab| {
        let pods = |selector: &str| json!({"enabled": true, "selector": selector});
        let settings = settings(&[("pods", pods("switchboard.dev/expose=true"))]);
        let stage = Stage::over(lab, settings, async |api| api.open()).await.ready().await;
        stage.serve("svc-a", "10.9.1.1").await;
        let labels = json!({"switchboard.dev/expose": "true", "team": "a"});
        for (name, labels) in [("out", json!({"switchboard.dev/expose": "true"})), ("in", labels)] {
            stage
                .api
                .put(with(pod("team-a", name, "10.9.1.2"), "/metadata/labels", labels));
            stage
                .proxy
                .reaches(&format!("{name}.team-a.pod:22"), "10.9.1.2:22")
                .await;
        }
        let mut goes = stage.proxy.connect("out.team-a.pod:22").await.unwrap();
        let mut stays = stage.proxy.connect("in.team-a.pod:22").await.unwrap();
        stage.api.allow("pods", false);
        let narrow = with(
            stage.settings.clone(),
            "/allowlist/kubernetes/pods",
            pods("switchboard.dev/expose=true,team=a"),
        );
        stage.reload(&narrow).await;
        for name in ["out.team-a.pod:22", "in.team-a.pod:22"] {
            stage.proxy.refuses(name, 503).await;
        }
        let (_, page) = stage.proxy.page("/readyz?verbose").await.unwrap();
        assert!(page.contains("has not listed the pods"), "{page}");
        // Services follow the cluster, and no tunnel ends.
        stage.serve("svc-b", "10.9.1.3").await;
        stage.proxy.reaches("svc-a.team-a:22", "10.9.1.1:22").await;
        for tunnel in [&mut goes, &mut stays] {
            tunnel.echo().await.unwrap();
        }
        stage.api.allow("pods", true);
        stage.proxy.reaches("in.team-a.pod:22", "10.9.1.2:22").await;
        goes.ended().await;
        stays.echo().await.unwrap();
        stage.proxy.refuses("out.team-a.pod:22", 403).await;
    });
}
