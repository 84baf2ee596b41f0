//! The join by examples.

mod history;

use super::*;
use crate::kubernetes::objects::model::{Endpoint, SlicePort, State};

fn policy() -> TargetPolicy {
    policy_of(Options::default())
}

fn policy_of(options: Options) -> TargetPolicy {
    TargetPolicy {
        options,
        filter: AddressFilter::default(),
        limits: Limits::default(),
    }
}

fn key(namespace: &str, name: &str) -> Key {
    Key::new(namespace, name)
}

fn service(number: u16) -> Service {
    Service {
        port: Some(ServicePort {
            number,
            name: "ssh".into(),
            is_implied: false,
        }),
        ..Service::default()
    }
}

fn slice(service: &str, port: u16, endpoints: &[(&str, State)]) -> Slice {
    let endpoint = |(address, state): &(&str, State)| Endpoint {
        address: address.parse().unwrap(),
        state: *state,
        node: format!("node-of-{address}").into(),
        hostname: Box::default(),
    };
    Slice {
        service: service.into(),
        ports: Box::new([SlicePort {
            name: "ssh".into(),
            number: port,
        }]),
        endpoints: endpoints.iter().map(endpoint).collect(),
        ..Slice::default()
    }
}

fn awaited(kind: Kind, namespace: Option<&str>) -> AwaitedList {
    ((kind, namespace.map(Into::into)), BTreeSet::new())
}

fn put_service(cluster: &mut ClusterObjects, namespace: &str, name: &str, service: Service) {
    cluster.put(key(namespace, name), Object::Service(Box::new(service)));
}

fn put_slice(cluster: &mut ClusterObjects, namespace: &str, name: &str, slice: Slice) {
    cluster.put(key(namespace, name), Object::Slice(Box::new(slice)));
}

/// The only change, which sets a target.
fn set(updates: &TargetUpdates) -> &ServiceTarget {
    match updates.changes.as_slice() {
        [Change::Set(target)] => target,
        other => panic!("{other:?}"),
    }
}

fn kind_of(object: &Object) -> Kind {
    match object {
        Object::Service(_) => Kind::Service,
        Object::Slice(_) => Kind::Slice,
        Object::Pod(_) => Kind::Pod,
        Object::Namespace => Kind::Namespace,
    }
}

fn addresses(target: &ServiceTarget) -> Vec<String> {
    target.endpoints.addresses.iter().map(ToString::to_string).collect()
}

#[test]
fn a_service_and_its_slices_become_a_target_in_any_order() {
    let mut cluster = ClusterObjects::new(policy());
    let endpoints = slice("a", 22, &[("10.0.0.1", State::Ready), ("10.0.0.2", State::NotReady)]);
    put_slice(&mut cluster, "n", "a-1", endpoints);
    assert_eq!(cluster.recompute(), TargetUpdates::default());
    put_service(&mut cluster, "n", "a", service(2200));
    let updates = cluster.recompute();
    let target = set(&updates);
    assert_eq!((&*target.id.short_name(), target.ports), ("a.n", [2200, 22]));
    assert_eq!(addresses(target), ["10.0.0.1:22"]);
    assert_eq!((target.endpoints.ready, target.endpoints.total), (1, 2));
    assert_eq!(updates.notices, [ServiceNotice::Added(key("n", "a"), 2200)]);
    // The same object again is no change.
    put_service(&mut cluster, "n", "a", service(2200));
    assert_eq!(cluster.recompute(), TargetUpdates::default());
    cluster.remove(Kind::Service, &key("n", "a"));
    assert_eq!(cluster.recompute().changes, [Change::Remove(key("n", "a").target_id())]);
    cluster.remove(Kind::Slice, &key("n", "a-1"));
    cluster.recompute();
    assert!(cluster.services.is_empty() && cluster.strays.is_empty());
}

/// A pod with a further name.
fn named_pod(uid: &str, name: Option<&str>) -> Object {
    let mut object = pod(uid, &[("10.0.0.1", State::Ready)]);
    if let Object::Pod(pod) = &mut object {
        pod.service.annotations.name = name.map(Into::into);
    }
    object
}

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

/// The changes of targets, which are the work that an event causes.
fn changes(cluster: &mut ClusterObjects) -> usize {
    cluster.recompute().changes.len()
}

#[test]
fn each_of_300_missing_lists_costs_what_it_lists() {
    let mut cluster = ClusterObjects::new(policy());
    let namespaces: Vec<_> = (0..300).map(|index| format!("n{index}")).collect();
    let fill = |cluster: &mut ClusterObjects, namespace: &str| {
        for name in ["a", "b", "c"] {
            put_service(cluster, namespace, name, service(22));
            put_slice(
                cluster,
                namespace,
                &format!("{name}-1"),
                slice(name, 22, &[("10.0.0.1", State::Ready)]),
            );
        }
    };
    namespaces.iter().for_each(|namespace| fill(&mut cluster, namespace));
    assert_eq!(changes(&mut cluster), 900);
    for kind in [Kind::Service, Kind::Slice] {
        for key in cluster.keys(kind, None) {
            cluster.remove(kind, &key);
        }
    }
    let lists = namespaces
        .iter()
        .flat_map(|own| [Kind::Service, Kind::Slice].map(|kind| awaited(kind, Some(own))));
    cluster.await_lists(lists);
    assert_eq!(changes(&mut cluster), 900, "each is withheld once");
    for namespace in &namespaces {
        fill(&mut cluster, namespace);
        let counts = [Kind::Service, Kind::Slice].map(|kind| {
            cluster.end_await(kind, Some(namespace));
            changes(&mut cluster)
        });
        assert_eq!(counts, [3, 3]);
        cluster.end_await(Kind::Service, Some(namespace));
        assert_eq!(changes(&mut cluster), 0, "a later list is none that was missing");
    }
}

#[test]
fn what_the_cluster_says_applies_while_another_list_is_missing() {
    let mut options = Options::default();
    options.pods.enabled = true;
    let selected = Options {
        namespace_selector: Some("ssh=on".into()),
        ..options.clone()
    };
    for (awaited_kind, policy) in [
        (Kind::Namespace, policy_of(selected)),
        (Kind::Slice, policy_of(options)),
    ] {
        let mut cluster = ClusterObjects::new(policy);
        cluster.put(Key::new("", "n"), Object::Namespace);
        for name in ["a", "b", "c"] {
            put_service(&mut cluster, "n", name, service(22));
        }
        let mut slice = with_names(&["x"]);
        slice.service = "c".into();
        put_slice(&mut cluster, "n", "c-1", slice);
        cluster.put(Key::of_pod("n", "p"), pod("1", &[("10.0.0.1", State::Ready)]));
        assert_eq!(changes(&mut cluster), 5);
        // As a reload does it.
        for key in cluster.keys(awaited_kind, None) {
            cluster.remove(awaited_kind, &key);
        }
        cluster.await_lists([awaited(awaited_kind, None)]);
        let awaits = |cluster: &mut ClusterObjects| -> BTreeMap<String, Option<bool>> {
            let change = |change| match change {
                Change::Set(target) => (target.id.short_name(), Some(target.rules.is_awaited)),
                Change::Await(id) => panic!("{id}"),
                Change::Remove(id) => (id.short_name(), None),
            };
            cluster.recompute().changes.into_iter().map(change).collect()
        };
        let seen = awaits(&mut cluster);
        assert_eq!(seen.len(), 5);
        for name in ["a.n", "b.n", "c.n", "x.c.n"] {
            assert_eq!(seen[name], Some(true), "{name} is kept and takes no new tunnel");
        }
        assert_eq!(
            seen["p.n.pod"],
            Some(awaited_kind == Kind::Namespace),
            "no slice decides about a pod"
        );
        cluster.remove(Kind::Service, &key("n", "a"));
        cluster.put(Key::of_pod("n", "p"), pod("2", &[("10.0.0.1", State::Ready)]));
        put_service(&mut cluster, "n", "b", Service::default());
        put_service(&mut cluster, "n", "new", service(22));
        let seen = awaits(&mut cluster);
        assert_eq!((seen["a.n"], seen["b.n"]), (None, None), "it is gone, or has no port");
        assert_eq!(
            seen.get("new.n"),
            None,
            "nothing is known of its Namespace or its endpoints"
        );
        assert!(seen["p.n.pod"].is_some(), "another pod of the name");
        cluster.remove(Kind::Pod, &Key::of_pod("n", "p"));
        assert_eq!(awaits(&mut cluster)["p.n.pod"], None);
    }
}

fn terminating(mut object: Object) -> Object {
    if let Object::Pod(pod) = &mut object {
        pod.is_terminating = true;
    }
    object
}

fn pod(uid: &str, endpoints: &[(&str, State)]) -> Object {
    Object::Pod(Box::new(Pod {
        uid: uid.into(),
        is_terminating: false,
        service: service(2222),
        slice: slice("", 2222, endpoints),
    }))
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

/// A slice of the Service `web`, with an endpoint of each name.
fn with_names(names: &[&str]) -> Slice {
    let addresses: Vec<_> = (0..names.len()).map(|index| format!("10.0.0.{index}")).collect();
    let endpoints: Vec<_> = addresses.iter().map(|address| (&**address, State::Ready)).collect();
    let mut slice = slice("web", 2222, &endpoints);
    for (endpoint, name) in slice.endpoints.iter_mut().zip(names) {
        endpoint.hostname = (*name).into();
    }
    slice
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

#[test]
fn a_slice_is_found_by_its_name_whatever_it_is_called() {
    for (name, is_stray) in [
        ("a-b-1", false),
        ("a-1", true),
        ("b", true),
        ("a-b", true),
        ("a-bc", true),
    ] {
        let mut cluster = ClusterObjects::new(policy());
        put_service(&mut cluster, "n", "a", service(22));
        put_service(&mut cluster, "n", "a-b", service(23));
        put_slice(&mut cluster, "n", name, slice("a-b", 22, &[("10.0.0.1", State::Ready)]));
        assert_eq!(cluster.strays.len(), usize::from(is_stray), "{name}");
        cluster.recompute();
        // It passes to another Service, and is deleted there.
        put_slice(&mut cluster, "n", name, slice("a", 22, &[("10.0.0.1", State::Ready)]));
        let changed = |updates: &TargetUpdates| -> Vec<_> {
            let set = updates.changes.iter().map(|change| match change {
                Change::Set(target) => (target.id.service.to_string(), target.endpoints.total),
                Change::Await(id) | Change::Remove(id) => panic!("{id}"),
            });
            set.collect()
        };
        assert_eq!(
            changed(&cluster.recompute()),
            [("a".to_owned(), 1), ("a-b".to_owned(), 0)],
            "{name}"
        );
        cluster.remove(Kind::Slice, &key("n", name));
        assert_eq!(changed(&cluster.recompute()), [("a".to_owned(), 0)], "{name}");
        assert!(
            cluster.strays.is_empty() && cluster.keys(Kind::Slice, None).is_empty(),
            "{name}"
        );
    }
}

#[test]
fn a_slice_that_is_put_again_marks_no_service_and_the_last_one_that_goes_leaves_nothing() {
    let mut cluster = ClusterObjects::new(policy());
    let put = |cluster: &mut ClusterObjects, name, port| put_slice(cluster, "n", name, slice("a-b", port, &[]));
    let names = ["a-b-1", "a-b-2", "a-b-3", "stray"];
    for name in names.iter().rev() {
        put(&mut cluster, name, 22);
    }
    cluster.recompute();
    for name in names {
        put(&mut cluster, name, 22);
    }
    assert!(cluster.dirty.is_empty(), "{:?}", cluster.dirty);
    assert_eq!(cluster.keys(Kind::Slice, None), names.map(|name| key("n", name)));
    put(&mut cluster, "a-b-2", 23);
    let owner = key("n", "a-b");
    assert_eq!(cluster.dirty, [owner.clone()].into());
    assert_eq!(cluster.services[&owner].slices[1].1.ports[0].number, 23);
    for name in names {
        assert_eq!(cluster.owner(&key("n", name)), Some(owner.clone()), "{name}");
        cluster.remove(Kind::Slice, &key("n", name));
        cluster.remove(Kind::Slice, &key("n", name));
    }
    cluster.recompute();
    assert!(cluster.services.is_empty() && cluster.strays.is_empty());
}

#[test]
fn allowed_clients_without_client_certificates_is_noted_and_keeps_every_client_out() {
    let mut cluster = ClusterObjects::new(policy());
    let mut service = service(22);
    let names: crate::policy::allowlist::ClientNames = [Box::from("alice")].into();
    service.annotations.allowed_clients = Some(names.clone());
    put_service(&mut cluster, "n", "a", service);
    let is_remarked = |updates: &TargetUpdates| {
        let is_fault = |notice: &ServiceNotice| matches!(notice, ServiceNotice::Annotation(_, fault) if *fault.key == *"allowed-clients");
        updates.notices.iter().any(is_fault)
    };
    let updates = cluster.recompute();
    assert!(is_remarked(&updates), "{:?}", updates.notices);
    assert_eq!(set(&updates).rules.allowed_clients.as_deref(), Some(&names));
    for (allowed_clients, again) in [(true, false), (false, true)] {
        let mut policy = policy();
        policy.limits.annotations.allowed_clients = allowed_clients;
        cluster.configure(policy);
        assert_eq!(is_remarked(&cluster.recompute()), again);
    }
}

#[test]
fn lists_of_users_reach_the_target_and_are_noted_where_no_user_is_asked_for() {
    let mut cluster = ClusterObjects::new(policy());
    let lists = crate::policy::allowlist::UserLists {
        users: [Box::from("alice")].into(),
        ..Default::default()
    };
    let mut service = service(22);
    service.annotations.user_lists = Some(Box::new(lists.clone()));
    put_service(&mut cluster, "n", "a", service.clone());
    let is_remarked = |updates: &TargetUpdates| {
        let is_fault = |notice: &ServiceNotice| matches!(notice, ServiceNotice::Annotation(_, fault) if *fault.key == *"allowed-users");
        updates.notices.iter().any(is_fault)
    };
    let updates = cluster.recompute();
    assert!(is_remarked(&updates), "{:?}", updates.notices);
    assert_eq!(set(&updates).rules.user_lists.as_deref(), Some(&lists));
    for (allowed_users, again) in [(true, false), (false, true)] {
        let mut policy = policy();
        policy.limits.annotations.allowed_users = allowed_users;
        cluster.configure(policy);
        assert_eq!(is_remarked(&cluster.recompute()), again);
    }
    service.annotations.user_lists = None;
    put_service(&mut cluster, "n", "a", service);
    assert_eq!(set(&cluster.recompute()).rules.user_lists, None);
}

#[test]
fn ready_endpoints_are_chosen_before_terminating_ones() {
    let mut cluster = ClusterObjects::new(policy());
    put_service(&mut cluster, "n", "a", service(22));
    let mut endpoints_of = |states: &[(&str, State)]| {
        put_slice(&mut cluster, "n", "s", slice("a", 22, states));
        addresses(set(&cluster.recompute()))
    };
    let (terminating, not_ready) = (("10.0.0.2", State::Terminating), ("10.0.0.3", State::NotReady));
    assert_eq!(
        endpoints_of(&[("10.0.0.1", State::Ready), terminating, not_ready]),
        ["10.0.0.1:22"]
    );
    assert_eq!(endpoints_of(&[terminating, not_ready]), ["10.0.0.2:22"]);
    assert!(endpoints_of(&[not_ready]).is_empty());
    let mut publishing = service(22);
    publishing.publishes_not_ready = true;
    put_service(&mut cluster, "n", "a", publishing);
    assert_eq!(addresses(set(&cluster.recompute())), ["10.0.0.3:22"]);
}

#[test]
fn each_slice_has_its_own_port_and_address_family() {
    let mut cluster = ClusterObjects::new(policy());
    put_service(&mut cluster, "n", "a", service(22));
    put_slice(&mut cluster, "n", "v4", slice("a", 2022, &[("10.0.0.1", State::Ready)]));
    put_slice(
        &mut cluster,
        "n",
        "v4b",
        slice("a", 2023, &[("10.0.0.2", State::Ready)]),
    );
    put_slice(&mut cluster, "n", "v6", slice("a", 2022, &[("fd00::1", State::Ready)]));
    let mut other = slice("a", 80, &[("10.0.0.4", State::Ready)]);
    other.ports[0].name = "http".into();
    put_slice(&mut cluster, "n", "other", other);
    let updates = cluster.recompute();
    let target = set(&updates);
    assert_eq!(addresses(target), ["10.0.0.1:2022", "10.0.0.2:2023", "[fd00::1]:2022"]);
    assert_eq!((target.endpoints.ready, target.endpoints.total), (2, 2));
}

#[test]
fn a_headless_service_without_ports_is_dialled_at_22() {
    let mut cluster = ClusterObjects::new(policy());
    let mut headless = service(22);
    headless.port = Some(ServicePort {
        number: 22,
        name: Box::default(),
        is_implied: true,
    });
    put_service(&mut cluster, "n", "a", headless);
    let mut portless = slice("a", 1, &[("10.0.0.1", State::Ready)]);
    portless.ports = Box::default();
    put_slice(&mut cluster, "n", "s", portless);
    assert_eq!(addresses(set(&cluster.recompute())), ["10.0.0.1:22"]);
}

#[test]
fn a_slice_that_cannot_work_is_noted_once() {
    for (has_unusable_address, port, is_noted) in [
        (true, None, true),
        (false, Some("ssh"), true),
        // A port beside it, such as DNS by UDP, is none of its business.
        (false, Some("dns"), false),
    ] {
        let mut cluster = ClusterObjects::new(policy());
        let faulty = Slice {
            ports: Box::default(),
            has_unusable_address,
            unusable_ports: port.map(Into::into).into_iter().collect(),
            ..slice("a", 22, &[])
        };
        put_slice(&mut cluster, "n", "a-1", faulty);
        assert_eq!(cluster.recompute().notices, [], "no Service asks for it");
        put_service(&mut cluster, "n", "a", service(22));
        let notices = cluster.recompute().notices;
        let expected = is_noted.then(|| ServiceNotice::SliceUnusable(key("n", "a"), "a-1".into()));
        assert_eq!(notices.get(1), expected.as_ref());
        put_service(&mut cluster, "n", "a", service(23));
        assert_eq!(cluster.recompute().notices, [], "it was made before");
    }
}

#[test]
fn refused_endpoints_are_not_dialled_and_noted_once() {
    let mut cluster = ClusterObjects::new(policy());
    put_service(&mut cluster, "n", "a", service(22));
    let endpoints = slice(
        "a",
        22,
        &[
            ("127.0.0.1", State::Ready),
            ("10.0.0.1", State::Ready),
            ("::1", State::Ready),
        ],
    );
    put_slice(&mut cluster, "n", "s", endpoints);
    let updates = cluster.recompute();
    assert_eq!(addresses(set(&updates)), ["10.0.0.1:22"]);
    assert_eq!(set(&updates).endpoints.total, 1);
    let refused = updates
        .notices
        .iter()
        .filter(|notice| matches!(notice, ServiceNotice::EndpointForbidden(..)));
    assert_eq!(refused.count(), 2);
    cluster.configure(policy());
    assert_eq!(cluster.recompute().notices, []);
}

#[test]
fn a_selected_namespace_admits_its_services() {
    let selecting = Options {
        namespace_selector: Some("ssh=allowed".into()),
        ..Options::default()
    };
    let mut cluster = ClusterObjects::new(policy_of(selecting));
    put_service(&mut cluster, "n", "a", service(22));
    put_service(&mut cluster, "m", "b", service(22));
    assert_eq!(cluster.recompute(), TargetUpdates::default());
    cluster.put(Key::new("", "n"), Object::Namespace);
    assert_eq!(set(&cluster.recompute()).id, key("n", "a").target_id());
    cluster.remove(Kind::Namespace, &Key::new("", "n"));
    assert_eq!(cluster.recompute().changes, [Change::Remove(key("n", "a").target_id())]);
}

/// An event of a small cluster.
#[derive(Clone, Debug)]
enum Event {
    Put(Key, Object),
    Remove(Kind, Key),
    Settle,
    SelectNamespaces(bool),
    Await(Vec<(Kind, Option<&'static str>)>),
    Listed(Kind, Option<&'static str>),
}
