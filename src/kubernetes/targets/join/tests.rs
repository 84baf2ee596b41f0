//! The join by examples.

mod awaited;
mod history;
mod pods;

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
