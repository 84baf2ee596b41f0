//! Pods: below their Service, without one, and by a further name.

use super::*;

#[test]
fn a_further_name_is_that_of_one_pod_alone_and_of_none_that_is_called_so() {
    let mut cluster = ClusterObjects::new(policy());
    let pods = ["a", "b", "box"].map(|pod| Key::of_pod("n", pod));
    let mut aliases = BTreeMap::new();
    let mut is_seen = |cluster: &mut ClusterObjects, expected: [Option<&str>; 3], noted: usize| {
        let updates = cluster.recompute();
        for change in updates.changes {
            match change {
                Change::Set(target) => aliases.insert(target.id, target.rules.alias),
                Change::Await(id) | Change::Remove(id) => aliases.remove(&id),
            };
        }
        let seen = pods
            .each_ref()
            .map(|pod| aliases.get(&pod.target_id()).cloned().flatten());
        assert_eq!(seen.each_ref().map(Option::as_deref), expected);
        let is_fault =
            |notice: &&ServiceNotice| matches!(notice, ServiceNotice::Annotation(_, fault) if *fault.key == *"name");
        assert_eq!(updates.notices.iter().filter(is_fault).count(), noted, "{expected:?}");
    };
    cluster.put(pods[0].clone(), named_pod("1", Some("box")));
    is_seen(&mut cluster, [Some("box"), None, None], 0);
    cluster.put(pods[1].clone(), named_pod("2", Some("box")));
    is_seen(&mut cluster, [None; 3], 2);
    cluster.remove(Kind::Pod, &pods[0]);
    is_seen(&mut cluster, [None, Some("box"), None], 0);
    cluster.put(pods[2].clone(), named_pod("3", Some("box")));
    is_seen(&mut cluster, [None; 3], 1);
    cluster.remove(Kind::Pod, &pods[2]);
    is_seen(&mut cluster, [None, Some("box"), None], 0);
    cluster.put(pods[1].clone(), named_pod("2", Some("other")));
    cluster.put(pods[0].clone(), named_pod("1", Some("box")));
    // That of another namespace is another name.
    cluster.put(Key::of_pod("m", "c"), named_pod("4", Some("box")));
    is_seen(&mut cluster, [Some("box"), Some("other"), None], 0);
    // A pod and the one that replaces it, whichever way round they are seen.
    cluster.put(pods[0].clone(), terminating(named_pod("1", Some("box"))));
    is_seen(&mut cluster, [Some("box"), Some("other"), None], 0);
    cluster.put(pods[1].clone(), named_pod("2", Some("box")));
    is_seen(&mut cluster, [None, Some("box"), None], 0);
    cluster.put(pods[0].clone(), named_pod("5", Some("box")));
    is_seen(&mut cluster, [None; 3], 2);
    cluster.put(pods[1].clone(), terminating(named_pod("2", Some("box"))));
    is_seen(&mut cluster, [Some("box"), None, None], 0);
    cluster.remove(Kind::Pod, &pods[0]);
    is_seen(&mut cluster, [None, Some("box"), None], 0);
}

#[test]
fn of_three_pods_that_claim_a_name_each_is_noted_once_and_the_last_one_that_stays_gets_it() {
    let mut cluster = ClusterObjects::new(policy());
    let pods = ["a", "b", "c"].map(|pod| Key::of_pod("n", pod));
    let name = Key::of_pod("n", "box");
    let mut noted = Vec::new();
    for pod in &pods {
        cluster.put(pod.clone(), named_pod("1", Some("box")));
        noted.extend(cluster.recompute().notices);
    }
    assert_eq!(cluster.claimants(&name).collect::<Vec<_>>(), ["a", "b", "c"]);
    // No pod is named that may be gone, so what is noted of each holds for as long as there are two.
    cluster.remove(Kind::Pod, &pods[0]);
    noted.extend(cluster.recompute().notices);
    noted.retain(|notice| matches!(notice, ServiceNotice::Annotation(..)));
    let said = "another pod has the name box, too, so this one does not get it";
    for pod in &pods {
        let own = ServiceNotice::Annotation(pod.clone(), AnnotationError::new("name", said.to_owned()));
        assert_eq!(noted.iter().filter(|notice| **notice == own).count(), 1, "{noted:?}");
        assert_eq!(
            cluster.service(pod).is_some_and(|(_, notices)| notices.contains(&own)),
            *pod != pods[0]
        );
    }
    cluster.remove(Kind::Pod, &pods[1]);
    let updates = cluster.recompute();
    let alias = updates.changes.iter().find_map(|change| match change {
        Change::Set(target) => target.rules.alias.as_deref(),
        Change::Await(_) | Change::Remove(_) => None,
    });
    assert_eq!(alias, Some("box"));
    assert_eq!(cluster.claimants(&name).collect::<Vec<_>>(), ["c"]);
}

#[test]
fn a_pod_without_a_service_is_a_target_with_the_guards_of_one() {
    let mut cluster = ClusterObjects::new(policy());
    let own = key("n", "web-0._pod");
    cluster.put(
        own.clone(),
        pod("u-1", &[("10.0.0.1", State::Ready), ("127.0.0.1", State::Ready)]),
    );
    let updates = cluster.recompute();
    let target = set(&updates);
    assert_eq!((&*target.id.short_name(), target.ports), ("web-0.n.pod", [2222, 22]));
    assert_eq!(
        (addresses(target), target.rules.uid.as_deref()),
        (vec!["10.0.0.1:2222".to_owned()], Some("u-1"))
    );
    let loopback = "127.0.0.1:2222".parse().unwrap();
    let class = AddressFilter::default()
        .check("127.0.0.1".parse().unwrap())
        .unwrap_err();
    let refused = ServiceNotice::EndpointForbidden(own.clone(), loopback, class);
    assert!(updates.notices.contains(&refused), "{:?}", updates.notices);
    // Another pod of this name.
    cluster.put(own.clone(), pod("u-2", &[("10.0.0.1", State::Ready)]));
    assert_eq!(set(&cluster.recompute()).rules.uid.as_deref(), Some("u-2"));
    cluster.remove(Kind::Pod, &own);
    assert_eq!(cluster.recompute().changes, [Change::Remove(own.target_id())]);
    assert!(cluster.services.is_empty());
}

#[test]
fn no_service_of_a_namespace_takes_the_name_of_a_pod_of_another() {
    let mut options = Options::default();
    for (enabled, names) in [(false, vec!["web.pod", "a.web.pod"]), (true, vec!["web.pod"])] {
        options.pods.enabled = enabled;
        let mut cluster = ClusterObjects::new(policy_of(options.clone()));
        put_service(&mut cluster, "pod", "web", service(22));
        put_slice(&mut cluster, "pod", "web-x", with_names(&["a"]));
        let changes = cluster.recompute().changes;
        let set: Vec<_> = changes
            .iter()
            .map(|change| match change {
                Change::Set(target) => target.id.short_name(),
                Change::Await(id) | Change::Remove(id) => panic!("{id}"),
            })
            .collect();
        assert_eq!(set, names);
    }
}

#[test]
fn each_pod_with_a_hostname_is_a_target_below_its_service() {
    let mut cluster = ClusterObjects::new(policy());
    let mut waking = service(22);
    waking.annotations.wake = Some(Box::new("statefulset/web".parse().unwrap()));
    put_service(&mut cluster, "n", "web", waking);
    put_slice(&mut cluster, "n", "web-x", with_names(&["web-0", "web-1", ""]));
    let changed = |updates: TargetUpdates| -> Vec<_> {
        let changes = updates.changes.into_iter().map(|change| match change {
            Change::Set(target) => (target.id.short_name(), addresses(&target)),
            Change::Await(id) | Change::Remove(id) => (id.short_name(), Vec::new()),
        });
        changes.collect()
    };
    let at = |name: &str, addresses: &[u8]| {
        let addresses = addresses.iter().map(|last| format!("10.0.0.{last}:2222")).collect();
        (name.to_owned(), addresses)
    };
    let all = [
        at("web.n", &[0, 1, 2]),
        at("web-0.web.n", &[0]),
        at("web-1.web.n", &[1]),
    ];
    assert_eq!(changed(cluster.recompute()), all);
    // One goes, and another address has the name of the other.
    put_slice(&mut cluster, "n", "web-x", with_names(&["", "web-0"]));
    let moved = [at("web-1.web.n", &[]), at("web.n", &[0, 1]), at("web-0.web.n", &[1])];
    assert_eq!(changed(cluster.recompute()), moved);
    cluster.remove(Kind::Service, &key("n", "web"));
    assert_eq!(changed(cluster.recompute()), [at("web-0.web.n", &[]), at("web.n", &[])]);
}

#[test]
fn the_pods_of_a_service_are_bounded_and_have_its_port_for_ssh_alone() {
    let mut cluster = ClusterObjects::new(policy());
    // Of many ports each pod has the one for SSH.
    let mut of_many_ports = with_names(&["web-0"]);
    of_many_ports.ports = (1..=20_000)
        .map(|number| SlicePort {
            name: "other".into(),
            number,
        })
        .collect();
    for (ports, count) in [
        (Box::default(), 0),
        (of_many_ports.ports.clone(), 0),
        (with_names(&[""]).ports, 1),
    ] {
        of_many_ports.ports = ports;
        let pods = endpoints::of_pods(
            service(22).port.as_ref().unwrap(),
            &[("web-x".into(), of_many_ports.clone())],
        );
        assert_eq!(pods["web-0"][0].1.ports.len(), count);
    }
    // A tenant may list any number.
    let many: Vec<_> = (0..1100).map(|number| format!("p{number}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    let mut slice = with_names(&many[..200]);
    slice.endpoints = (0..1100)
        .map(|index| Endpoint {
            hostname: many[index].into(),
            ..slice.endpoints[0].clone()
        })
        .collect();
    put_slice(&mut cluster, "n", "web-x", slice);
    put_service(&mut cluster, "n", "web", service(22));
    assert_eq!(cluster.recompute().changes.len(), 1 + 1024);
}
