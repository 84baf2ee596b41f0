//! The JSON Schema of a type that is read from a file, derived from the type's `Deserialize`.
//!
//! serde requests the values of a type from a deserializer one by one. [`Guide`] leads serde along a path, and answers
//! the request at its end with an error that names the requested kind of value. Further runs go one step on: to each
//! key, item or alternative of that value.

use std::fmt::Display;
use std::iter::once;

use serde::de::value::{MapAccessDeserializer, MapDeserializer, SeqDeserializer};
use serde::de::{self, DeserializeOwned, Deserializer, Expected, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value, json};

use super::de::{ANY_OF, required_of};
use super::forms::Schema;

/// Returns the JSON Schema of a type, draft 7.
pub(crate) fn schema<T: DeserializeOwned>() -> Value {
    describe::<T>(&mut Vec::new(), false)
}

/// Returns the schema of the value at a path. With `or_null`, null means the default.
fn describe<T: DeserializeOwned>(path: &mut Vec<&'static str>, or_null: bool) -> Value {
    let below = |path: &mut Vec<_>, step, or_null| {
        path.push(step);
        let schema = describe::<T>(path, or_null);
        path.pop();
        schema
    };
    let kind = |kind: &str| if or_null { json!([kind, "null"]) } else { json!(kind) };
    match T::deserialize(Guide(path)).err() {
        Some(SchemaNode::Single(schema)) if or_null => with_null(schema),
        Some(SchemaNode::Single(schema)) => schema,
        Some(SchemaNode::Items) => json!({"type": kind("array"), "items": below(path, "[]", false)}),
        Some(SchemaNode::Keys(name, keys)) => {
            let required: Vec<_> = required_of(name, keys).collect();
            let property = |key: &&'static str| ((*key).to_owned(), below(path, *key, !required.contains(key)));
            let properties: Map<_, _> = keys.iter().map(property).collect();
            let mut schema = json!({"type": kind("object"), "additionalProperties": false, "properties": properties});
            if let Some(object) = schema.as_object_mut().filter(|_| !required.is_empty()) {
                object.insert("required".to_owned(), json!(required));
            }
            schema
        }
        Some(SchemaNode::AnyOf(kinds)) => {
            let kinds: Vec<_> = kinds.iter().map(|kind| below(path, *kind, or_null)).collect();
            json!({"anyOf": kinds})
        }
        Some(SchemaNode::Other) | None => json!({}),
    }
}

/// Adds null to the schema of a single value.
pub(super) fn with_null(mut schema: Value) -> Value {
    if let Some(kind) = schema.get_mut("type") {
        *kind = json!([kind, "null"]);
    } else if let Some(words) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        words.push(Value::Null);
    } else if let Some(last) = schema
        .get_mut("anyOf")
        .and_then(Value::as_array_mut)
        .and_then(|all| all.last_mut())
    {
        *last = with_null(last.take());
    }
    schema
}

/// The kind of value that a type asks for at the end of a path.
#[derive(Debug, thiserror::Error)]
#[error("{self:?}")]
enum SchemaNode {
    /// A single value with this schema.
    Single(Value),
    /// A list.
    Items,
    /// A map: the name of its struct, and its keys.
    Keys(&'static str, &'static [&'static str]),
    /// A value of one of these kinds.
    AnyOf(&'static [&'static str]),
    /// No kind of value that a file has.
    Other,
}

impl de::Error for SchemaNode {
    fn custom<T: Display>(_: T) -> Self {
        Self::Other
    }
}

/// The deserializer that leads serde along a path.
#[derive(Clone, Copy)]
struct Guide<'a>(&'a [&'static str]);

impl<'a> Guide<'a> {
    /// Returns the next step and the guide from there; at the end of the path, the answer as an error.
    fn next(self, question: impl FnOnce() -> SchemaNode) -> Result<(&'static str, Self), SchemaNode> {
        let (step, rest) = self.0.split_first().ok_or_else(question)?;
        Ok((step, Guide(rest)))
    }
}

impl<'de> Deserializer<'de> for Guide<'_> {
    type Error = SchemaNode;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        keys: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SchemaNode> {
        let next = self.next(|| SchemaNode::Keys(name, keys))?;
        visitor.visit_map(MapDeserializer::new(once(next)))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        words: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SchemaNode> {
        let next = self.next(|| match name {
            ANY_OF => SchemaNode::AnyOf(words),
            _ => SchemaNode::Single(json!({"enum": words})),
        })?;
        visitor.visit_enum(MapAccessDeserializer::new(MapDeserializer::new(once(next))))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SchemaNode> {
        let (_, item) = self.next(|| SchemaNode::Items)?;
        visitor.visit_seq(SeqDeserializer::new(once(item)))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SchemaNode> {
        visitor.visit_some(self)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, _: V) -> Result<V::Value, SchemaNode> {
        Err(SchemaNode::Single(json!({"type": "boolean"})))
    }

    /// Answers with the schema that the visitor of a form writes as its `expecting`; for others, with that of a text.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SchemaNode> {
        let expected = (&visitor as &dyn Expected).to_string();
        Err(SchemaNode::Single(
            serde_json::from_str(&expected).unwrap_or_else(|_| Schema::Text.json()),
        ))
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct newtype_struct tuple
        tuple_struct map identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, SchemaNode> for Guide<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}
