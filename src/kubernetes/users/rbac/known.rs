//! The objects of one kind, as far as it takes to tell that they have changed.

use std::collections::HashMap;

use serde::Deserialize;

use super::kind::{Identity, Kind};
use crate::base::fnv::fnv1a;
use crate::policy::access::Change;

/// The metadata of an object (`PartialObjectMetadata` of `meta.k8s.io/v1`).
#[derive(Debug, Deserialize)]
pub(super) struct Object {
    metadata: Metadata,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    namespace: Option<Box<str>>,
    #[serde(default)]
    uid: Box<str>,
    #[serde(default)]
    resource_version: Box<str>,
}

/// The version of each object by its id, which no other object ever has, also none of the same name.
#[derive(Debug)]
pub(super) struct Known {
    kind: Kind,
    versions: HashMap<Box<str>, u64>,
    is_complete: bool,
}

impl Known {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            versions: HashMap::new(),
            is_complete: false,
        }
    }

    /// Takes a complete list, and says what has changed since the last one: nothing at the first.
    pub(super) fn list(&mut self, objects: impl Iterator<Item = Object>) -> Vec<Change> {
        let listed = objects.map(|Object { metadata }| (metadata.uid, version(&metadata.resource_version)));
        let before = std::mem::replace(&mut self.versions, listed.collect());
        if !std::mem::replace(&mut self.is_complete, true) {
            return Vec::new();
        }
        if self.kind != Kind::ServiceAccount {
            // Where, is not known of objects that are gone.
            return Vec::from_iter((before != self.versions).then_some(Change::Everywhere));
        }
        let gone = before.into_keys().filter(|uid| !self.versions.contains_key(uid));
        gone.map(Change::UserGone).collect()
    }

    /// Takes an event of a watch, and says what has changed. An object of the version that is known has not.
    pub(super) fn apply(&mut self, object: Object, is_deleted: bool) -> Option<Change> {
        let Metadata {
            namespace,
            uid,
            resource_version,
        } = object.metadata;
        let version = version(&resource_version);
        let is_news = if is_deleted {
            self.versions.remove(&uid);
            true
        } else {
            self.versions.insert(uid.clone(), version) != Some(version)
        };
        let identity = Identity { namespace, uid };
        is_news.then(|| self.kind.change(&identity, is_deleted)).flatten()
    }
}

/// Versions are text that is only equal or not.
fn version(text: &str) -> u64 {
    fnv1a(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(namespace: &str, uid: &str, version: &str) -> Object {
        let namespace = (!namespace.is_empty()).then(|| namespace.into());
        Object {
            metadata: Metadata {
                namespace,
                uid: uid.into(),
                resource_version: version.into(),
            },
        }
    }

    fn list(known: &mut Known, objects: &[(&str, &str)]) -> Vec<Change> {
        known.list(objects.iter().map(|(uid, version)| object("team-a", uid, version)))
    }

    #[test]
    fn the_first_list_is_no_change_and_a_later_one_only_if_it_differs() {
        for kind in [Kind::Role, Kind::ClusterRoleBinding] {
            let mut known = Known::new(kind);
            assert_eq!(list(&mut known, &[("a", "1"), ("b", "2")]), []);
            assert_eq!(list(&mut known, &[("b", "2"), ("a", "1")]), [], "in another order");
            for objects in [
                &[("a", "1"), ("b", "3")][..],
                &[("a", "1")],
                &[("a", "1"), ("c", "4")],
                &[],
            ] {
                assert_eq!(list(&mut known, objects), [Change::Everywhere], "{objects:?}");
                assert_eq!(list(&mut known, objects), []);
            }
        }
    }

    #[test]
    fn an_empty_first_list_is_a_list() {
        let mut known = Known::new(Kind::Role);
        assert_eq!(list(&mut known, &[]), []);
        assert_eq!(list(&mut known, &[("a", "1")]), [Change::Everywhere]);
    }

    #[test]
    fn a_service_account_that_is_in_no_later_list_is_gone() {
        let mut known = Known::new(Kind::ServiceAccount);
        assert_eq!(list(&mut known, &[("a", "1"), ("b", "2")]), []);
        assert_eq!(
            list(&mut known, &[("b", "3"), ("c", "4")]),
            [Change::UserGone("a".into())]
        );
        assert_eq!(
            known.apply(object("team-a", "c", "9"), true),
            Some(Change::UserGone("c".into()))
        );
        // Deleted and made anew under its name: another id.
        assert_eq!(known.apply(object("team-a", "d", "10"), false), None);
        assert_eq!(list(&mut known, &[("b", "3"), ("d", "10")]), []);
    }

    #[test]
    fn an_event_of_a_known_version_is_no_news() {
        let mut known = Known::new(Kind::RoleBinding);
        let of_namespace = Some(Change::Namespace("team-a".into()));
        assert_eq!(list(&mut known, &[("a", "1")]), []);
        assert_eq!(known.apply(object("team-a", "a", "1"), false), None);
        assert_eq!(known.apply(object("team-a", "a", "2"), false), of_namespace);
        assert_eq!(known.apply(object("team-a", "b", "3"), false), of_namespace);
        assert_eq!(known.apply(object("team-a", "b", "4"), true), of_namespace);
        assert_eq!(list(&mut known, &[("a", "2")]), []);
    }

    #[test]
    fn metadata_is_enough_and_a_whole_object_is_read_too() {
        let text = r#"{"kind": "RoleBinding", "metadata": {"name": "n", "namespace": "x", "uid": "u", "resourceVersion": "5",
            "managedFields": [{"manager": "m"}]}, "roleRef": {"kind": "Role"}}"#;
        let parsed: Object = serde_json::from_str(text).unwrap();
        let change = Known::new(Kind::RoleBinding).apply(parsed, false);
        assert_eq!(change, Some(Change::Namespace("x".into())));
    }
}
