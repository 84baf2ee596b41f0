//! Lists that are missing, while others are known.

use super::*;

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
