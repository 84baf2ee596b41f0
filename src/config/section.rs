//! Gives the readers of the sections typed access to the tree. A key that no reader asks for is a fault.

use std::collections::HashMap;
use std::fmt::Display;

use super::fault::FaultCollector;
use super::form::Form;
use super::shape::{Keys, Shape};
use super::tree::{Entry, Node, Value};
use crate::values::{self, shown};

/// One value of the file, with its line and its path; or a value that stands for any, to record what is asked of it.
#[derive(Clone, Debug)]
pub(super) struct Field<'a> {
    path: String,
    line: u64,
    source: Source<'a>,
    faults: &'a FaultCollector,
}

/// The value of a [`Field`].
#[derive(Clone, Debug)]
enum Source<'a> {
    /// A value of the file.
    File(&'a Value),
    /// Any value, which is a map if a reader wants to know that.
    Any { shape: Shape, is_map: bool },
}

impl<'a> Field<'a> {
    /// The whole file.
    pub(super) fn root(node: &'a Node, faults: &'a FaultCollector) -> Self {
        Self {
            path: String::new(),
            line: node.line,
            source: Source::File(&node.value),
            faults,
        }
    }

    /// Any file: `shape` records what is asked of it.
    pub(super) fn any(shape: Shape, faults: &'a FaultCollector) -> Self {
        Self {
            path: String::new(),
            line: 0,
            source: Source::Any { shape, is_map: false },
            faults,
        }
    }

    /// The line of its key; for an item of a list, the line where it begins.
    pub(super) fn line(&self) -> u64 {
        self.line
    }

    /// Reports a fault of this value.
    pub(super) fn fault(&self, reason: impl Into<String>) {
        if let Source::File(_) = self.source {
            self.faults.push(Some(self.line), &self.path, reason);
        }
    }

    /// Its text, read as `form`; `None` after a fault.
    pub(super) fn parse<T, E: Display>(&self, form: &Form<T, E>) -> Option<T> {
        match &self.source {
            Source::File(Value::Text(text)) => values::read(text, form.parse).map_err(|reason| self.fault(reason)).ok(),
            Source::File(Value::Null | Value::List(_) | Value::Map(_)) => {
                self.fault_of_kind("a single value");
                None
            }
            Source::Any { shape, .. } => {
                shape.single(form.schema);
                None
            }
        }
    }

    /// Whether it is a map.
    pub(super) fn is_map(&self) -> bool {
        matches!(
            self.source,
            Source::File(Value::Map(_)) | Source::Any { is_map: true, .. }
        )
    }

    /// Whether it is a list.
    pub(super) fn is_list(&self) -> bool {
        matches!(self.source, Source::File(Value::List(_)))
    }

    /// The items of a list; none after a fault.
    pub(super) fn items(&self) -> Vec<Self> {
        match &self.source {
            Source::File(Value::List(items)) => {
                let item = |(index, item): (usize, &'a Node)| Self {
                    path: format!("{}[{index}]", self.path),
                    line: item.line,
                    source: Source::File(&item.value),
                    faults: self.faults,
                };
                items.iter().enumerate().map(item).collect()
            }
            Source::File(Value::Null | Value::Text(_) | Value::Map(_)) => {
                self.fault_of_kind("a list");
                Vec::new()
            }
            Source::Any { shape, .. } => vec![Self::any(shape.items(), self.faults)],
        }
    }

    /// The items of a list, or the value itself if it is none. A reader may ask each whether it is a map.
    pub(super) fn items_or_itself(&self) -> Vec<Self> {
        match &self.source {
            Source::File(Value::List(_)) => self.items(),
            Source::File(Value::Null | Value::Text(_) | Value::Map(_)) => vec![self.clone()],
            Source::Any { shape, .. } => {
                let item = shape.items();
                let alternatives = [(shape, false), (shape, true), (&item, false), (&item, true)];
                let any = |(shape, is_map): (&Shape, bool)| Self {
                    source: Source::Any {
                        shape: shape.clone(),
                        is_map,
                    },
                    ..self.clone()
                };
                alternatives.into_iter().map(any).collect()
            }
        }
    }

    /// The keys of a map, read by `read`; `None` after a fault. Keys that `read` does not ask for are faults.
    pub(super) fn section<T>(&self, read: impl FnOnce(&mut Section<'a>) -> T) -> Option<T> {
        let entries = match &self.source {
            Source::File(Value::Map(entries)) => Entries::File(entries),
            Source::File(Value::Null | Value::Text(_) | Value::List(_)) => {
                self.fault_of_kind("a map");
                return None;
            }
            Source::Any { shape, .. } => Entries::Any(shape.keys()),
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
        if let Source::File(value) = self.source {
            self.fault(format!("expected {expected} (found {})", value.kind()));
        }
    }
}

/// The keys of one map.
#[derive(Debug)]
pub(super) struct Section<'a> {
    /// The map itself.
    field: Field<'a>,
    entries: Entries<'a>,
    /// The keys that the reader has asked for.
    known: Vec<&'static str>,
}

/// The keys of a [`Section`].
#[derive(Debug)]
enum Entries<'a> {
    /// A map of the file.
    File(&'a [Entry]),
    /// Any map: every key is there.
    Any(Keys),
}

impl<'a> Section<'a> {
    /// The value of a key; `None` when it is absent or null.
    pub(super) fn field(&mut self, name: &'static str) -> Option<Field<'a>> {
        self.value_of(name, false)
    }

    /// The value of a key that has no default; its absence is a fault.
    pub(super) fn required(&mut self, name: &'static str) -> Option<Field<'a>> {
        let field = self.value_of(name, true);
        if field.is_none() {
            self.field.fault(format!("`{name}` is missing"));
        }
        field
    }

    /// The text of a key, read as `form`; `None` when it is absent, null or a fault.
    pub(super) fn value<T, E: Display>(&mut self, name: &'static str, form: &Form<T, E>) -> Option<T> {
        self.field(name)?.parse(form)
    }

    /// The items of the list of a key, each read as `form`; none when it is absent or null, without those that are faults.
    pub(super) fn list<T, E: Display>(&mut self, name: &'static str, form: &Form<T, E>) -> Vec<T> {
        let items = self.field(name).map(|field| field.items()).unwrap_or_default();
        items.iter().filter_map(|item| item.parse(form)).collect()
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

    fn value_of(&mut self, name: &'static str, required: bool) -> Option<Field<'a>> {
        self.known.push(name);
        match &self.entries {
            Entries::File(entries) => entries
                .iter()
                .find(|entry| entry.key == name)
                .filter(|entry| entry.value != Value::Null)
                .map(|entry| self.field_of(entry)),
            Entries::Any(keys) => Some(Field::any(keys.key(name, required), self.field.faults)),
        }
    }

    fn field_of(&self, entry: &'a Entry) -> Field<'a> {
        let name = shown(&entry.key);
        Field {
            path: match self.field.path.as_str() {
                "" => name,
                path => format!("{path}.{name}"),
            },
            line: entry.line,
            source: Source::File(&entry.value),
            faults: self.field.faults,
        }
    }

    fn refuse_the_rest(&self) {
        let Entries::File(entries) = self.entries else {
            return;
        };
        let mut first_lines = HashMap::new();
        for entry in entries {
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
