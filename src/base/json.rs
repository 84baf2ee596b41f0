//! JSON objects of foreign origin.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

/// A struct that is read from an object only. A derived `Deserialize` also takes an array of the fields in their order:
/// `[true]` would be `{"allowed": true}`.
#[derive(Debug, Default)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, serde::Deserialize)]
    struct Outer {
        #[serde(default)]
        inner: Object<Inner>,
        other: Option<Object<Inner>>,
    }

    #[derive(Debug, Default, serde::Deserialize)]
    struct Inner {
        #[serde(default)]
        yes: bool,
    }

    #[test]
    fn an_object_is_read_and_an_array_is_none() {
        let read = |text| serde_json::from_str::<Object<Outer>>(text).map(|Object(outer)| outer);
        let outer = read(r#"{"inner": {"yes": true}, "other": null, "more": [1]}"#).unwrap();
        assert!(outer.inner.0.yes && outer.other.is_none());
        assert!(!read("{}").unwrap().inner.0.yes);
        for text in [
            "[[true],null]",
            r#"{"inner":[true]}"#,
            r#"{"inner":{},"other":[true]}"#,
            "1",
            "null",
            "\"x\"",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
