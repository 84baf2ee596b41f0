//! Patches of objects, as clients send them.

use serde_json::{Value, json};

use super::Shared;
use super::answer::{self, Answer};
use super::store::Key;

/// A merge patch of one object (RFC 7396), as one write. One from another resource version is a conflict.
pub(crate) fn merge(shared: &Shared, key: &Key, patch: &Value) -> Option<Result<Value, Answer>> {
    let mut object = shared.store().object(key)?.clone();
    let expected = &patch["metadata"]["resourceVersion"];
    if expected.is_string() && *expected != object["metadata"]["resourceVersion"] {
        return Some(Err(answer::refusal(409, "the object has been modified")));
    }
    apply(&mut object, patch);
    Some(Ok(shared.put(key.clone(), object)))
}

fn apply(object: &mut Value, patch: &Value) {
    let Some(changes) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (name, change) in changes {
        if change.is_null() {
            object.as_object_mut().unwrap().remove(name);
        } else {
            apply(&mut object[name.as_str()], change);
        }
    }
}

/// Applies a Secret as that field manager on the server's side: the keys that the manager has applied before and no longer
/// names go, and those of others stay.
pub(crate) fn applied(before: Option<Value>, manager: &str, secret: &Value) -> Value {
    let mut object = before.unwrap_or_else(|| json!({"metadata": {}, "data": {}}));
    let owned = object["metadata"]["owners"][manager].take();
    let data = object["data"].as_object_mut().unwrap();
    data.retain(|key, _| owned[key].is_null());
    data.extend(secret["data"].as_object().unwrap().clone());
    apply(&mut object, &json!({"metadata": {"owners": {manager: secret["data"]}}}));
    for field in ["apiVersion", "kind", "type"] {
        object[field] = secret[field].clone();
    }
    apply(&mut object["metadata"], &secret["metadata"]);
    object
}
