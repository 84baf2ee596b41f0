//! The lists that are missing since the start, or since a reload that has changed them.

use std::collections::{BTreeMap, BTreeSet};

use crate::kubernetes::objects::model::{Key, Kind};

/// A missing list, and the namespaces whose objects are known without it.
pub(crate) type AwaitedList = (ListId, BTreeSet<Box<str>>);

/// The kind of a list, and its namespace or all.
type ListId = (Kind, Option<Box<str>>);

/// The missing lists. The cost of a look-up does not grow with their number.
#[derive(Debug, Default)]
pub(super) struct AwaitedLists(pub(super) BTreeMap<ListId, BTreeSet<Box<str>>>);

impl AwaitedLists {
    /// Removes a list that is there. Returns whether it was missing.
    pub(super) fn remove(&mut self, kind: Kind, namespace: Option<&str>) -> bool {
        !self.0.is_empty() && self.0.remove(&(kind, namespace.map(Into::into))).is_some()
    }

    /// Returns whether a missing list may have objects of this kind and namespace.
    pub(super) fn has(&self, kind: Kind, namespace: &str) -> bool {
        let all = || {
            self.0
                .get(&(kind, None))
                .is_some_and(|known| !known.contains(namespace))
        };
        !self.0.is_empty() && (all() || self.0.contains_key(&(kind, Some(namespace.into()))))
    }

    /// Returns whether a missing list may decide about a Service or pod: about one that is not known, only its own list.
    pub(super) fn decide_about(&self, key: &Key, is_known: bool) -> bool {
        let own = if key.pod_name().is_some() {
            Kind::Pod
        } else {
            Kind::Service
        };
        let others =
            || self.has(Kind::Namespace, "") || (own == Kind::Service && self.has(Kind::Slice, &key.namespace));
        self.has(own, &key.namespace) || (is_known && others())
    }
}
