//! Reports changes of roles, bindings and ServiceAccounts of the cluster, so that active grants are rechecked.
//!
//! Permissions are not computed here: the API server reviews them. Only a hash of the fields that affect permissions is
//! kept of each object, because controllers annotate roles all day, which is not a change.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::kubernetes::api::list_watch::Metadata;
use crate::kubernetes::api::thread::BackgroundRuntime;
use crate::kubernetes::api::watcher::{Event, Objects, Scope, WatchContext, WatchSpec, keep_following};
use crate::kubernetes::metrics::ClusterMetrics;
use crate::policy::access::{Change, SETTLING_TIME};

/// Watches roles, bindings and ServiceAccounts on a thread, which tries again while the API server does not answer. The
/// thread calls `on_change` for each change, and for a late first list of roles or bindings.
///
/// # Errors
/// The thread or its runtime cannot be started.
pub fn watch_rbac(
    context: WatchContext,
    on_change: impl Fn(Change) + Send + Sync + 'static,
) -> io::Result<BackgroundRuntime> {
    BackgroundRuntime::start("rbac", follow(context, Arc::new(on_change)))
}

/// The callback for each change.
type OnChange = Arc<dyn Fn(Change) + Send + Sync>;

/// Watches each kind. A watcher that was restarted has lost all objects, so everything may have changed.
async fn follow(context: WatchContext, on_change: OnChange) {
    let mut followers = JoinSet::new();
    for (kind, group) in KINDS {
        let spec = WatchSpec {
            kind,
            group,
            scope: Scope::Cluster,
            selector: String::new(),
            effect: "changed access rights are seen only at `access.kubernetes.recheck`",
            is_optional: true,
            relist: RELIST,
        };
        let (restarted, told) = (Arc::clone(&on_change), Arc::clone(&on_change));
        let metrics = context.metrics.clone();
        let versions = move || ObjectVersions::new(kind, Arc::clone(&told), metrics.clone());
        followers.spawn(keep_following(spec, versions, context.clone(), move || {
            restarted(Change::Everywhere);
        }));
    }
    // No follower returns.
    while followers.join_next().await.is_some() {}
}

/// The hashes of the objects of one kind.
struct ObjectVersions {
    are_accounts: bool,
    /// A hash of each object by its UID, which is never reused.
    hashes: HashMap<Box<str>, u64>,
    /// Keyed, so that the authors of roles and bindings cannot create two with the same hash.
    hasher: RandomState,
    is_complete: bool,
    /// The time at which the watch started.
    since: Instant,
    on_change: OnChange,
    metrics: ClusterMetrics,
}

/// A role, binding or ServiceAccount.
struct Object {
    namespace: Option<Box<str>>,
    uid: Box<str>,
    hash: u64,
}

impl Object {
    fn new(Metadata { namespace, uid, .. }: Metadata, hash: u64) -> Self {
        let uid = uid.unwrap_or_default();
        Self { namespace, uid, hash }
    }
}

impl ObjectVersions {
    fn new(kind: &str, on_change: OnChange, metrics: ClusterMetrics) -> Self {
        Self {
            are_accounts: kind == ACCOUNTS,
            hashes: HashMap::new(),
            hasher: RandomState::new(),
            is_complete: false,
            since: Instant::now(),
            on_change,
            metrics,
        }
    }

    /// Takes a complete list, and returns the changes since the last one.
    ///
    /// The first list has no changes unless it is late. All grants are rechecked when the settling time after a start
    /// ends. A late list would miss a revocation between that recheck and itself, so it counts as a change.
    fn list(&mut self, objects: Vec<Object>) -> Vec<Change> {
        let listed = objects.into_iter().map(|object| (object.uid, object.hash)).collect();
        let before = std::mem::replace(&mut self.hashes, listed);
        if !std::mem::replace(&mut self.is_complete, true) {
            // Half the settling time is a margin for the start of this thread.
            let is_late = !self.are_accounts && self.since.elapsed() >= SETTLING_TIME / 2;
            return Vec::from_iter(is_late.then_some(Change::Everywhere));
        }
        if !self.are_accounts {
            // The namespaces of deleted objects are not kept.
            return Vec::from_iter((before != self.hashes).then_some(Change::Everywhere));
        }
        let gone = before.into_keys().filter(|uid| !self.hashes.contains_key(uid));
        gone.map(Change::UserDeleted).collect()
    }

    /// Takes an event of a watch, and returns the change. A new or changed ServiceAccount affects no review.
    fn apply(&mut self, object: Object, is_deleted: bool) -> Option<Change> {
        let Object { namespace, uid, hash } = object;
        let is_news = match is_deleted {
            true => {
                self.hashes.remove(&uid);
                true
            }
            false => self.hashes.insert(uid.clone(), hash) != Some(hash),
        };
        if self.are_accounts {
            return is_deleted.then_some(Change::UserDeleted(uid));
        }
        is_news.then(|| namespace.map_or(Change::Everywhere, Change::Namespace))
    }
}

impl Objects for ObjectVersions {
    type Object = Object;

    fn read(&self, json: &str) -> Result<Option<Object>, serde_json::Error> {
        let Rights {
            metadata,
            rules,
            aggregation_rule,
            subjects,
            role_ref,
        } = serde_json::from_str(json)?;
        let rights = [rules, aggregation_rule, subjects, role_ref].map(|part| part.map(RawValue::get));
        let hash = self.hasher.hash_one(rights);
        Ok(Some(Object::new(metadata, hash)))
    }

    /// Each change of the object counts: those that affect permissions cannot be distinguished from others.
    fn replacement(&self, metadata: Metadata) -> Option<Object> {
        let hash = self.hasher.hash_one(&metadata.version);
        Some(Object::new(metadata, hash))
    }

    async fn take(&mut self, event: Event<Object>) {
        let changes = match event {
            Event::Listed(objects) => self.list(objects),
            Event::Applied(object) => self.apply(object, false).into_iter().collect(),
            Event::Deleted(object) => self.apply(object, true).into_iter().collect(),
            Event::Failed(failure) => return self.metrics.watch_errors.count([failure.label()]),
            Event::UpToDate | Event::Refused => return,
        };
        changes.into_iter().for_each(&*self.on_change);
    }
}

/// The fields of an object that identify it, and the unparsed ones that affect permissions.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rights<'a> {
    metadata: Metadata,
    /// Of a role.
    #[serde(borrow)]
    rules: Option<&'a RawValue>,
    #[serde(borrow)]
    aggregation_rule: Option<&'a RawValue>,
    /// Of a binding.
    #[serde(borrow)]
    subjects: Option<&'a RawValue>,
    #[serde(borrow)]
    role_ref: Option<&'a RawValue>,
}

/// The kinds of objects, each with its API group.
const KINDS: [(&str, &str); 5] = [
    ("roles", RBAC),
    ("rolebindings", RBAC),
    ("clusterroles", RBAC),
    ("clusterrolebindings", RBAC),
    (ACCOUNTS, ""),
];
const RBAC: &str = "rbac.authorization.k8s.io";
const ACCOUNTS: &str = "serviceaccounts";
/// The interval between lists. A cluster may have ten thousand ServiceAccounts.
const RELIST: Duration = Duration::from_secs(900);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::exposition::registry;
    use serde_json::json;

    fn known(kind: &str) -> ObjectVersions {
        ObjectVersions::new(kind, Arc::new(drop), ClusterMetrics::new(&registry().unwrap()).unwrap())
    }

    /// Returns an object of the namespace `team-a`.
    fn object(uid: &str, hash: u64) -> Object {
        Object {
            namespace: Some("team-a".into()),
            uid: uid.into(),
            hash,
        }
    }

    fn list(versions: &mut ObjectVersions, objects: &[(&str, u64)]) -> Vec<Change> {
        versions.list(objects.iter().map(|(uid, hash)| object(uid, *hash)).collect())
    }

    #[test]
    fn the_first_list_is_no_change_and_a_later_one_only_if_it_differs() {
        for kind in ["roles", "clusterrolebindings"] {
            let mut versions = known(kind);
            assert_eq!(list(&mut versions, &[("a", 1), ("b", 2)]), []);
            assert_eq!(list(&mut versions, &[("b", 2), ("a", 1)]), [], "in another order");
            for objects in [&[("a", 1), ("b", 3)][..], &[("a", 1)], &[("a", 1), ("c", 4)], &[]] {
                assert_eq!(list(&mut versions, objects), [Change::Everywhere], "{objects:?}");
                assert_eq!(list(&mut versions, objects), []);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_list_that_comes_late_may_have_missed_a_change() {
        for (kind, expected) in [("rolebindings", vec![Change::Everywhere]), (ACCOUNTS, vec![])] {
            let mut versions = known(kind);
            tokio::time::advance(SETTLING_TIME).await;
            assert_eq!(list(&mut versions, &[("a", 1)]), expected, "{kind}");
            assert_eq!(list(&mut versions, &[("a", 1)]), [], "{kind}");
        }
    }

    #[test]
    fn an_empty_first_list_is_a_list() {
        let mut versions = known("roles");
        assert_eq!(list(&mut versions, &[]), []);
        assert_eq!(list(&mut versions, &[("a", 1)]), [Change::Everywhere]);
    }

    #[test]
    fn a_service_account_that_is_in_no_later_list_is_gone() {
        let mut versions = known(ACCOUNTS);
        assert_eq!(list(&mut versions, &[("a", 1), ("b", 1)]), []);
        assert_eq!(
            list(&mut versions, &[("b", 1), ("c", 1)]),
            [Change::UserDeleted("a".into())]
        );
        assert_eq!(
            versions.apply(object("c", 1), true),
            Some(Change::UserDeleted("c".into()))
        );
        // Deleted and made again under its name: another id.
        assert_eq!(versions.apply(object("d", 1), false), None);
        assert_eq!(list(&mut versions, &[("b", 1), ("d", 1)]), []);
    }

    #[test]
    fn an_event_of_known_rights_is_no_news() {
        let mut versions = known("rolebindings");
        let of_namespace = Some(Change::Namespace("team-a".into()));
        assert_eq!(list(&mut versions, &[("a", 1)]), []);
        assert_eq!(versions.apply(object("a", 1), false), None);
        assert_eq!(versions.apply(object("a", 2), false), of_namespace);
        assert_eq!(versions.apply(object("b", 3), false), of_namespace);
        assert_eq!(versions.apply(object("b", 3), true), of_namespace);
        assert_eq!(list(&mut versions, &[("a", 2)]), []);
        let of_the_cluster = Object {
            namespace: None,
            ..object("c", 5)
        };
        assert_eq!(versions.apply(of_the_cluster, false), Some(Change::Everywhere));
    }

    #[test]
    fn an_object_that_is_too_long_is_known_and_each_version_of_it_is_a_change() {
        let long = |version: &str| {
            let metadata = json!({"uid": "a", "namespace": "team-a", "resourceVersion": version});
            Metadata::read(&json!({"metadata": metadata}).to_string()).unwrap()
        };
        let mut roles = known("roles");
        assert_eq!(list(&mut roles, &[("a", 1)]), []);
        for (version, expected) in [("5", 1), ("5", 0), ("6", 1)] {
            let object = roles.replacement(long(version)).unwrap();
            assert_eq!(roles.apply(object, false).iter().count(), expected, "{version}");
        }
        let mut accounts = known(ACCOUNTS);
        assert_eq!(list(&mut accounts, &[("a", 1)]), []);
        let object = accounts.replacement(long("5")).unwrap();
        assert_eq!(accounts.list(vec![object]), [], "it is not gone");
    }

    #[test]
    fn only_what_can_change_rights_is_a_change() {
        let versions = known("roles");
        let hash = |rest: &str| {
            let json = format!(r#"{{"metadata": {{"uid": "u", "namespace": "x", "resourceVersion": "5"}}{rest}}}"#);
            let object = versions.read(&json).unwrap().unwrap();
            assert_eq!((&*object.uid, object.namespace.as_deref()), ("u", Some("x")));
            object.hash
        };
        let rules = hash(r#", "rules": [{"verbs": ["get"]}]"#);
        let annotated = r#"{"metadata": {"uid": "u", "annotations": {"a": "b"}}, "rules": [{"verbs": ["get"]}]}"#;
        assert_eq!(versions.read(annotated).unwrap().unwrap().hash, rules);
        let others = [
            r#", "rules": [{"verbs": ["list"]}]"#,
            r#", "rules": []"#,
            "",
            r#", "aggregationRule": [{"verbs": ["get"]}]"#,
            r#", "subjects": [{"verbs": ["get"]}]"#,
            r#", "roleRef": [{"verbs": ["get"]}]"#,
        ];
        let hashes: std::collections::HashSet<_> = others.map(hash).into_iter().chain([rules]).collect();
        assert_eq!(hashes.len(), 7);
    }
}
