//! Reloads: what is held stays held, and what they may exclude gets no new tunnel before it is listed.

use futures_util::FutureExt;

use super::*;

#[tokio::test(start_paused = true)]
async fn what_is_held_survives_a_reload_of_anything_but_its_own_source() {
    let of = |namespaces: &[&str]| Options {
        namespaces: namespaces.iter().map(|name| (*name).into()).collect(),
        ..Options::default()
    };
    let changed = Options {
        selector: "other=true".into(),
        ..of(&["n"])
    };
    for (options, is_own) in [
        (of(&["n"]), false),
        (of(&["n", "m"]), false),
        (of(&["m", "n"]), false),
        (of(&["n", "n"]), false),
        (changed, true),
        (of(&[]), true),
        (of(&["m"]), true),
    ] {
        let mut stage = stage_of(&of(&["n"]), None);
        stage.take_all_of(0, services(20), slices(20));
        advance(Duration::from_secs(10)).await;
        let empty = || Event::Listed(Vec::new());
        stage.take_all_of(0, empty(), empty());
        advance(Duration::from_secs(100)).await;
        let mut stage = stage.reload(&options);
        // A namespace that is watched no more is known to be none without a list.
        let expected = match &*options.namespaces {
            [only] if **only == *"m" => Err(RefusalReason::NotAllowed),
            _ => Ok(()),
        };
        assert_eq!(stage.authorize("s7.n:22"), expected, "before its sources are listed");
        for source in 0..stage.reconciler.sources.len() {
            stage.take(source, empty());
        }
        let is_held = stage.has_endpoint("s7.n:22");
        assert_eq!(
            (is_held, stage.shows("switchboard_allowlist_removals_held 1")),
            (!is_own, !is_own),
            "{options:?}"
        );
        if is_held {
            assert!(
                stage
                    .reconciler
                    .sources
                    .iter()
                    .any(|source| source.handle.wants_list.load(Ordering::Relaxed))
            );
            advance(Duration::from_secs(199)).await;
            stage.reconciler.release();
            stage.reconciler.settle();
            assert!(stage.has_endpoint("s7.n:22"), "{options:?}");
            advance(Duration::from_secs(1)).await;
            stage.reconciler.release();
            stage.reconciler.settle();
            assert_eq!(
                stage.authorize("s7.n:22"),
                Err(RefusalReason::NotAllowed),
                "the hold has not begun again"
            );
        }
    }
}

#[tokio::test]
async fn a_reload_that_changes_which_services_are_targets_opens_no_tunnel_to_one_before_it_is_listed() {
    let all = Options::default;
    let selected = || Options {
        namespace_selector: Some("a=b".into()),
        ..all()
    };
    let of = |namespaces: &[&str]| Options {
        namespaces: namespaces.iter().map(|name| (*name).into()).collect(),
        ..all()
    };
    let other = Options {
        selector: "other=true".into(),
        ..all()
    };
    let prefixed = Options {
        annotation_prefix: "other.dev/".into(),
        ..all()
    };
    let elsewhere = Options {
        kubeconfig: Some("/other".into()),
        ..all()
    };
    for (options, listed) in [
        (other, 0..2),
        (prefixed, 0..2),
        (elsewhere, 0..2),
        (of(&["n"]), 0..2),
        (selected(), 2..3),
    ] {
        let mut stage = stage_of(&all(), None);
        stage.take_all_of(0, services(2), slices(2));
        let mut stage = stage.reload(&options);
        for round in 0..2 {
            assert_eq!(
                stage.login("s1.n:22"),
                Err(RefusalReason::AllowlistNotReady),
                "{options:?}"
            );
            if round == 0 {
                stage.take(listed.start, Event::Failed(Failure::Forbidden));
            }
        }
        for source in listed {
            let events = [
                services(1),
                slices(1),
                Event::Listed(vec![(Key::new("", "n"), Some(Object::Namespace))]),
            ];
            stage.take(source, events.into_iter().nth(source).unwrap());
        }
        assert_eq!(stage.login("s0.n:22"), Ok(()), "{options:?}");
        let others = match options.namespace_selector {
            Some(_) => Ok(()),
            None => Err(RefusalReason::NotAllowed),
        };
        assert_eq!(stage.login("s1.n:22"), others, "{options:?}");
    }
}

#[tokio::test]
async fn a_namespace_that_a_reload_adds_delays_no_other_one_whose_targets_follow_the_cluster() {
    let of = |namespaces: &[&str]| Options {
        namespaces: namespaces.iter().map(|name| (*name).into()).collect(),
        ..Options::default()
    };
    let mut stage = stage_of(&of(&["n"]), None);
    stage.take_all_of(0, services(2), slices(2));
    let mut stage = stage.reload(&of(&["n", "m"]));
    assert_eq!(stage.login("s1.n:22"), Ok(()));
    stage.take(0, Event::Deleted((key("s1"), None)));
    assert_eq!(stage.login("s1.n:22"), Err(RefusalReason::NotAllowed));
}

#[tokio::test]
async fn namespaces_that_a_reload_widens_to_all_keep_what_is_known_of_them() {
    let mut stage = stage_of(&two_namespaces(), None);
    stage.take_all_of(0, services(2), slices(2));
    stage.take_all_of(2, Event::Listed(Vec::new()), Event::Listed(Vec::new()));
    stage.reconciler.outputs.writer.await_services(None);
    let mut stage = stage.reload(&Options::default());
    let kept = stage.allowlist.find_target(&"s1.n:22".parse().unwrap()).unwrap();
    stage.take(0, Event::Failed(Failure::Forbidden));
    assert_eq!(stage.login("s1.n:22"), Ok(()));
    assert_eq!(
        stage.login("s1.m:22"),
        Err(RefusalReason::AllowlistNotReady),
        "it may be new"
    );
    let mut listed = Vec::from([service("s0")]);
    listed[0].0.namespace = "m".into();
    listed.push(service("s1"));
    stage.take_all_of(0, Event::Listed(listed), slices(2));
    assert_eq!((stage.login("s0.m:22"), stage.login("s1.n:22")), (Ok(()), Ok(())));
    assert!(kept.removed().now_or_never().is_none(), "its tunnels go on");
    assert_eq!(stage.login("s0.n:22"), Err(RefusalReason::NotAllowed), "it was deleted");
}

#[tokio::test]
async fn a_service_that_is_deleted_while_the_namespaces_are_read_is_gone_at_once() {
    let mut stage = stage_of(&Options::default(), None);
    stage.take_all_of(0, services(2), slices(2));
    let target = stage.allowlist.find_target(&"s1.n:22".parse().unwrap()).unwrap();
    let mut stage = stage.reload(&Options {
        namespace_selector: Some("a=b".into()),
        ..Options::default()
    });
    stage.take(0, Event::Deleted((key("s1"), None)));
    assert!(target.removed().now_or_never().is_some(), "its tunnels have ended");
    assert_eq!(stage.login("s0.n:22"), Err(RefusalReason::AllowlistNotReady));
}

#[tokio::test]
async fn a_part_of_the_objects_is_saved_by_no_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let of = |selector: &str| Options {
        selector: selector.into(),
        snapshot_file: Some(folder.path().join("snapshot")),
        ..Options::default()
    };
    let mut stage = stage_of(&of("a=b"), of("a=b").snapshot_file);
    stage.take_all_of(0, services(2), slices(2));
    assert!(stage.reconciler.deadlines()[2].is_some());
    let mut stage = stage.reload(&of("a=c"));
    assert_eq!(stage.login("s1.n:22"), Err(RefusalReason::AllowlistNotReady));
    assert_eq!(stage.reconciler.deadlines()[2], None);
    stage.take_all_of(0, services(1), slices(1));
    assert!(stage.reconciler.deadlines()[2].is_some());
}

#[tokio::test]
async fn targets_of_before_a_reload_are_no_deleted_namespace() {
    let mut stage = stage_of(&two_namespaces(), None);
    for source in [0, 1, 3] {
        stage.take(source, Event::Listed(Vec::new()));
    }
    let (mut key, object) = service("s0");
    key.namespace = "m".into();
    stage.take(2, Event::Listed(vec![(key, object)]));
    let mut stage = stage.reload(&Options {
        selector: "other=true".into(),
        ..two_namespaces()
    });
    stage.forbid(11, true);
    for source in [0, 1] {
        stage.take(source, Event::Listed(Vec::new()));
    }
    stage.forbid(11, true);
    // It is there, and takes no new tunnel.
    assert_eq!(stage.authorize("s0.m:22"), Ok(()));
    assert_eq!(stage.login("s0.m:22"), Err(RefusalReason::AllowlistNotReady));
    assert!(stage.shows("switchboard_allowlist_namespaces_forbidden 0"));
}
