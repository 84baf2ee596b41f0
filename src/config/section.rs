//! Gives the readers of the sections typed access to the tree. A key that no reader asks for is a fault.

use std::collections::HashMap;
use std::fmt::Display;

use super::fault::FaultCollector;
use super::tree::{Entry, Node, Value};
use crate::values::{self, shown};

/// One value of the file, with its line and its path.
#[derive(Clone, Debug)]
pub(super) struct Field<'a> {
    path: String,
    line: u64,
    value: &'a Value,
    faults: &'a FaultCollector,
}

impl<'a> Field<'a> {
    /// The whole file.
    pub(super) fn root(node: &'a Node, faults: &'a FaultCollector) -> Self {
        Self {
            path: String::new(),
            line: node.line,
            value: &node.value,
            faults,
        }
    }

    /// The line of its key; for an item of a list, the line where it begins.
    pub(super) fn line(&self) -> u64 {
        self.line
    }

    /// Reports a fault of this value.
    pub(super) fn fault(&self, reason: impl Into<String>) {
        self.faults.push(Some(self.line), &self.path, reason);
    }

    /// Its text, read by `parse`; `None` after a fault.
    pub(super) fn parse<T, E: Display>(&self, parse: impl FnOnce(&str) -> Result<T, E>) -> Option<T> {
        let Value::Text(text) = self.value else {
            self.fault_of_kind("a single value");
            return None;
        };
        values::read(text, parse).map_err(|reason| self.fault(reason)).ok()
    }

    /// Whether it is a map.
    pub(super) fn is_map(&self) -> bool {
        matches!(self.value, Value::Map(_))
    }

    /// Whether it is a list.
    pub(super) fn is_list(&self) -> bool {
        matches!(self.value, Value::List(_))
    }

    /// The items of a list; none after a fault.
    pub(super) fn items(&self) -> Vec<Self> {
        let Value::List(items) = self.value else {
            self.fault_of_kind("a list");
            return Vec::new();
        };
        let item = |(index, item): (usize, &'a Node)| Self {
            path: format!("{}[{index}]", self.path),
            line: item.line,
            value: &item.value,
            faults: self.faults,
        };
        items.iter().enumerate().map(item).collect()
    }

    /// The keys of a map, read by `read`; `None` after a fault. Keys that `read` does not ask for are faults.
    pub(super) fn section<T>(&self, read: impl FnOnce(&mut Section<'a>) -> T) -> Option<T> {
        let Value::Map(entries) = self.value else {
            self.fault_of_kind("a map");
            return None;
        };
        let mut section = Section {
            field: self.clone(),
            entries,
            known: Vec::new(),
        };
        let value = read(&mut section);
        section.refuse_the_rest();
        Some(value)
    }

    fn fault_of_kind(&self, expected: &str) {
        self.fault(format!("expected {expected} (found {})", self.value.kind()));
    }
}

/// The keys of one map.
#[derive(Debug)]
pub(super) struct Section<'a> {
    /// The map itself.
    field: Field<'a>,
    entries: &'a [Entry],
    /// The keys that the reader has asked for.
    known: Vec<&'static str>,
}

impl<'a> Section<'a> {
    /// The value of a key; `None` when it is absent or null.
    pub(super) fn field(&mut self, name: &'static str) -> Option<Field<'a>> {
        self.known.push(name);
        self.entries
            .iter()
            .find(|entry| entry.key == name)
            .filter(|entry| entry.value != Value::Null)
            .map(|entry| self.field_of(entry))
    }

    /// The value of a key that has no default; its absence is a fault.
    pub(super) fn required(&mut self, name: &'static str) -> Option<Field<'a>> {
        let field = self.field(name);
        if field.is_none() {
            self.field.fault(format!("`{name}` is missing"));
        }
        field
    }

    /// The text of a key, read by `parse`; `None` when it is absent, null or a fault.
    pub(super) fn value<T, E: Display>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        self.field(name)?.parse(parse)
    }

    /// The items of the list of a key, each read by `parse`; none when it is absent or null, without those that are faults.
    pub(super) fn list<T, E: Display>(&mut self, name: &'static str, parse: impl Fn(&str) -> Result<T, E>) -> Vec<T> {
        let items = self.field(name).map(|field| field.items()).unwrap_or_default();
        items.iter().filter_map(|item| item.parse(&parse)).collect()
    }

    /// Reports a fault of the map as a whole.
    pub(super) fn fault(&self, reason: impl Into<String>) {
        self.field.fault(reason);
    }

    /// The number of faults in the file so far. A reader compares it to check values against each other only if each is
    /// sound.
    pub(super) fn faults(&self) -> usize {
        self.field.faults.count()
    }

    fn field_of(&self, entry: &'a Entry) -> Field<'a> {
        let name = shown(&entry.key);
        Field {
            path: match self.field.path.as_str() {
                "" => name,
                path => format!("{path}.{name}"),
            },
            line: entry.line,
            value: &entry.value,
            faults: self.field.faults,
        }
    }

    fn refuse_the_rest(&self) {
        let mut first_lines = HashMap::new();
        for entry in self.entries {
            if !self.known.contains(&entry.key.as_str()) {
                let known = self.known.join(", ");
                self.field_of(entry).fault(format!("unknown key; known here: {known}"));
            } else if let Some(line) = first_lines.insert(entry.key.as_str(), entry.line) {
                self.field_of(entry)
                    .fault(format!("duplicate key; it is on line {line} too"));
            }
        }
    }
}
