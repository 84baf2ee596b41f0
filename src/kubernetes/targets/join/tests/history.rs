//! The join by a property: the targets depend on the objects alone, and not on their history.

use proptest::prelude::*;

use super::*;

fn keys() -> impl Strategy<Value = Key> {
    let namespaces = prop::sample::select(vec!["a", "b"]);
    // The last three are those of slices of `a` and `a-b`, or of others that are only called so.
    let names = prop::sample::select(vec!["a", "b", "a-b", "a-1", "a-b-1"]);
    (namespaces, names).prop_map(|(namespace, name)| key(namespace, name))
}

fn objects() -> impl Strategy<Value = Object> {
    let state = prop::sample::select(vec![State::Ready, State::Terminating, State::NotReady]);
    let address = prop::sample::select(vec!["10.0.0.1", "10.0.0.2", "fd00::1", "127.0.0.1"]);
    let endpoints = prop::collection::vec((address, state), 0..3);
    let owner = prop::sample::select(vec!["a", "b", "a-b"]);
    prop_oneof![
        (prop::option::of(1..3_u16), any::<bool>()).prop_map(|(port, publishes_not_ready)| {
            let mut service = service(port.unwrap_or(1));
            service.publishes_not_ready = publishes_not_ready;
            service.port = service.port.filter(|_| port.is_some());
            Object::Service(Box::new(service))
        }),
        (owner, 1..3_u16, endpoints)
            .prop_map(|(owner, port, endpoints)| Object::Slice(Box::new(slice(owner, port, &endpoints)))),
        (1..3_u16, prop::sample::select(vec!["10.0.0.1", "127.0.0.1"]))
            .prop_map(|(uid, address)| pod(&uid.to_string(), &[(address, State::Ready)])),
        (1..3_u16, prop::sample::select(vec!["a", "b", "c"]), any::<bool>()).prop_map(|(uid, name, stays)| {
            let pod = named_pod(&uid.to_string(), Some(name));
            if stays { pod } else { terminating(pod) }
        }),
        Just(Object::Namespace),
    ]
}

/// The key of the pod of that name.
fn of_pod(key: &Key) -> Key {
    Key::of_pod(&key.namespace, &key.name)
}

fn events() -> impl Strategy<Value = Event> {
    let kinds = prop::sample::select(vec![Kind::Service, Kind::Slice, Kind::Pod, Kind::Namespace]);
    prop_oneof![
        6 => (keys(), objects()).prop_map(|(key, object)| match object {
            Object::Namespace => Event::Put(Key::new("", &key.namespace), Object::Namespace),
            object @ Object::Pod(_) => Event::Put(of_pod(&key), object),
            object @ (Object::Service(_) | Object::Slice(_)) => Event::Put(key, object),
        }),
        3 => (kinds.clone(), keys()).prop_map(|(kind, key)| match kind {
            Kind::Namespace => Event::Remove(kind, Key::new("", &key.namespace)),
            Kind::Pod => Event::Remove(kind, of_pod(&key)),
            Kind::Service | Kind::Slice => Event::Remove(kind, key),
        }),
        2 => Just(Event::Settle),
        1 => any::<bool>().prop_map(Event::SelectNamespaces),
        1 => prop::collection::vec((kinds.clone(), namespaces()), 0..3).prop_map(Event::Await),
        1 => (kinds, namespaces()).prop_map(|(kind, namespace)| Event::Listed(kind, namespace)),
    ]
}

fn namespaces() -> impl Strategy<Value = Option<&'static str>> {
    prop::sample::select(vec![None, Some("a")])
}

fn follow(targets: &mut BTreeMap<TargetId, ServiceTarget>, updates: TargetUpdates) {
    for change in updates.changes {
        match change {
            Change::Set(target) => {
                targets.insert(target.id.clone(), *target);
            }
            Change::Await(id) => assert!(targets.contains_key(&id), "{id} is not there"),
            Change::Remove(id) => assert!(targets.remove(&id).is_some(), "{id} was not there"),
        }
    }
}

proptest! {
    #[test]
    fn any_history_gives_the_targets_of_a_rebuild(history in prop::collection::vec(events(), 0..80)) {
        let mut cluster = ClusterObjects::new(policy());
        let mut targets = BTreeMap::new();
        let mut objects: BTreeMap<(u8, Key), Object> = BTreeMap::new();
        for event in history {
            match event {
                Event::Put(key, object) => {
                    objects.insert((kind_of(&object) as u8, key.clone()), object.clone());
                    cluster.put(key, object);
                }
                Event::Remove(kind, key) => {
                    objects.remove(&(kind as u8, key.clone()));
                    cluster.remove(kind, &key);
                }
                Event::Settle => follow(&mut targets, cluster.recompute()),
                Event::Await(lists) => cluster.await_lists(lists.into_iter().map(|(kind, namespace)| awaited(kind, namespace))),
                Event::Listed(kind, namespace) => cluster.end_await(kind, namespace),
                Event::SelectNamespaces(selects) => cluster.configure(policy_of(Options {
                    namespace_selector: selects.then(|| "ssh=allowed".into()),
                    ..Options::default()
                })),
            }
        }
        cluster.await_lists([]);
        follow(&mut targets, cluster.recompute());
        let mut rebuilt = ClusterObjects::new(cluster.policy.clone());
        let objects_put: Vec<_> = objects.keys().cloned().collect();
        for ((_, key), object) in objects {
            rebuilt.put(key, object);
        }
        let mut expected = BTreeMap::new();
        follow(&mut expected, rebuilt.recompute());
        prop_assert_eq!(&targets, &expected);
        for kind in [Kind::Service, Kind::Slice, Kind::Pod, Kind::Namespace] {
            let known: BTreeSet<_> = cluster.keys(kind, None).into_iter().collect();
            let put = objects_put.iter().filter(|(known, _)| *known == kind as u8);
            prop_assert_eq!(known, put.map(|(_, key)| key.clone()).collect());
        }
        let mut copy = ClusterObjects::new(cluster.policy.clone());
        for (key, object) in cluster.objects() {
            copy.put(key, object);
        }
        let mut copied = BTreeMap::new();
        follow(&mut copied, copy.recompute());
        targets.retain(|_, target| target.rules.uid.is_none());
        prop_assert_eq!(copied, targets);
    }
}
