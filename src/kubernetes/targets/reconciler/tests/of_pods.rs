//! Pods without a Service: their list delays nobody else's targets, and a pod that is missing in it is not dialled.

use super::*;

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
    stage.take(2, Event::Refused);
    assert_eq!(stage.authorize("s0.n:22"), Ok(()));
    assert_eq!(stage.authorize("s1.n:22"), Err(RefusalReason::NotAllowed));
    stage.take(0, Event::Deleted((key("s0"), None)));
    assert_eq!(stage.authorize("s0.n:22"), Err(RefusalReason::NotAllowed));
    stage.take(2, pods(1));
    assert!(stage.has_endpoint("p0.n.pod:22"), "the permission is given");
}

#[tokio::test]
async fn pods_that_are_not_listed_after_a_reload_keep_their_targets_and_no_other_ones() {
    let mut stage = stage_with_pods();
    stage.take(2, pods(2));
    let mut stage = stage.reload(&with_pods("a=c"));
    stage.take(2, Event::Failed(Failure::Refused));
    stage.take(0, Event::Deleted((key("s0"), None)));
    assert_eq!(stage.authorize("s0.n:22"), Err(RefusalReason::NotAllowed));
    assert!(stage.has_endpoint("p1.n.pod:22"));
    stage.take(2, pods(1));
    assert!(stage.has_endpoint("p0.n.pod:22"));
    assert_eq!(stage.authorize("p1.n.pod:22"), Err(RefusalReason::NotAllowed));
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
