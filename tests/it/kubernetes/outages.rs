//! The API server is away, silent, or fails: what is known stays, and what is new comes soon after it is back.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::sleep;

use super::api::{Cut, Fault, Verb};
use super::lab;
use super::objects::{service, slice};
use super::proxy::{PATIENCE, eventually, settings, within};
use super::stage::Stage;

#[test]
fn away_at_start_names_are_unknown_until_the_server_is_back() {
    lab::run(async |lab| {
        let stage = Stage::over(lab, settings(&[]), async |_| {}).await;
        let refused = stage.proxy.refuses("svc-a.team-a:22", 503).await;
        eprintln!("phrase: {}", refused.phrase);
        stage.noticed("connect", 0.0).await;
        assert!(!stage.proxy.is_ready().await, "it does not know whom to serve");
        stage.put("svc-a", "10.9.1.1");
        let hammer = stage.hammer("svc-a.team-a:22");
        stage.api.open();
        stage.follows("away at start", "svc-a", Instant::now()).await;
        let stage = stage.ready().await;
        stage.proxy.refuses("other.team-a:22", 403).await;
        let answers = hammer.stop().await;
        assert!(!answers.contains(&403), "a name that is not known yet is not forbidden");
    });
}

#[test]
fn a_selector_that_the_api_server_refuses_is_named_in_its_words() {
    lab::run(async |lab| {
        let settings = settings(&[("selector", json!("a in (b"))]);
        let stage = Stage::over(lab, settings, async |api| api.open()).await;
        let is_logged = async || stage.proxy.messages().contains("unable to parse requirement");
        eventually("the API server's words are in the log", is_logged).await;
        stage.noticed("refused", 0.0).await;
        stage.proxy.refuses("svc-a.team-a:22", 503).await;
        assert!(!stage.proxy.is_ready().await);
    });
}

#[test]
fn until_the_first_list_a_name_is_unknown_and_never_forbidden() {
    lab::run(async |lab| {
        let stage = Stage::over(lab, settings(&[]), async |api| {
            api.put(slice("team-a", "svc-a", &["10.9.1.1"]));
            api.put(service("team-a", "svc-a"));
            api.allow("services", false);
            api.open();
        })
        .await;
        let hammer = stage.hammer("svc-a.team-a:22");
        // A server that starts refuses for a moment.
        stage.noticed("forbidden", 0.0).await;
        for (fault, kind) in [
            (Fault::TooMany, "throttled"),
            (Fault::Status(500), "server"),
            (Fault::Expired, "expired"),
        ] {
            stage.api.fail_only(Verb::List, fault, usize::MAX);
            stage.api.allow("services", true);
            stage.noticed(kind, stage.errors(kind).await).await;
            assert!(!stage.proxy.is_ready().await, "{fault:?}");
        }
        stage.api.fail_only(Verb::List, Fault::Slow(Duration::from_secs(2)), 4);
        let stage = stage.ready().await;
        stage.proxy.reaches("svc-a.team-a:22", "10.9.1.1:22").await;
        let answers = hammer.stop().await;
        assert!(!answers.contains(&403), "a name that is not known yet is not forbidden");
    });
}

#[test]
fn clients_do_not_wait_for_a_server_that_is_silent_at_start() {
    lab::run(async |lab| {
        let stage = Stage::over(lab, settings(&[]), async |api| {
            api.freeze(true);
            api.open();
        })
        .await;
        // The server is silent until it is told otherwise below: the answer cannot have waited for it.
        stage.proxy.refuses("svc-a.team-a:22", 503).await;
        stage.put("svc-a", "10.9.1.1");
        stage.api.freeze(false);
        let stage = stage.ready().await;
        stage.proxy.reaches("svc-a.team-a:22", "10.9.1.1:22").await;
    });
}

#[test]
fn an_outage_with_refused_connections_changes_nothing_and_recovery_is_fast() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        let mut tunnel = stage.proxy.connect("svc-a.team-a:22").await.unwrap();
        let synced = stage
            .proxy
            .metric("switchboard_allowlist_last_sync_timestamp_seconds", "")
            .await;
        for (name, outage) in [("short", 500), ("medium", 2000), ("long", 4500)] {
            stage.api.close().await;
            stage.put(name, "10.9.1.2");
            stage.noticed("connect", stage.errors("connect").await).await;
            // How long the outage lasts, not a wait for anything.
            sleep(Duration::from_millis(outage)).await;
            stage.is_unmoved("svc-a").await;
            tunnel.echo().await.unwrap();
            let (_, conditions) = stage.proxy.page("/readyz?verbose").await.unwrap();
            assert!(conditions.contains(UNCONFIRMED), "{conditions}");
            stage.api.open();
            stage.follows(&format!("{outage} ms away"), name, Instant::now()).await;
            let is_confirmed = async || {
                let (_, conditions) = stage.proxy.page("/readyz?verbose").await.unwrap();
                !conditions.contains(UNCONFIRMED)
            };
            eventually("the list is confirmed", is_confirmed).await;
        }
        let now = stage
            .proxy
            .metric("switchboard_allowlist_last_sync_timestamp_seconds", "")
            .await;
        assert!(now > synced, "the age of the list shows");
        stage.recovered("and events again", "late").await;
    });
}

/// A line of `/readyz?verbose`.
const UNCONFIRMED: &str = "the API server does not answer: the allowlist has not been confirmed since 20";

#[test]
fn a_watch_that_ends_in_any_way_is_taken_up_again() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        let hammer = stage.hammer("svc-a.team-a:22");
        for (index, cut) in [Cut::End, Cut::MidLine, Cut::Garbage, Cut::Expired, Cut::MidLine]
            .into_iter()
            .enumerate()
        {
            let watches = stage.api.seen(Verb::Watch);
            stage.api.cut(cut);
            let is_back = async || stage.api.seen(Verb::Watch) >= watches + 2;
            let took = within(PATIENCE, &format!("{cut:?}: both watch again"), is_back).await;
            eprintln!("figure: {cut:?}: both watch again after {took:?}");
            stage.recovered(&format!("{cut:?}"), &format!("after-{index}")).await;
        }
        hammer.never_refused().await;
        assert!(stage.proxy.is_ready().await);
    });
}

#[test]
fn requests_that_fail_are_made_again_and_counted() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        for (fault, kind) in [
            (Fault::TooMany, "throttled"),
            (Fault::Status(500), "server"),
            (Fault::Status(401), "unauthorized"),
            (Fault::Status(403), "forbidden"),
            (Fault::Expired, "expired"),
        ] {
            let before = stage.errors(kind).await;
            for verb in [Verb::List, Verb::Watch] {
                stage.api.fail(verb, fault, usize::MAX);
            }
            stage.api.cut(Cut::Expired);
            stage.noticed(kind, before).await;
            stage.is_unmoved("svc-a").await;
            stage.api.heal();
            stage.recovered(&format!("{fault:?}"), kind).await;
        }
    });
}

#[test]
fn a_server_that_asks_for_a_wait_gets_it() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        let lists = stage.api.seen(Verb::List);
        let listed = async |more| eventually("lists", async || stage.api.seen(Verb::List) >= lists + more).await;
        // Services and slices, once each.
        stage.api.fail(Verb::List, Fault::TooManyFor(5), 2);
        // Before the refusals: a test that learns of them late must not find the wait too short.
        let begun = Instant::now();
        stage.api.cut(Cut::Expired);
        listed(4).await;
        assert!(begun.elapsed() >= Duration::from_secs(5), "{:?}", begun.elapsed());
        stage.recovered("after the wait", "new").await;
    });
}

#[test]
fn a_half_open_server_is_noticed_by_its_silence() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        let hammer = stage.hammer("svc-a.team-a:22");
        let (silent, started) = (stage.errors("silent").await, Instant::now());
        stage.api.freeze(true);
        stage.put("meanwhile", "10.9.1.2");
        stage.noticed("silent", silent).await;
        eprintln!("figure: silence was noticed after {:?}", started.elapsed());
        stage.is_unmoved("svc-a").await;
        // Another server replaces it: what was written to the silent one is lost.
        stage.api.close().await;
        stage.api.freeze(false);
        stage.api.open();
        stage.follows("half-open", "meanwhile", Instant::now()).await;
        hammer.never_refused().await;
    });
}

#[test]
fn a_slow_list_holds_up_nothing() {
    lab::run(async |lab| {
        let stage = Stage::new(lab, &[]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        stage.api.fail(Verb::List, Fault::Slow(Duration::from_secs(3)), 2);
        let lists = stage.api.seen(Verb::List);
        let hammer = stage.hammer("svc-a.team-a:22");
        stage.api.cut(Cut::Expired);
        eventually("it lists", async || stage.api.seen(Verb::List) >= lists + 2).await;
        stage.put("new", "10.9.1.2");
        stage.follows("a list that takes 3 s", "new", Instant::now()).await;

        hammer.never_refused().await;
    });
}

#[test]
fn with_a_snapshot_a_restart_in_an_outage_serves_the_last_list() {
    lab::run(async |lab| {
        let file = lab.directory().join("snapshot");
        let mut stage = Stage::new(lab, &[("snapshot_file", json!(file))]).await;
        stage.serve("svc-a", "10.9.1.1").await;
        // The Service and its slice, which come by two watches: a snapshot between them has one of both.
        let is_whole = |text: String| text.contains("\"Service\":") && text.contains("10.9.1.1");
        let is_written = async || std::fs::read_to_string(&file).is_ok_and(is_whole);
        eventually("the snapshot is written", is_written).await;
        stage.api.close().await;
        stage.restart_proxy().await;
        stage.proxy.reaches("svc-a.team-a:22", "10.9.1.1:22").await;
        let says_so = async || stage.proxy.messages().contains("snapshot");
        eventually("it says where the list is from", says_so).await;
        let is_the_clusters = async || stage.proxy.messages().contains("has the Services of the cluster");
        assert!(!is_the_clusters().await, "{}", stage.proxy.messages());
        // It may have come since.
        stage.proxy.refuses("other.team-a:22", 503).await;
        let hammer = stage.hammer("svc-a.team-a:22");
        stage.put("new", "10.9.1.2");
        stage.api.open();
        stage.follows("a restart from a snapshot", "new", Instant::now()).await;
        hammer.never_refused().await;
        assert!(stage.proxy.is_ready().await);
    });
}

#[test]
fn an_allowlist_that_is_ready_and_empty_is_reported_once() {
    lab::run(async |lab| {
        let mut stage = Stage::new(lab, &[]).await;
        let reports = |stage: &Stage| {
            stage
                .proxy
                .messages()
                .matches("switchboard::proxy::serve: the allowlist is empty")
                .count()
        };
        eventually("the report", async || reports(&stage) == 1).await;
        stage.serve("svc-a", "10.9.1.1").await;
        stage.restart_proxy().await;
        stage.proxy.reaches("svc-a.team-a:22", "10.9.1.1:22").await;
        assert_eq!(reports(&stage), 0);
    });
}
