//! Revisions that are too old, lost or lower than before, and lists that come back with less than they should.

use std::time::{Duration, Instant};

use serde_json::json;

use super::api::{Cut, Fault, Verb};
use super::lab;
use super::objects::{service, slice};
use super::proxy::{Tunnel, eventually};
use super::stage::Stage;

#[test]
fn a_revision_that_expires_on_any_watch_or_page_forbids_nothing() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        // More than one page of each.
        serve_many(&stage, 1100).await;
        let hammer = stage.hammer("svc-777.team-a:22");
        for round in 0..3 {
            let (pages, expired) = (stage.api.seen(Verb::Page), stage.errors("expired").await);
            stage.api.fail(Verb::Watch, Fault::Expired, 2);
            stage.api.fail(Verb::Page, Fault::Expired, 2);
            stage.api.compact();
            stage.api.cut(Cut::Expired);
            eventually("later pages are asked for", async || stage.api.seen(Verb::Page) > pages).await;
            stage
                .recovered("410 on watches and pages", &format!("after-{round}"))
                .await;
            assert!(stage.errors("expired").await > expired);
        }
        hammer.never_refused().await;
        let targets = stage.proxy.metric("switchboard_allowlist_targets", "").await;
        assert_eq!(targets, Some(1103.0));
    });
}

/// A watch cache that lags, or an etcd that is compacted all the time.
fn a_server_that_forgets_each_list_at_once_is_listed_ever_more_rarely() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        stage.api.fail_only(Verb::Watch, Fault::Expired, usize::MAX);
        stage.api.cut(Cut::Expired);
        let (watches, begun) = (stage.api.seen(Verb::Watch), Instant::now());
        eventually("14 watches fail", async || stage.api.seen(Verb::Watch) >= watches + 14).await;
        // Two kinds of objects, each with waits of at least 0.1, 0.2, 0.4, 0.8 and 1.6 s behind its second failure.
        assert!(begun.elapsed() > Duration::from_millis(1500), "{:?}", begun.elapsed());
        stage.api.heal();
        stage.put("svc-b", "10.9.1.2");
        stage.proxy.reaches("svc-b.team-a:22", "10.9.1.2:22").await;
    });
}

#[test]
fn a_server_that_was_restored_to_lower_revisions_is_followed_from_there() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        let backup = stage.api.backup();
        for index in 0..200 {
            stage.put(&format!("svc-{}", index % 5), "10.9.1.2");
        }
        stage.proxy.reaches("svc-4.team-a:22", "10.9.1.2:22").await;
        let hammer = stage.hammer("svc-a.team-a:22");
        stage.api.close().await;
        stage.api.restore(backup.clone());
        // Long enough for every watch to notice.
        stage.noticed("connect", 5.0).await;
        stage.api.open();
        stage.recovered("restored", "new").await;
        stage.proxy.refuses("svc-4.team-a:22", 403).await;
        // So quickly that no connection was refused: a watch of a later revision is silent.
        for index in 0..200 {
            stage.put(&format!("svc-{}", index % 5), "10.9.1.2");
        }
        stage.proxy.reaches("svc-4.team-a:22", "10.9.1.2:22").await;
        stage.api.close().await;
        stage.api.restore(backup);
        stage.api.open();
        let started = Instant::now();
        stage.proxy.refuses("svc-4.team-a:22", 403).await;
        eprintln!(
            "figure: a restart to lower revisions shows after {:?}",
            started.elapsed()
        );
        hammer.never_refused().await;
    });
}

fn a_list_that_lost_most_is_held_back_until_it_is_confirmed() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        for index in 0..30 {
            stage.put(&format!("svc-{index}"), &format!("10.9.1.{}", index + 1));
        }
        stage.proxy.reaches("svc-29.team-a:22", "10.9.1.30:22").await;
        let mut tunnel = stage.proxy.connect("svc-29.team-a:22").await.unwrap();
        stage.api.lose(|_, name| !name.starts_with("svc-1"));
        let lost = Instant::now();
        let early = || lost.elapsed() < CONFIRMING;
        stage.api.cut(Cut::Expired);
        is_held(&stage, 1.0).await;
        remains(&stage, &mut tunnel, early).await;
        // Events are believed until then.
        stage.recovered("while a list is held back", "new").await;
        stage.api.delete(&service("team-a", "svc-10"));
        stage.proxy.refuses("svc-10.team-a:22", 403).await;
        // A list that comes at once may be of the same emptiness; only a later one confirms it.
        for _ in 0..3 {
            stage.api.cut(Cut::Expired);
            stage.recovered("at once after a list", "news").await;
            stage.api.delete(&service("team-a", "news"));
            stage.proxy.refuses("news.team-a:22", 403).await;
        }
        let held = stage.proxy.metric("switchboard_allowlist_removals_held", "").await;
        assert!(held == Some(1.0) || !early(), "{held:?}");
        remains(&stage, &mut tunnel, early).await;
        is_held(&stage, 0.0).await;
        eprintln!("figure: confirmed after {:?}", lost.elapsed());
        assert!(!early(), "{:?}", lost.elapsed());
        stage.proxy.refuses("svc-29.team-a:22", 403).await;
        tunnel.ended().await;
        stage.proxy.reaches("svc-11.team-a:22", "10.9.1.12:22").await;
    });
}

#[test]
fn a_loss_that_a_later_list_corrects_never_shows() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        serve_many(&stage, 30).await;
        let hammer = stage.hammer("svc-7.team-a:22");
        let backup = stage.api.backup();
        stage.api.lose(|_, _| true);
        stage.api.cut(Cut::Expired);
        is_held(&stage, 1.0).await;
        stage.api.close().await;
        stage.api.restore(backup);
        stage.api.open();
        is_held(&stage, 0.0).await;
        hammer.never_refused().await;
    });
}

fn a_list_without_any_service_is_not_confirmed_by_its_repetition() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        let mut tunnel = stage.proxy.connect("svc-a.team-a:22").await.unwrap();
        // An API server over an empty etcd makes this one for itself.
        stage.api.put(slice("default", "kubernetes", &["10.9.7.7"]));
        stage.api.lose(|namespace, _| namespace != "default");
        let lost = Instant::now();
        stage.api.cut(Cut::Expired);
        is_held(&stage, 1.0).await;
        // Of Services and of slices twice more, 10 s or more apart.
        let lists = stage.api.seen(Verb::List);
        eventually("the list is repeated", async || stage.api.seen(Verb::List) >= lists + 4).await;
        assert!(lost.elapsed() >= CONFIRMING, "{:?}", lost.elapsed());
        is_held(&stage, 1.0).await;
        stage.is_unmoved("svc-a").await;
        tunnel.echo().await.unwrap();
        // The Services are back, one of them deleted by an event.
        stage.serve("svc-b", "10.9.1.2").await;
        stage.put("svc-a", "10.9.1.1");
        is_held(&stage, 0.0).await;
        stage.api.delete(&service("team-a", "svc-a"));
        stage.api.delete(&service("team-a", "svc-b"));
        stage.proxy.refuses("svc-a.team-a:22", 403).await;
        tunnel.ended().await;
    });
}

#[test]
fn events_that_delete_most_apply_at_once() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        serve_many(&stage, 30).await;
        for index in 1..30 {
            stage.api.delete(&service("team-a", &format!("svc-{index}")));
        }
        stage.proxy.refuses("svc-29.team-a:22", 403).await;
        let held = stage.proxy.metric("switchboard_allowlist_removals_held", "").await;
        assert_eq!(held, Some(0.0));
        let messages = stage.proxy.messages();
        assert!(!messages.contains("a list has lost"), "{messages}");
        stage.is_unmoved("svc-0").await;
    });
}

#[test]
fn an_object_that_comes_again_under_its_name_is_a_new_one() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        let mut tunnel = stage.proxy.connect("svc-a.team-a:22").await.unwrap();
        // The same name elsewhere is another Service, and so are its slices.
        stage.api.put(slice("team-b", "svc-a", &["10.9.1.2"]));
        stage.api.put(service("team-b", "svc-a"));
        stage.proxy.reaches("svc-a.team-b:22", "10.9.1.2:22").await;
        stage.proxy.reaches("svc-a.team-a:22", "10.9.1.1:22").await;
        stage.api.delete(&service("team-b", "svc-a"));
        stage.proxy.refuses("svc-a.team-b:22", 403).await;
        tunnel.echo().await.unwrap();
        stage.api.delete(&service("team-a", "svc-a"));
        stage.proxy.refuses("svc-a.team-a:22", 403).await;
        tunnel.ended().await;
        stage.serve("svc-a", "10.9.1.3").await;
    });
}

#[test]
fn a_static_target_takes_precedence_over_a_service_of_its_name() {
    lab::run(async |lab| {
        let name = json!([{"name": "svc-a.team-a:22", "addresses": ["10.9.7.7:22"]}]);
        let settings = super::objects::with(super::proxy::settings(&[]), "/allowlist/static", name);
        let stage = Stage::over(lab, settings, async |api| api.open()).await.ready().await;
        stage.put("svc-a", "10.9.1.1");
        stage.serve("svc-b", "10.9.1.2").await;
        for _ in 0..10 {
            let tunnel = stage.proxy.connect("svc-a.team-a:22").await.unwrap();
            assert_eq!(tunnel.pod, "10.9.7.7:22".parse().unwrap());
        }
    });
}

/// Services `svc-0` to one less than `count`, all of them at 10.9.1.1.
async fn serve_many(stage: &Stage, count: u32) {
    for index in 0..count {
        stage.put(&format!("svc-{index}"), "10.9.1.1");
    }
    let last = format!("svc-{}.team-a:22", count - 1);
    stage.proxy.reaches(&last, "10.9.1.1:22").await;
}

/// A target that a list has lost is there while no later list can have confirmed that, and so are its tunnels.
///
/// On a busy machine the later list may come at any time: what is gone is a fault only if it is `early`, asked
/// afterwards.
async fn remains(stage: &Stage, tunnel: &mut Tunnel, early: impl Fn() -> bool) {
    for _ in 0..20 {
        let refused = stage.proxy.connect("svc-29.team-a:22").await.err();
        assert!(refused.is_none() || !early(), "{refused:?}");
    }
    let echoed = tunnel.echo().await;
    assert!(echoed.is_ok() || !early(), "{echoed:?}");
    assert!(stage.proxy.is_ready().await, "it stays ready");
}

/// Waits until a list is held back (1) or none is (0).
async fn is_held(stage: &Stage, expected: f64) {
    eventually("a list is held back, or none", async || {
        stage.proxy.metric("switchboard_allowlist_removals_held", "").await == Some(expected)
    })
    .await;
}

/// The shortest time between a list and one that confirms it.
const CONFIRMING: Duration = Duration::from_secs(15);

tests_in! {
    slow:
    a_server_that_forgets_each_list_at_once_is_listed_ever_more_rarely,
    a_list_that_lost_most_is_held_back_until_it_is_confirmed,
    a_list_without_any_service_is_not_confirmed_by_its_repetition,
}
