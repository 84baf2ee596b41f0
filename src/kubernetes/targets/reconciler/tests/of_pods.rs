//! Pods without a Service: their list delays nobody else's targets, and a pod that is missing in it is not dialled.

use futures_util::FutureExt;

use super::*;
use crate::protocol::listing::NameFilter;

fn with_pods(selector: &str) -> Options {
    let mut options = Options::default();
    options.pods.enabled = true;
    options.pods.selector = Some(selector.into());
    options
}

/// The Services (0), slices (1) and pods (2) of all namespaces.
fn stage_with_pods() -> Stage {
    let mut stage = stage_of(&with_pods("a=b"), None);
    stage.take_all_of(0, services(1), slices(1));
    stage
}

fn pod(name: &str) -> Item {
    let (Some(Object::Service(service)), Some(Object::Slice(slice))) = (service(name).1, slice("").1) else {
        panic!()
    };
    let pod = Pod {
        uid: "u-1".into(),
        is_terminating: false,
        service: *service,
        slice: *slice,
    };
    (key(&format!("{name}._pod")), Some(Object::Pod(Box::new(pod))))
}

fn pods(count: usize) -> Event<Item> {
    Event::Listed((0..count).map(|index| pod(&format!("p{index}"))).collect())
}

#[test]
fn services_do_not_wait_for_pods_that_the_api_server_forbids_to_read() {
    let mut stage = stage_with_pods();
    assert_eq!(stage.authorize("s0.n:22"), Err(RefusalReason::AllowlistNotReady));
    stage.take(2, Event::Failed(Failure::Forbidden));
    assert_eq!(stage.authorize("s0.n:22"), Ok(()));
    assert_eq!(stage.authorize("s1.n:22"), Err(RefusalReason::NotAllowed));
    assert_eq!(stage.authorize("p0.n.pod:22"), Err(RefusalReason::AllowlistNotReady));
    assert_eq!(
        stage.allowlist.list(&NameFilter::default()).unwrap_err(),
        RefusalReason::AllowlistNotReady
    );
    stage.take(2, Event::Refused);
    assert_eq!(stage.authorize("p0.n.pod:22"), Err(RefusalReason::NotAllowed));
    assert_eq!(stage.allowlist.list(&NameFilter::default()).unwrap().len(), 1);
    assert_eq!(stage.reconciler.unlisted().collect::<Vec<_>>(), ["pods"]);
    stage.take(0, Event::Deleted((key("s0"), None)));
    assert_eq!(stage.authorize("s0.n:22"), Err(RefusalReason::NotAllowed));
    stage.take(2, pods(1));
    assert!(stage.has_endpoint("p0.n.pod:22"), "the permission is given");
    assert_eq!(stage.reconciler.unlisted().count(), 0);
}

#[test]
fn services_do_not_wait_for_pods_whose_list_fails_in_any_way() {
    for failure in [Failure::Connect, Failure::Timeout, Failure::Malformed, Failure::Refused] {
        let mut stage = stage_with_pods();
        assert_eq!(stage.authorize("s0.n:22"), Err(RefusalReason::AllowlistNotReady));
        stage.take(2, Event::Failed(failure));
        assert_eq!(stage.authorize("s0.n:22"), Ok(()), "{failure:?}");
        assert_eq!(
            stage.authorize("s1.n:22"),
            Err(RefusalReason::NotAllowed),
            "{failure:?}"
        );
        // The name may yet be that of a pod.
        assert_eq!(stage.authorize("p0.n.pod:22"), Err(RefusalReason::AllowlistNotReady));
    }
}

#[tokio::test(start_paused = true)]
async fn services_do_not_wait_longer_than_10_s_for_a_list_of_pods_without_an_end() {
    let Stage {
        reconciler, allowlist, ..
    } = stage_with_pods();
    let (_policies, policy) = watch::channel(reconciler.cluster.policy().clone());
    let (_sender, events) = mpsc::channel(1);
    let idle = Arc::new(Mutex::new(Some(Box::new(reconciler))));
    let begun = Instant::now();
    tokio::select! {
        () = Reconciler::run(idle, events, policy) => panic!("the senders are there"),
        () = allowlist.completed() => {}
        () = sleep_until(begun + 10 * MAX_DELAY_BY_PODS) => panic!("it waits for the pods"),
    }
    assert_eq!(begun.elapsed().as_secs(), MAX_DELAY_BY_PODS.as_secs());
    assert!(allowlist.find_target(&"s0.n:22".parse().unwrap()).is_ok());
}

#[tokio::test]
async fn pods_that_are_not_listed_after_a_reload_keep_their_tunnels_and_get_no_new_one() {
    for failures in [&[][..], &[Failure::Refused], &[Failure::Forbidden, Failure::Forbidden]] {
        let mut stage = stage_with_pods();
        stage.take(2, pods(2));
        let target = stage.allowlist.find_target(&"p1.n.pod:22".parse().unwrap()).unwrap();
        let mut stage = stage.reload(&with_pods("a=c"));
        for failure in failures {
            stage.take(2, Event::Failed(*failure));
        }
        stage.take(0, Event::Deleted((key("s0"), None)));
        assert_eq!(stage.authorize("s0.n:22"), Err(RefusalReason::NotAllowed));
        for name in ["p0.n.pod:22", "p1.n.pod:22"] {
            assert_eq!(stage.login(name), Err(RefusalReason::AllowlistNotReady), "{failures:?}");
        }
        assert!(target.removed().now_or_never().is_none(), "its tunnels go on");
        stage.take(2, pods(1));
        assert_eq!(stage.login("p0.n.pod:22"), Ok(()));
        assert_eq!(stage.login("p1.n.pod:22"), Err(RefusalReason::NotAllowed));
        assert!(target.removed().now_or_never().is_some());
    }
}

#[tokio::test]
async fn pods_that_a_reload_switches_off_are_gone_though_nothing_can_be_listed() {
    let mut stage = stage_with_pods();
    stage.take(2, pods(1));
    let stage = stage.reload(&Options {
        selector: "other=true".into(),
        ..Options::default()
    });
    assert_eq!(stage.login("p0.n.pod:22"), Err(RefusalReason::NotAllowed));
    assert_eq!(stage.login("s0.n:22"), Err(RefusalReason::AllowlistNotReady));
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_removal_is_held_keeps_its_tunnels_and_is_not_dialled() {
    let mut stage = stage_with_pods();
    stage.take(2, pods(3));
    let target = stage.allowlist.find_target(&"p1.n.pod:22".parse().unwrap()).unwrap();
    stage.take(2, pods(0));
    assert!(stage.shows("switchboard_allowlist_removals_held 1"));
    let held = stage.allowlist.find_target(&"p1.n.pod:22".parse().unwrap()).unwrap();
    assert!(Arc::ptr_eq(&target, &held) && !stage.has_endpoint("p1.n.pod:22"));
    stage.take(2, pods(3));
    assert!(stage.has_endpoint("p1.n.pod:22"), "it is back");
    // Ended, or of a warm pool: the list says so.
    stage.take(
        2,
        Event::Listed((0..3).map(|index| (pod(&format!("p{index}")).0, None)).collect()),
    );
    assert_eq!(stage.authorize("p1.n.pod:22"), Err(RefusalReason::NotAllowed));
    assert!(stage.shows("switchboard_allowlist_removals_held 0"));
}

#[tokio::test(start_paused = true)]
async fn the_namespace_of_a_held_pod_is_held() {
    let options = Options {
        namespace_selector: Some("a=b".into()),
        ..with_pods("a=b")
    };
    let mut stage = stage_of(&options, None);
    let namespace = (Key::new("", "n"), Some(Object::Namespace));
    stage.take_all_of(0, services(0), slices(0));
    stage.take_all_of(2, pods(3), Event::Listed(vec![namespace]));
    assert!(stage.has_endpoint("p1.n.pod:22"));
    stage.take(2, pods(0));
    for seconds in [0, 20, 20] {
        advance(Duration::from_secs(seconds)).await;
        stage.take(3, own(Kind::Namespace));
        assert_eq!(stage.authorize("p1.n.pod:22"), Ok(()));
    }
}

#[tokio::test]
async fn no_pod_is_dialled_because_of_a_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot");
    let mut first = stage_of(&with_pods("a=b"), Some(file.clone()));
    first.take_all_of(0, services(1), slices(1));
    first.take(2, pods(1));
    first.reconciler.save_snapshot();
    while !file.exists() {
        tokio::task::yield_now().await;
    }
    let second = stage_of(&with_pods("a=b"), Some(file));
    assert!(second.has_endpoint("s0.n:22"));
    assert_eq!(second.authorize("p0.n.pod:22"), Err(RefusalReason::AllowlistNotReady));
}
