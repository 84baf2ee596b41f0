//! Reads a value of any type that serde can deserialize from the tree of a file, and reports every fault at once.
//!
//! serde ends at the first fault of a map. [`read`] reports that fault with its line, column, path and suggestion,
//! marks the value as [`Value::Faulty`], and reads the tree again, until nothing is left to report. The lists of
//! [`forms`](super::forms) go on after a faulty item, so a file is read about as often as an item has keys.
//!
//! The result has the default for a faulty key, and lacks a faulty item of a list. Then the caller checks the rules
//! that span several keys, and locates those diagnostics by a [`Field`](super::field::Field).
//!
//! A type of the file is its own description:
//! - A map is a struct with `#[derive(Deserialize)]`. An unknown key and a duplicate key are faults. Null is the same
//!   as no key: a key that may be absent has a default (`#[serde(default)]`), or is an `Option`.
//! - serde reports one missing key only. A struct lists its required keys in `#[serde(rename = "name, proxy")]`: then
//!   all missing keys are reported at once.
//! - A word is an enum with `#[serde(rename_all = "lowercase")]`, true or false is a `bool`; a `String`, `Box<str>` or `PathBuf`
//!   may not be empty.
//! - Any other single value has a form of [`forms`](super::forms): `#[serde(deserialize_with = "forms::one::<forms::Timeout, _>")]`,
//!   `some` for an `Option`, `list` and `some_list` for lists, and `items` for a list of maps. Rates and sizes are types of their own.
//! - A value of several kinds is an enum `#[serde(rename = "any of")]` with a newtype variant for each: `#[serde(rename = "a list")]`,
//!   `"a map"` or `"a single value"`.
//!
//! [`schema`](super::schema::schema) describes such a type as JSON Schema.

use std::fmt::Display;
use std::iter::{Enumerate, once};
use std::slice::Iter;

use serde::de::value::{MapAccessDeserializer, MapDeserializer};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::diagnostic::{Diagnostics, Position};
use super::suggest;
use super::tree::{Entry, Node, Scalar, Value};
use crate::base::values::{self, shown};

/// Reads a file or a part of it. After a fault the result serves further checks only: faulty keys have defaults.
pub(crate) fn read<T: DeserializeOwned + Default>(root: &mut Node, diagnostics: &Diagnostics) -> T {
    let max = diagnostics.faults() + MAX_ERRORS;
    let mut last = root.position;
    while root.value != Value::Faulty {
        let faults = match T::deserialize(&*root) {
            Ok(value) => return value,
            Err(DeErrors(faults)) => faults,
        };
        for fault in faults {
            last = last.max(fault.position.unwrap_or(root.position));
            if diagnostics.faults() == max {
                diagnostics.fault(last, "", "too many errors: the others are not reported");
                root.value = Value::Faulty;
                break;
            }
            report(fault, root, diagnostics);
        }
    }
    T::default()
}

/// Reports a fault of the tree, and marks the faulty value.
fn report(fault: DeError, root: &mut Node, diagnostics: &Diagnostics) {
    let position = fault.position.unwrap_or(root.position);
    match (node_at(root, &fault.steps).map(|node| &mut node.value), fault.missing) {
        // The struct requires this key. Its value has been reported as faulty.
        (Some(value), Some(key)) if has_faulty(value, key) => {
            *value = Value::Faulty;
            return;
        }
        (Some(Value::Map(entries)), Some(key)) => entries.push(Entry {
            key: key.to_owned(),
            position,
            value: Node {
                position,
                value: Value::Faulty,
            },
        }),
        (Some(value), _) => *value = Value::Faulty,
        (None, _) => root.value = Value::Faulty,
    }
    diagnostics.fault(position, &fault.path, fault.message);
}

fn has_faulty(value: &Value, key: &str) -> bool {
    let Value::Map(entries) = value else { return false };
    let is_faulty = |entry: &Entry| entry.key == key && entry.value.value == Value::Faulty;
    entries.iter().any(is_faulty)
}

/// Returns the node at the end of the steps, which are in reverse order.
fn node_at<'a>(root: &'a mut Node, steps: &[usize]) -> Option<&'a mut Node> {
    steps.iter().rev().try_fold(root, |node, &step| match &mut node.value {
        Value::List(items) => items.get_mut(step),
        Value::Map(entries) => entries.get_mut(step).map(|entry| &mut entry.value),
        Value::Null | Value::Faulty | Value::Text(_) => None,
    })
}

/// The faults with which [`Deserialize`](serde::Deserialize) of a [`Node`] ends: at least one. A list of
/// [`forms`](super::forms) has at least one for each faulty item, up to [`MAX_ERRORS`].
#[derive(Debug, thiserror::Error)]
#[error("{0:?}")]
pub(crate) struct DeErrors(Vec<DeError>);

impl DeErrors {
    fn new(message: impl Display, missing: Option<&'static str>) -> Self {
        Self(vec![DeError {
            message: message.to_string(),
            path: String::new(),
            position: None,
            steps: Vec::new(),
            missing,
        }])
    }

    /// Prepends the key or item that contains the faults, at `index`, to the path of each.
    fn below(mut self, index: usize, step: &str, position: Position) -> Self {
        for fault in &mut self.0 {
            let dot = if fault.path.is_empty() || fault.path.starts_with('[') {
                ""
            } else {
                "."
            };
            fault.path = format!("{step}{dot}{}", fault.path);
            fault.steps.push(index);
            fault.position.get_or_insert(position);
        }
        self
    }
}

#[derive(Debug)]
struct DeError {
    /// The reason, and the suggestion.
    message: String,
    /// The path from the value that is read to the faulty one; empty if they are the same.
    path: String,
    /// The place of the faulty value; `None` if the path is empty.
    position: Option<Position>,
    /// The indices of the path, in reverse order.
    steps: Vec<usize>,
    /// The key that the map at the path lacks, if that is the fault.
    missing: Option<&'static str>,
}

impl de::Error for DeErrors {
    fn custom<T: Display>(message: T) -> Self {
        Self::new(message, None)
    }

    fn missing_field(key: &'static str) -> Self {
        Self::new(format_args!("`{key}` is missing"), Some(key))
    }
}

fn fault(message: impl Display) -> DeErrors {
    de::Error::custom(message)
}

impl Node {
    fn scalar(&self) -> Result<&Scalar, DeErrors> {
        match &self.value {
            Value::Text(scalar) => Ok(scalar),
            Value::Null | Value::Faulty | Value::List(_) | Value::Map(_) => Err(self.fault_of_kind("a single value")),
        }
    }

    fn fault_of_kind(&self, expected: impl Display) -> DeErrors {
        fault(format_args!("expected {expected} (found {})", self.value.kind()))
    }
}

/// Returns why a key of a map is at fault; `None` if it is not.
fn fault_of_key(entries: &[Entry], index: usize, entry: &Entry, known: &'static [&'static str]) -> Option<String> {
    if !known.contains(&&*entry.key) {
        let names = known.join(", ");
        return Some(match suggest::key(&entry.key, known).as_str() {
            "" => format!("unknown key; known here: {names}"),
            meant => format!("unknown key{meant} Known here: {names}"),
        });
    }
    let first = entries.iter().take(index).find(|other| other.key == entry.key)?;
    Some(format!("duplicate key; it is on line {} too", first.position.line))
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = DeErrors;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        required: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeErrors> {
        let Value::Map(entries) = &self.value else {
            return Err(self.fault_of_kind("a map"));
        };
        let sound = entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.value.value != Value::Faulty);
        let of_keys = sound.filter_map(|(index, entry)| {
            let reason = fault_of_key(entries, index, entry, known)?;
            Some(fault(reason).below(index, &shown(&entry.key), entry.position))
        });
        let is_given = |key: &str| {
            entries
                .iter()
                .any(|entry| entry.key == key && entry.value.value != Value::Null)
        };
        let missing = required_of(required, known).filter(|key| !is_given(key));
        let faults = of_keys.chain(missing.map(de::Error::missing_field));
        let faults: Vec<_> = faults.flat_map(|DeErrors(faults)| faults).take(MAX_ERRORS).collect();
        match faults.is_empty() {
            true => visitor.visit_map(Keys::new(entries)),
            false => Err(DeErrors(faults)),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        words: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeErrors> {
        if name == ANY_OF {
            let kind = words.iter().find(|kind| **kind == self.value.kind());
            let kind = kind.ok_or_else(|| self.fault_of_kind(either(words)))?;
            return visitor.visit_enum(MapAccessDeserializer::new(MapDeserializer::new(once((*kind, self)))));
        }
        let text = &*self.scalar()?.text;
        if !words.contains(&text) {
            let quoted: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
            let meant = suggest::value(text, words, |meant| words.contains(&meant));
            return Err(fault(format_args!(
                "expected {} (found `{}`){meant}",
                either(&quoted),
                shown(text)
            )));
        }
        visitor.visit_enum(text.into_deserializer())
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeErrors> {
        let Scalar { text, is_quoted } = self.scalar()?;
        let truth = values::read(text, values::boolean).map_err(|reason| {
            let meant = suggest::value(text, &["true", "false"], |meant| values::boolean(meant).is_ok());
            fault(reason + &meant)
        })?;
        match is_quoted {
            // Other readers of YAML, such as Helm, take it for a text.
            true => Err(fault(format_args!(
                "expected `true` or `false` without quotes (found the text \"{text}\")"
            ))),
            false => visitor.visit_bool(truth),
        }
    }

    /// Gives the visitor the text of a number. A number in quotes or with leading zeros is a fault, because other
    /// readers of YAML take it for a text or another number.
    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeErrors> {
        let Scalar { text, is_quoted } = self.scalar()?;
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if is_number && *is_quoted {
            let text = shown(text);
            return Err(fault(format_args!(
                "expected a number without quotes (found the text \"{text}\")"
            )));
        }
        if is_number && text.len() > 1 && text.starts_with('0') {
            let text = shown(text);
            return Err(fault(format_args!(
                "expected a number without leading zeros: they make it octal in YAML 1.1 (found `{text}`)"
            )));
        }
        visitor.visit_borrowed_str(text)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeErrors> {
        visitor.visit_borrowed_str(&self.scalar()?.text)
    }

    /// Gives the visitor a text that is not empty. A form gets any text, by `deserialize_str`.
    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeErrors> {
        let text = values::read(&self.scalar()?.text, values::text).map_err(fault)?;
        visitor.visit_str(&text)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeErrors> {
        let Value::List(items) = &self.value else {
            return Err(self.fault_of_kind("a list"));
        };
        let mut items = Items {
            rest: items.iter().enumerate(),
            faults: Vec::new(),
        };
        let list = visitor.visit_seq(&mut items);
        match items.faults.is_empty() {
            true => list,
            false => Err(DeErrors(items.faults)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeErrors> {
        visitor.visit_some(self)
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeErrors> {
        match &self.value {
            Value::Null | Value::Faulty => visitor.visit_unit(),
            Value::Text(scalar) => visitor.visit_borrowed_str(&scalar.text),
            Value::List(_) => self.deserialize_seq(visitor),
            Value::Map(entries) => visitor.visit_map(Keys::new(entries)),
        }
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u128 f32 f64 char bytes byte_buf unit unit_struct newtype_struct tuple tuple_struct map
        identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, DeErrors> for &'de Node {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// The items of a list, without those that are marked as faulty. `size_hint` counts the marked items, too, so that it
/// is 0 at the start only for an empty list of the file.
///
/// The faults are kept here, so that the visitor may go on to the next item after a fault.
struct Items<'de> {
    rest: Enumerate<Iter<'de, Node>>,
    /// The faults of the items that could not be read.
    faults: Vec<DeError>,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = DeErrors;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DeErrors> {
        if self.faults.len() >= MAX_ERRORS {
            return Ok(None);
        }
        let Some((index, item)) = self.rest.find(|(_, item)| item.value != Value::Faulty) else {
            return Ok(None);
        };
        seed.deserialize(item).map(Some).map_err(|faults| {
            let DeErrors(faults) = faults.below(index, &format!("[{index}]"), item.position);
            self.faults.extend(faults);
            DeErrors(Vec::new())
        })
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

/// The keys of a map whose value is neither null nor at fault.
struct Keys<'de> {
    rest: Enumerate<Iter<'de, Entry>>,
    /// The key whose value is read next.
    entry: Option<(usize, &'de Entry)>,
}

impl<'de> Keys<'de> {
    fn new(entries: &'de [Entry]) -> Self {
        Self {
            rest: entries.iter().enumerate(),
            entry: None,
        }
    }
}

impl<'de> MapAccess<'de> for Keys<'de> {
    type Error = DeErrors;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DeErrors> {
        let is_given = |(_, entry): &(usize, &Entry)| !matches!(entry.value.value, Value::Null | Value::Faulty);
        self.entry = self.rest.find(is_given);
        let key = self.entry.map(|(_, entry)| entry.key.as_str().into_deserializer());
        key.map(|key| seed.deserialize(key)).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DeErrors> {
        let (index, entry) = self.entry.take().ok_or_else(|| fault("a value without a key"))?;
        let read = seed.deserialize(&entry.value);
        read.map_err(|fault| fault.below(index, &shown(&entry.key), entry.value_position()))
    }
}

/// Returns the required keys: the known ones that the struct's name lists.
pub(super) fn required_of(name: &'static str, known: &[&'static str]) -> impl Iterator<Item = &'static str> {
    name.split(", ").filter(|key| known.contains(key))
}

/// Returns the words as one phrase: `a`, `b` or `c`.
fn either<T: AsRef<str>>(words: &[T]) -> String {
    let words: Vec<_> = words.iter().map(AsRef::as_ref).collect();
    match words.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, first)) => format!("{} or {last}", first.join(", ")),
        None => String::new(),
    }
}

/// The name of an enum that has a variant for each kind of value.
pub(super) const ANY_OF: &str = "any of";
/// A file of 1 MiB may have 75,000 errors, and the comparisons for their suggestions take seconds.
const MAX_ERRORS: usize = 1_000;

#[cfg(test)]
mod tests;
