//! Looks values up in a document: keys in either spelling of Protocol Buffers, and the location of each value.

use std::collections::HashSet;

use super::diagnostics::{ImportDiagnostics, Location, Untranslatable};
use crate::base::values::shown;
use crate::base::yaml::tree::{Entry, Node, Value};

/// A value of a document, with its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueRef<'a> {
    file: usize,
    node: &'a Node,
}

/// A key of a map, in snake_case, and its value.
#[derive(Debug)]
pub(super) struct Pair<'a> {
    pub(super) key: String,
    /// The location of the key.
    pub(super) location: Location,
    pub(super) value: ValueRef<'a>,
}

impl<'a> ValueRef<'a> {
    pub(super) fn new(file: usize, node: &'a Node) -> Self {
        Self { file, node }
    }

    /// Returns another value of the same file.
    pub(super) fn beside(self, node: &'a Node) -> Self {
        Self::new(self.file, node)
    }

    pub(super) fn location(self) -> Location {
        Location {
            file: self.file,
            position: self.node.position,
        }
    }

    /// Returns the value of a key; `None` when it is absent or null. Both `virtual_hosts` and `virtualHosts` are the key
    /// `virtual_hosts`: the JSON of Protocol Buffers accepts either. A `key` with capitals matches only itself.
    pub(super) fn get(self, key: &str) -> Option<Self> {
        let entry = self
            .entries()
            .iter()
            .find(|entry| entry.key == key || snake(&entry.key) == key)?;
        let value = Self::new(self.file, &entry.value);
        (entry.value.value != Value::Null).then_some(value)
    }

    /// Returns the value below nested keys.
    pub(super) fn path(self, keys: &[&str]) -> Option<Self> {
        keys.iter().try_fold(self, |at, key| at.get(key))
    }

    /// Returns the keys of a map and their values; none for any other value.
    pub(super) fn pairs(self) -> impl Iterator<Item = Pair<'a>> {
        self.entries().iter().map(move |entry| Pair {
            key: snake(&entry.key),
            location: Location {
                file: self.file,
                position: entry.position,
            },
            value: Self::new(self.file, &entry.value),
        })
    }

    /// Returns the items of a list; none for any other value.
    pub(super) fn items(self) -> impl Iterator<Item = Self> {
        let items: &[Node] = match &self.node.value {
            Value::List(items) => items,
            Value::Null | Value::Faulty | Value::Text(_) | Value::Map(_) => &[],
        };
        items.iter().map(move |node| Self::new(self.file, node))
    }

    /// Returns the items of the list of a key; none where it is absent.
    pub(super) fn items_of(self, key: &str) -> impl Iterator<Item = Self> {
        self.get(key).into_iter().flat_map(Self::items)
    }

    /// Returns the text of a scalar.
    pub(super) fn text(self) -> Option<&'a str> {
        match &self.node.value {
            Value::Text(scalar) => Some(&scalar.text),
            Value::Null | Value::Faulty | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// Returns the text of a key's scalar.
    pub(super) fn text_of(self, key: &str) -> Option<&'a str> {
        self.get(key)?.text()
    }

    /// Returns the value itself.
    pub(super) fn value(self) -> &'a Value {
        &self.node.value
    }

    /// Returns why the value is not translated.
    pub(super) fn unsuited(self, reason: impl Into<String>) -> Untranslatable {
        Untranslatable(self.location(), reason.into())
    }

    /// Returns the first key of a map that is not among these.
    pub(super) fn unknown(self, known: &[&str]) -> Option<Pair<'a>> {
        self.pairs().find(|pair| !known.contains(&&*pair.key))
    }

    /// Returns whether no map has a key twice, in either spelling: readers differ in which value counts. The keys of
    /// labels and other metadata have one spelling each. Adds each duplicate to `diagnostics`.
    pub(super) fn has_no_duplicates(self, diagnostics: &mut ImportDiagnostics) -> bool {
        let (mut is_sound, mut open) = (true, vec![(self, false)]);
        while let Some((at, is_free)) = open.pop() {
            let mut known = HashSet::new();
            for (Pair { key, location, value }, entry) in at.pairs().zip(at.entries()) {
                open.push((value, is_free || FREE_KEYS.contains(&&*key)));
                let key = if is_free { entry.key.clone() } else { key };
                if known.contains(&key) {
                    diagnostics.error(
                        location,
                        format!("the key {} is there twice: the document is not read", shown(&key)),
                    );
                    is_sound = false;
                }
                known.insert(key);
            }
            open.extend(at.items().map(|item| (item, is_free)));
        }
        is_sound
    }

    fn entries(self) -> &'a [Entry] {
        match &self.node.value {
            Value::Map(entries) => entries,
            Value::Null | Value::Faulty | Value::Text(_) | Value::List(_) => &[],
        }
    }
}

/// The keys of maps whose own keys are free.
const FREE_KEYS: [&str; 7] = [
    "metadata",
    "metadatas",
    "labels",
    "annotations",
    "selector",
    "data",
    "match_labels",
];

/// Returns a key in snake_case.
fn snake(key: &str) -> String {
    let mut snake = String::with_capacity(key.len() + 4);
    for character in key.chars() {
        if character.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(character.to_ascii_lowercase());
    }
    snake
}
