//! Gives the readers of the sections typed access to the tree. A key that no reader asks for is a fault.

use std::collections::HashMap;
use std::fmt::Display;

use super::finding::{Findings, Position, Severity};
use super::form::{Form, Schema};
use super::shape::{Keys, Shape};
use super::suggest;
use super::tree::{Entry, Node, Scalar, Value};
use crate::base::values::{self, shown};

/// One value of the file, with its position and its path; or a value that stands for any, to record what is asked of it.
#[derive(Clone, Debug)]
pub(crate) struct Field<'a> {
    path: String,
    /// The position of a single value or of an item; otherwise that of the key.
    position: Position,
    source: Source<'a>,
    findings: &'a Findings,
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
    pub(crate) fn root(node: &'a Node, findings: &'a Findings) -> Self {
        Self {
            path: String::new(),
            position: node.position,
            source: Source::File(&node.value),
            findings,
        }
    }

    /// Any file: `shape` records what is asked of it.
    pub(crate) fn any(shape: Shape, findings: &'a Findings) -> Self {
        Self {
            path: String::new(),
            position: Position::START,
            source: Source::Any { shape, is_map: false },
            findings,
        }
    }

    /// Its line in the file; for a list or map with a key, the line of the key.
    pub(crate) fn line(&self) -> u64 {
        self.position.line
    }

    /// Reports a fault of this value: the configuration is refused.
    pub(crate) fn fault(&self, reason: impl Into<String>) {
        self.report(Severity::Error, reason);
    }

    /// Reports that the configuration probably does not do what its author wants. It is accepted.
    pub(crate) fn warning(&self, reason: impl Into<String>) {
        self.report(Severity::Warning, reason);
    }

    /// Reports a fault that `check` refuses the configuration for, and that a process may live with, such as a file that is
    /// not there yet.
    pub(crate) fn dispensable_fault(&self, reason: impl Into<String>) {
        self.report(self.findings.dispensable(), reason);
    }

    /// Reports what the author of the configuration may want to know. It is accepted.
    pub(crate) fn note(&self, reason: impl Into<String>) {
        self.report(Severity::Note, reason);
    }

    fn report(&self, severity: Severity, reason: impl Into<String>) {
        if let Source::File(_) = self.source {
            self.findings
                .push(severity, Some(self.position), &self.path, reason.into());
        }
    }

    /// The value of a key below it, such as `tls.client_ca`, for a finding: where the file has no such key, the value has
    /// the position of the last one that it has.
    pub(crate) fn at(&self, path: &str) -> Self {
        path.split('.').fold(self.clone(), |field, name| {
            let found = match &field.source {
                Source::File(Value::Map(entries)) => entries.iter().find(|entry| entry.key == name),
                Source::File(_) | Source::Any { .. } => None,
            };
            match found {
                Some(entry) => field.below(entry),
                None => Self {
                    path: joined(&field.path, name),
                    source: match field.source {
                        Source::File(_) => Source::File(&Value::Null),
                        any @ Source::Any { .. } => any,
                    },
                    ..field
                },
            }
        })
    }

    /// The value of one of its keys.
    fn below(&self, entry: &'a Entry) -> Self {
        Self {
            path: joined(&self.path, &shown(&entry.key)),
            position: match entry.value.value {
                Value::Text(_) => entry.value.position,
                Value::Null | Value::Faulty | Value::List(_) | Value::Map(_) => entry.position,
            },
            source: Source::File(&entry.value.value),
            findings: self.findings,
        }
    }

    /// Its text, read as `form`; `None` after a fault.
    pub(crate) fn parse<T, E: Display>(&self, form: &Form<T, E>) -> Option<T> {
        match &self.source {
            Source::File(Value::Text(scalar)) => self.read(scalar, form).map_err(|reason| self.fault(reason)).ok(),
            Source::File(Value::Null | Value::Faulty | Value::List(_) | Value::Map(_)) => {
                self.fault_of_kind("a single value");
                None
            }
            Source::Any { shape, .. } => {
                shape.single(form.schema);
                None
            }
        }
    }

    /// What `form` makes of a scalar, or why it is a fault, and what was probably meant.
    fn read<T, E: Display>(&self, scalar: &Scalar, form: &Form<T, E>) -> Result<T, String> {
        let value = values::read(&scalar.text, form.parse).map_err(|reason| {
            let accepts = |text: &str| (form.parse)(text).is_ok();
            reason + &self.meant(|| suggest::value(&scalar.text, &form.schema.words().unwrap_or_default(), accepts))
        })?;
        form.schema.misread(scalar).map_or(Ok(value), Err)
    }

    /// The suggestion for a fault. A file of 1 MiB may have 75,000 faults, and the comparisons for them take seconds.
    fn meant(&self, suggestion: impl FnOnce() -> String) -> String {
        match self.findings.faults() {
            0..MOST_SUGGESTIONS => suggestion(),
            _ => String::new(),
        }
    }

    /// Whether it is a map.
    pub(crate) fn is_map(&self) -> bool {
        matches!(
            self.source,
            Source::File(Value::Map(_)) | Source::Any { is_map: true, .. }
        )
    }

    /// Whether it is a list.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self.source, Source::File(Value::List(_)))
    }

    /// The items of a list; none after a fault.
    pub(crate) fn items(&self) -> Vec<Self> {
        match &self.source {
            Source::File(Value::List(items)) => {
                let item = |(index, item): (usize, &'a Node)| Self {
                    path: format!("{}[{index}]", self.path),
                    position: item.position,
                    source: Source::File(&item.value),
                    findings: self.findings,
                };
                items.iter().enumerate().map(item).collect()
            }
            Source::File(Value::Null | Value::Faulty | Value::Text(_) | Value::Map(_)) => {
                self.fault_of_kind("a list");
                Vec::new()
            }
            Source::Any { shape, .. } => vec![Self::any(shape.items(), self.findings)],
        }
    }

    /// The items of a list, or the value itself if it is none. A reader may ask each whether it is a map.
    pub(crate) fn items_or_itself(&self) -> Vec<Self> {
        match &self.source {
            Source::File(Value::List(_)) => self.items(),
            Source::File(Value::Null | Value::Faulty | Value::Text(_) | Value::Map(_)) => vec![self.clone()],
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

    /// The value itself. To a reader that records the format it is twice there: as a single value, and as a map.
    pub(crate) fn word_or_map(&self) -> Vec<Self> {
        let as_map = |is_map| match &self.source {
            Source::File(_) => None,
            Source::Any { shape, .. } => Some(Self {
                source: Source::Any {
                    shape: shape.clone(),
                    is_map,
                },
                ..self.clone()
            }),
        };
        match (as_map(false), as_map(true)) {
            (Some(single), Some(map)) => vec![single, map],
            (None | Some(_), None | Some(_)) => vec![self.clone()],
        }
    }

    /// The keys of a map, read by `read`; `None` after a fault. Keys that `read` does not ask for are faults.
    pub(crate) fn section<T>(&self, read: impl FnOnce(&mut Section<'a>) -> T) -> Option<T> {
        let entries = match &self.source {
            Source::File(Value::Map(entries)) => Entries::File(entries),
            Source::File(Value::Null | Value::Faulty | Value::Text(_) | Value::List(_)) => {
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
pub(crate) struct Section<'a> {
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
    pub(crate) fn field(&mut self, name: &'static str) -> Option<Field<'a>> {
        self.value_of(name, false)
    }

    /// The value of a key that has no default; its absence is a fault.
    pub(crate) fn required(&mut self, name: &'static str) -> Option<Field<'a>> {
        let field = self.value_of(name, true);
        if field.is_none() {
            self.field.fault(format!("`{name}` is missing"));
        }
        field
    }

    /// The text of a key, read as `form`; `None` when it is absent, null or a fault.
    pub(crate) fn value<T, E: Display>(&mut self, name: &'static str, form: &Form<T, E>) -> Option<T> {
        self.field(name)?.parse(form)
    }

    /// The items of the list of a key, each read as `form`; none when it is absent or null, without those that are faults.
    pub(crate) fn list<T, E: Display>(&mut self, name: &'static str, form: &Form<T, E>) -> Vec<T> {
        let items = self.field(name).map(|field| field.items()).unwrap_or_default();
        items.iter().filter_map(|item| item.parse(form)).collect()
    }

    /// The map itself, for findings.
    pub(crate) fn itself(&self) -> Field<'a> {
        self.field.clone()
    }

    /// The number of faults in the file so far; warnings and notes do not count. A reader compares it to check values
    /// against each other only if each is sound.
    pub(crate) fn faults(&self) -> usize {
        self.field.findings.faults()
    }

    fn value_of(&mut self, name: &'static str, required: bool) -> Option<Field<'a>> {
        self.known.push(name);
        match &self.entries {
            Entries::File(entries) => entries
                .iter()
                .find(|entry| entry.key == name)
                .filter(|entry| entry.value.value != Value::Null)
                .map(|entry| self.field.below(entry)),
            Entries::Any(keys) => Some(Field::any(keys.key(name, required), self.field.findings)),
        }
    }

    fn refuse_the_rest(&self) {
        let Entries::File(entries) = self.entries else {
            return;
        };
        let mut first_lines = HashMap::new();
        for entry in entries {
            // The key itself is what is wrong, not its value.
            let key = Field {
                position: entry.position,
                ..self.field.below(entry)
            };
            if !self.known.contains(&entry.key.as_str()) {
                let known = self.known.join(", ");
                key.fault(match key.meant(|| suggest::key(&entry.key, &self.known)).as_str() {
                    "" => format!("unknown key; known here: {known}"),
                    meant => format!("unknown key{meant} Known here: {known}"),
                });
            } else if let Some(line) = first_lines.insert(entry.key.as_str(), entry.position.line) {
                key.fault(format!("duplicate key; it is on line {line} too"));
            }
        }
    }
}

impl Schema {
    /// Why a scalar that a parser accepts is another value to other readers of YAML, such as Helm and kubectl.
    fn misread(self, scalar: &Scalar) -> Option<String> {
        let text = shown(&scalar.text);
        let is_number = scalar.text.bytes().all(|byte| byte.is_ascii_digit());
        match self {
            Self::Words(&["true", ..]) if scalar.is_quoted => Some(format!(
                "expected `true` or `false` without quotes (found the text \"{text}\")"
            )),
            Self::Count(_) | Self::CountOr(..) if is_number && scalar.is_quoted => {
                Some(format!("expected a number without quotes (found the text \"{text}\")"))
            }
            Self::Count(_) | Self::CountOr(..) if is_number && text.starts_with('0') => Some(format!(
                "expected a number without leading zeros: they make it octal in YAML 1.1 (found `{text}`)"
            )),
            Self::Count(_) | Self::CountOr(..) | Self::Text | Self::Pattern(_) | Self::Amount(_) | Self::Words(_) => {
                None
            }
        }
    }
}

/// The path of a key in the map with that path.
fn joined(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    }
}

/// The number of faults from which on there are no suggestions.
const MOST_SUGGESTIONS: usize = 1_000;
