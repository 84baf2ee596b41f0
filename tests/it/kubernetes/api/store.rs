//! Objects under one counter of revisions, and every change since the last compaction: what etcd is to an API server.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

use super::selector::Selector;

/// Objects are kept as they are written, however malformed: only the name, and what the server itself fills in, matter.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    revision: u64,
    /// A watch may begin here, or later.
    oldest: u64,
    objects: BTreeMap<Key, Value>,
    history: VecDeque<Change>,
    uids: u64,
}

/// One object. In order of namespace and name, as the API server lists them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// Such as `services`.
    pub(crate) plural: String,
    /// Empty for what is in no namespace.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// One write.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) revision: u64,
    key: Key,
    before: Option<Value>,
    after: Option<Value>,
}

/// The objects of a list or a watch.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    pub(crate) plural: String,
    /// `None`: all of them.
    pub(crate) namespace: Option<String>,
    pub(crate) selector: Selector,
    /// The path of a field, such as `metadata.name`, and its value.
    pub(crate) field: Option<(String, String)>,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            revision: 1000,
            oldest: 1000,
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            uids: 0,
        }
    }
}

impl Store {
    /// The number of the last write.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Creates it, or replaces the object of its name. Answers with what is kept.
    pub(crate) fn put(&mut self, key: Key, mut object: Value) -> Value {
        self.revision += 1;
        let before = self.objects.get(&key).cloned();
        self.uids += 1;
        let uid = format!("00000000-0000-4000-8000-{:012}", self.uids);
        let metadata = object["metadata"].as_object_mut().unwrap();
        metadata.insert("resourceVersion".into(), json!(self.revision.to_string()));
        let inherited = |field: &str| before.as_ref().map(|before| before["metadata"][field].clone());
        for (field, new) in [
            ("uid", json!(uid)),
            ("creationTimestamp", json!("2026-01-01T00:00:00Z")),
        ] {
            metadata.entry(field).or_insert_with(|| inherited(field).unwrap_or(new));
        }
        self.objects.insert(key.clone(), object.clone());
        self.history.push_back(Change {
            revision: self.revision,
            key,
            before,
            after: Some(object.clone()),
        });
        object
    }

    /// Answers with what it was.
    pub(crate) fn delete(&mut self, key: &Key) -> Option<Value> {
        let before = self.objects.remove(key)?;
        self.revision += 1;
        self.history.push_back(Change {
            revision: self.revision,
            key: key.clone(),
            before: Some(before.clone()),
            after: None,
        });
        Some(before)
    }

    /// One object.
    pub(crate) fn object(&self, key: &Key) -> Option<&Value> {
        self.objects.get(key)
    }

    /// The keys of what is in that namespace.
    pub(crate) fn inside(&self, namespace: &str) -> Vec<Key> {
        let keys = self.objects.keys().filter(|key| key.namespace == namespace);
        keys.cloned().collect()
    }

    /// Forgets every change: a watch from an older revision is told 410.
    pub(crate) fn compact(&mut self) {
        self.oldest = self.revision;
        self.history.clear();
    }

    /// Loses objects without a change that says so, as when events are missed: only a new list tells.
    pub(crate) fn lose(&mut self, is_lost: impl Fn(&Key) -> bool) {
        self.objects.retain(|key, _| !is_lost(key));
        self.revision += 1;
        self.compact();
    }

    pub(crate) fn list(&self, scope: &Scope) -> Vec<Value> {
        let found = self
            .objects
            .iter()
            .filter(|(key, object)| scope.contains(key) && scope.matches(object));
        found.map(|(_, object)| object.clone()).collect()
    }

    /// The writes after that revision, or `None` when some of that is forgotten. Nothing yet for a revision that
    /// is still to come.
    pub(crate) fn changes_after(&self, revision: u64) -> Option<impl Iterator<Item = &Change>> {
        let first = self.history.partition_point(|change| change.revision <= revision);
        (revision >= self.oldest).then(|| self.history.range(first..))
    }
}

impl Scope {
    fn contains(&self, key: &Key) -> bool {
        key.plural == self.plural
            && self
                .namespace
                .as_ref()
                .is_none_or(|namespace| *namespace == key.namespace)
    }

    fn matches(&self, object: &Value) -> bool {
        let has = |(path, value): &(String, String)| {
            let field = path.split('.').fold(object, |inside, name| &inside[name]);
            field == value.as_str()
        };
        self.selector.matches(object) && self.field.as_ref().is_none_or(has)
    }

    /// The event for a watch of this scope. An object that stops matching is DELETED: with what it was, at the new
    /// revision.
    pub(crate) fn event(&self, change: &Change) -> Option<Value> {
        if !self.contains(&change.key) {
            return None;
        }
        let matching = |object: &Option<Value>| object.clone().filter(|object| self.matches(object));
        match (matching(&change.before), matching(&change.after)) {
            (None, None) => None,
            (None, Some(object)) => Some(json!({"type": "ADDED", "object": object})),
            (Some(_), Some(object)) => Some(json!({"type": "MODIFIED", "object": object})),
            (Some(mut object), None) => {
                object["metadata"]["resourceVersion"] = json!(change.revision.to_string());
                Some(json!({"type": "DELETED", "object": object}))
            }
        }
    }
}
