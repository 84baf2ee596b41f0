//! Changed roles, bindings and ServiceAccounts are told, as they happen and after an outage.

use std::sync::Arc;

use serde_json::{Value, json};
use switchboard::kubernetes::{BackgroundRuntime, WatchContext, watch_rbac};
use switchboard::policy::access::Change;
use switchboard::proxy::metrics::Metrics;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use super::api::{Api, Cut, Fault, Verb};
use super::lab::{self, API, Lab};
use super::objects::{namespace, role, role_binding, with};
use super::proxy::{PATIENCE, eventually};

/// A server with one object of each kind, and the changes that are told.
struct Scene {
    api: Api,
    changes: UnboundedReceiver<Change>,
    metrics: Metrics,
    _watch: BackgroundRuntime,
}

impl Scene {
    async fn new(lab: &Lab, prepare: impl FnOnce(&Api)) -> Self {
        let api = Api::new(lab.directory(), API);
        for object in objects() {
            api.put(object);
        }
        prepare(&api);
        api.open();
        let (sender, changes) = unbounded_channel();
        let metrics = Metrics::new().unwrap();
        let told = move |change| sender.send(change).unwrap();
        let origin = WatchContext {
            kubeconfig: Some(api.kubeconfig()),
            metrics: metrics.cluster.clone(),
            watches: Arc::default(),
        };
        Self {
            _watch: watch_rbac(origin, told).unwrap(),
            api,
            changes,
            metrics,
        }
    }

    /// Waits until each kind is watched. First lists that came late are told before.
    async fn followed(&mut self) {
        self.watched(1).await;
        while self.changes.try_recv().is_ok() {}
    }

    /// Waits until each kind is watched, that many times.
    async fn watched(&self, times: usize) {
        eventually("each kind is watched", async || {
            self.api.seen(Verb::Watch) >= times * KINDS
        })
        .await;
    }

    async fn told(&mut self) -> Change {
        timeout(PATIENCE, self.changes.recv()).await.unwrap().unwrap()
    }

    /// Waits for that change, past others of any kind.
    async fn tells(&mut self, change: &Change) {
        while self.told().await != *change {}
    }

    fn failures(&self, kind: &str) -> bool {
        let page = self.metrics.encode().unwrap();
        let series = format!("switchboard_watch_errors_total{{kind=\"{kind}\"}} ");
        // There is no series before the first of its events.
        page.lines()
            .find_map(|line| line.strip_prefix(&series))
            .is_some_and(|value| value.parse::<f64>().unwrap() > 0.0)
    }
}

fn objects() -> [Value; 5] {
    [
        role("team-a", "ssh", &[]),
        role_binding("team-a", "alice", "ssh", "alice"),
        cluster("ClusterRole"),
        cluster("ClusterRoleBinding"),
        account("ci"),
    ]
}

fn cluster(kind: &str) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": "ssh"}})
}

fn account(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": "team-a", "name": name, "uid": format!("u-{name}")}})
}

/// The object with other rights than it has.
fn with_rights(object: Value, generation: usize) -> Value {
    let field = match object["kind"].as_str() {
        Some("Role" | "ClusterRole") => "/rules",
        _ => "/subjects",
    };
    with(object, field, json!([{"verbs": [generation.to_string()]}]))
}

fn of_team_a() -> Change {
    Change::Namespace("team-a".into())
}

fn gone(name: &str) -> Change {
    Change::UserDeleted(format!("u-{name}").into())
}

#[test]
fn each_change_is_told_once_and_an_annotation_is_none() {
    lab::run(async |lab| {
        let mut scene = Scene::new(&lab, |_| {}).await;
        scene.followed().await;
        let [role, binding, cluster_role, cluster_binding, ci] = objects();
        for (object, changed, deleted) in [
            (role, Some(of_team_a()), of_team_a()),
            (binding, Some(of_team_a()), of_team_a()),
            (cluster_role, Some(Change::Everywhere), Change::Everywhere),
            (cluster_binding, Some(Change::Everywhere), Change::Everywhere),
            (ci, None, gone("ci")),
        ] {
            // Controllers write annotations all day.
            scene
                .api
                .put(with(object.clone(), "/metadata/annotations", json!({"a": "b"})));
            scene.api.put(with_rights(object.clone(), 1));
            if let Some(changed) = changed {
                assert_eq!(scene.told().await, changed, "{object}");
            }
            scene.api.delete(&object);
            assert_eq!(scene.told().await, deleted, "{object}");
        }
        assert!(scene.changes.try_recv().is_err());
    });
}

#[test]
fn a_namespace_that_is_deleted_takes_its_bindings_and_accounts() {
    lab::run(async |lab| {
        let mut scene = Scene::new(&lab, |api| api.put(namespace("team-a", &json!({})))).await;
        scene.followed().await;
        scene.api.delete(&namespace("team-a", &json!({})));
        let mut told = [scene.told().await, scene.told().await, scene.told().await];
        told.sort_by_key(|change| matches!(change, Change::UserDeleted(_)));
        assert_eq!(told, [of_team_a(), of_team_a(), gone("ci")]);
    });
}

#[test]
fn a_watch_that_ends_in_any_way_loses_no_change() {
    lab::run(async |lab| {
        let mut scene = Scene::new(&lab, |_| {}).await;
        scene.followed().await;
        for (index, cut) in [Cut::End, Cut::MidLine, Cut::Garbage, Cut::Expired]
            .into_iter()
            .enumerate()
        {
            scene.watched(1 + index).await;
            scene.api.cut(cut);
            let name = format!("late-{index}");
            scene.api.put(account(&name));
            scene.api.put(role_binding("team-a", &name, "ssh", "bob"));
            let change = scene.told().await;
            // By the event, or by the next list, which does not say where.
            assert!([of_team_a(), Change::Everywhere].contains(&change), "{change:?}");
            // The account may be in no list yet.
            scene.watched(2 + index).await;
        }
        assert!(scene.changes.try_recv().is_err());
    });
}

#[test]
fn what_changes_during_an_outage_is_told_after_it_and_nothing_is_told_if_nothing_did() {
    lab::run(async |lab| {
        let mut scene = Scene::new(&lab, |_| {}).await;
        scene.followed().await;
        scene.api.close().await;
        eventually("it is noticed", async || scene.failures("connect")).await;
        let watches = scene.api.seen(Verb::Watch);
        for object in objects() {
            scene.api.put(with(object, "/metadata/annotations", json!({"a": "b"})));
        }
        scene.api.open();
        eventually("each kind is watched", async || {
            scene.api.seen(Verb::Watch) >= watches + KINDS
        })
        .await;
        assert!(scene.changes.try_recv().is_err(), "no rights have changed");
        scene.api.close().await;
        scene.api.delete(&account("ci"));
        scene.api.delete(&role_binding("team-a", "alice", "ssh", "alice"));
        scene.api.compact();
        scene.api.open();
        let mut told = [scene.told().await, scene.told().await];
        told.sort_by_key(|change| matches!(change, Change::UserDeleted(_)));
        assert_eq!(told, [Change::Everywhere, gone("ci")]);
    });
}

#[test]
fn an_account_that_is_made_anew_under_its_name_is_another_user() {
    lab::run(async |lab| {
        let mut scene = Scene::new(&lab, |_| {}).await;
        scene.followed().await;
        scene.api.close().await;
        scene.api.delete(&account("ci"));
        let mut again = account("ci");
        again["metadata"]["uid"] = json!("u-new");
        scene.api.put(again);
        scene.api.open();
        assert_eq!(scene.told().await, gone("ci"));
    });
}

#[test]
fn without_the_right_to_watch_one_kind_the_others_are_followed_and_it_is_tried_again() {
    lab::run(async |lab| {
        let mut scene = Scene::new(&lab, |api| api.allow("clusterrolebindings", false)).await;
        eventually("it is counted", async || scene.failures("forbidden")).await;
        eventually("the others are watched", async || {
            scene.api.seen(Verb::Watch) >= KINDS - 1
        })
        .await;
        scene.api.put(role_binding("team-a", "bob", "ssh", "bob"));
        assert_eq!(scene.told().await, of_team_a());
        scene.api.allow("clusterrolebindings", true);
        // By its first list, which comes late, and then by events.
        let (mut generation, mut told) = (0, 0);
        eventually("it is watched", async || {
            generation += 1;
            scene.api.put(with_rights(cluster("ClusterRoleBinding"), generation));
            told += usize::from(scene.changes.try_recv() == Ok(Change::Everywhere));
            told >= 2
        })
        .await;
    });
}

#[test]
fn a_long_list_comes_in_pages_and_a_forgotten_one_in_one() {
    lab::run(async |lab| {
        let accounts = |api: &Api| (0..1200).for_each(|index| api.put(account(&format!("many-{index}"))));
        let mut scene = Scene::new(&lab, accounts).await;
        scene.followed().await;
        assert!(scene.api.seen(Verb::Page) >= 2);
        scene.api.delete(&account("many-777"));
        scene.tells(&gone("many-777")).await;
        scene.api.fail(Verb::Page, Fault::Expired, usize::MAX);
        scene.api.lose(|_, name| name == "many-888");
        scene.api.cut(Cut::Expired);
        scene.tells(&gone("many-888")).await;
    });
}

const KINDS: usize = 5;
