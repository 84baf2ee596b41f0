//! The place of a value in a file, for the diagnostics that are made after the file was read.

use super::diagnostic::{Diagnostics, Position, Severity};
use super::tree::{Entry, Node, Value};
use crate::base::values::shown;

/// One value of the file, with its position and its path.
#[derive(Clone, Debug)]
pub(crate) struct Field<'a> {
    path: String,
    /// The position of a single value or of an item; otherwise that of the key.
    position: Position,
    value: &'a Value,
    diagnostics: &'a Diagnostics,
}

impl<'a> Field<'a> {
    /// Creates the field of the whole file.
    pub(crate) fn root(node: &'a Node, diagnostics: &'a Diagnostics) -> Self {
        Self {
            path: String::new(),
            position: node.position,
            value: &node.value,
            diagnostics,
        }
    }

    /// Returns the field at a path below this one, such as `tls.client_ca`. If the file lacks the key, the position is
    /// that of the nearest key or item above.
    pub(crate) fn at(&self, path: &str) -> Self {
        path.split('.').fold(self.clone(), |field, name| {
            let entry = match field.value {
                Value::Map(entries) => entries.iter().find(|entry| entry.key == name),
                Value::Null | Value::Faulty | Value::Text(_) | Value::List(_) => None,
            };
            Self {
                path: match &*field.path {
                    "" => shown(name),
                    path => format!("{path}.{}", shown(name)),
                },
                position: entry.map_or(field.position, Entry::value_position),
                value: entry.map_or(&Value::Null, |entry| &entry.value.value),
                diagnostics: field.diagnostics,
            }
        })
    }

    /// Returns the items of a list that `de` has read, without faulty ones. A single value or map is its own item.
    pub(crate) fn items(&self) -> impl Iterator<Item = Self> {
        let items = match self.value {
            Value::List(items) => items.as_slice(),
            Value::Null | Value::Faulty | Value::Text(_) | Value::Map(_) => &[],
        };
        let itself = matches!(self.value, Value::Text(_) | Value::Map(_)).then(|| self.clone());
        let sound = items.iter().enumerate().filter(|(_, item)| item.value != Value::Faulty);
        let item = move |(index, item): (usize, &'a Node)| Self {
            path: format!("{}[{index}]", self.path),
            position: item.position,
            value: &item.value,
            diagnostics: self.diagnostics,
        };
        sound.map(item).chain(itself)
    }

    /// Returns the value's line in the file; for a list or map with a key, the line of the key.
    pub(crate) fn line(&self) -> u64 {
        self.position.line
    }

    /// Returns whether the file has the value, valid or not.
    pub(crate) fn is_given(&self) -> bool {
        *self.value != Value::Null
    }

    /// Returns whether the file has the key at a path below this one, and no value of it.
    pub(crate) fn lacks_value(&self, path: &str) -> bool {
        let (section, key) = match path.rsplit_once('.') {
            Some((section, key)) => (self.at(section).value, key),
            None => (self.value, path),
        };
        let is_null = |entry: &Entry| entry.key == key && entry.value.value == Value::Null;
        matches!(section, Value::Map(entries) if entries.iter().any(is_null))
    }

    /// Returns whether the value is invalid.
    pub(crate) fn is_faulty(&self) -> bool {
        *self.value == Value::Faulty
    }

    /// Returns whether the value, or one in it, is invalid.
    pub(crate) fn has_faults(&self) -> bool {
        self.value.has_faults()
    }

    /// Returns the number of faults in the file so far; warnings and notes do not count.
    pub(crate) fn faults(&self) -> usize {
        self.diagnostics.faults()
    }

    /// Reports a fault of this value: the configuration is refused.
    pub(crate) fn fault(&self, reason: impl Into<String>) {
        self.report(Severity::Error, reason);
    }

    /// Reports that the configuration, which is accepted, probably does not do what its author wants.
    pub(crate) fn warning(&self, reason: impl Into<String>) {
        self.report(Severity::Warning, reason);
    }

    /// Reports a fault for which `check` refuses the configuration, and of which a process only warns, such as a missing
    /// file.
    pub(crate) fn dispensable_fault(&self, reason: impl Into<String>) {
        self.report(self.diagnostics.dispensable(), reason);
    }

    /// Reports a fault in `check` only. A process reports it whenever it reads the file that the value names.
    pub(crate) fn fault_of_a_check(&self, reason: impl Into<String>) {
        if self.diagnostics.dispensable() == Severity::Error {
            self.fault(reason);
        }
    }

    /// Reports what the author of the configuration, which is accepted, may want to know.
    pub(crate) fn note(&self, reason: impl Into<String>) {
        self.report(Severity::Note, reason);
    }

    fn report(&self, severity: Severity, reason: impl Into<String>) {
        self.diagnostics
            .push(severity, Some(self.position), &self.path, reason.into());
    }
}
