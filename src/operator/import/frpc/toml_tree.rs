//! Reads TOML into the same tree as YAML.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::base::text::escaped;
use crate::base::yaml::diagnostic::{Diagnostics, Position};
use crate::base::yaml::tree::{Entry, Node, Scalar, Value};

/// Returns the tree of a file; `None` after an error. The parser bounds the depth. The file's size bounds the number of
/// values, as TOML has no aliases.
pub(super) fn read(text: &str, diagnostics: &Diagnostics) -> Option<Node> {
    let lines = Lines::new(text);
    match DeTable::parse(text) {
        Ok(table) => Some(Node {
            position: Position::START,
            value: map(table.get_ref(), &lines),
        }),
        Err(error) => {
            let position = error.span().map_or(Position::START, |span| lines.position(span.start));
            diagnostics.fault(position, "", format!("not TOML: {}", escaped(error.message())));
            None
        }
    }
}

fn map(table: &DeTable<'_>, lines: &Lines<'_>) -> Value {
    let entries = table.iter().map(|(key, value)| Entry {
        key: key.get_ref().as_ref().to_owned(),
        position: lines.position(key.span().start),
        value: node(value, lines),
    });
    let mut entries: Vec<Entry> = entries.collect();
    entries.sort_by_key(|entry| entry.position);
    Value::Map(entries)
}

fn node(value: &Spanned<DeValue<'_>>, lines: &Lines<'_>) -> Node {
    let Range { start, .. } = value.span();
    let text = |text: String, is_quoted| Value::Text(Scalar { text, is_quoted });
    let read = match value.get_ref() {
        DeValue::String(string) => text(string.as_ref().to_owned(), true),
        DeValue::Integer(integer) => match integer.radix() {
            10 => text(integer.as_str().to_owned(), false),
            radix => {
                let number = i64::from_str_radix(integer.as_str(), radix);
                text(number.map(|number| number.to_string()).unwrap_or_default(), false)
            }
        },
        DeValue::Float(float) => text(float.as_str().to_owned(), false),
        DeValue::Boolean(boolean) => text(boolean.to_string(), false),
        DeValue::Datetime(datetime) => text(datetime.to_string(), false),
        DeValue::Array(items) => Value::List(items.iter().map(|item| node(item, lines)).collect()),
        DeValue::Table(table) => map(table, lines),
    };
    Node {
        position: lines.position(start),
        value: read,
    }
}

/// The lines of a text, to turn a byte offset into a line and a column.
struct Lines<'a> {
    text: &'a str,
    /// The first byte of each line.
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        let starts = text.match_indices('\n').map(|(end, _)| end + 1);
        Self {
            text,
            starts: std::iter::once(0).chain(starts).collect(),
        }
    }

    fn position(&self, byte: usize) -> Position {
        let line = self.starts.partition_point(|start| *start <= byte);
        let start = self.starts.get(line.saturating_sub(1)).copied().unwrap_or_default();
        let before = self.text.get(start..byte).unwrap_or_default();
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        Position {
            line: number(line).max(1),
            column: number(before.chars().count()).saturating_add(1),
        }
    }
}
