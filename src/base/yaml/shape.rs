//! The JSON Schema of the file, recorded while the readers of its sections run.
//!
//! The readers are the only list of keys. To describe the file they run once with a [`Shape`] in place of each value: it
//! answers every question of a reader, and notes the question.

use std::cell::RefCell;
use std::rc::Rc;

use serde_json::{Map, Value, json};

use super::form::{Schema, with_null};

/// What the readers have asked of one value. Clones are the same value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shape(Rc<RefCell<Vec<Question>>>);

/// What a reader may ask of a value. A value of which several things are asked may be any of them.
#[derive(Clone, Debug)]
enum Question {
    /// To be a single value.
    Single(Schema),
    /// To be a list of such items.
    Items(Shape),
    /// To be a map with these keys.
    Keys(Keys),
}

/// The keys that a reader has asked for in one map. Clones are the same map.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys(Rc<RefCell<Vec<Key>>>);

#[derive(Debug)]
struct Key {
    name: &'static str,
    required: bool,
    shape: Shape,
}

impl Shape {
    /// Notes a single value.
    pub(crate) fn single(&self, schema: Schema) {
        self.0.borrow_mut().push(Question::Single(schema));
    }

    /// Notes a list, and returns its item.
    pub(crate) fn items(&self) -> Self {
        let item = Self::default();
        self.0.borrow_mut().push(Question::Items(item.clone()));
        item
    }

    /// Notes a map, and returns its keys.
    pub(crate) fn keys(&self) -> Keys {
        let keys = Keys::default();
        self.0.borrow_mut().push(Question::Keys(keys.clone()));
        keys
    }

    /// JSON Schema, draft 7. `or_null`: whether null stands for the default.
    pub(crate) fn json(&self, or_null: bool) -> Value {
        let questions = self.0.borrow();
        let mut alternatives: Vec<Value> = questions.iter().map(|question| question.json(or_null)).collect();
        match alternatives.pop() {
            Some(only) if alternatives.is_empty() => only,
            Some(last) => {
                alternatives.push(last);
                json!({"anyOf": alternatives})
            }
            None => json!({}),
        }
    }
}

impl Question {
    fn json(&self, or_null: bool) -> Value {
        match self {
            Self::Single(schema) => schema.json_or_null(or_null),
            Self::Items(item) => json!({"type": with_null("array", or_null), "items": item.json(false)}),
            Self::Keys(keys) => {
                let keys = keys.0.borrow();
                let properties: Map<_, _> = keys
                    .iter()
                    .map(|key| (key.name.to_owned(), key.shape.json(!key.required)))
                    .collect();
                let mut schema = json!({
                    "type": with_null("object", or_null),
                    "additionalProperties": false,
                    "properties": properties,
                });
                let required: Vec<_> = keys.iter().filter(|key| key.required).map(|key| key.name).collect();
                if let Some(object) = schema.as_object_mut()
                    && !required.is_empty()
                {
                    object.insert("required".to_owned(), json!(required));
                }
                schema
            }
        }
    }
}

impl Keys {
    /// Notes a key, and returns its value.
    pub(crate) fn key(&self, name: &'static str, required: bool) -> Shape {
        let shape = Shape::default();
        self.0.borrow_mut().push(Key {
            name,
            required,
            shape: shape.clone(),
        });
        shape
    }
}
