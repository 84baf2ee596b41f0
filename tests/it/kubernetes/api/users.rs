//! Users as clients of the API server: their rights, and what it writes into their objects.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use hyper::Method;
use serde_json::{Value, json};

use super::Shared;
use super::answer::{self, Answer};
use super::rbac;
use super::request::Place;
use super::store::Key;

/// The user of a token, as a review tells it.
pub(crate) fn of(shared: &Shared, token: &str) -> Option<Value> {
    let reviews = shared.reviews();
    reviews.tokens.get(token).map(|token| token.user.clone())
}

/// The refusal, unless a role in the store allows it.
pub(crate) fn refused(shared: &Shared, user: &Value, method: &Method, place: &Place) -> Option<Answer> {
    let verb = match *method {
        Method::POST => "create",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    };
    let group = place.version.rsplit_once('/').map_or("", |(group, _)| group);
    let asked = json!({
        "user": user["username"], "groups": user["groups"],
        "resourceAttributes": {
            "verb": verb, "group": group, "resource": place.plural, "namespace": place.namespace, "name": place.name,
        },
    });
    let is_allowed = rbac::status(shared, &asked)["allowed"] == true;
    let message = format!(
        "{}.{group} is forbidden: User {} cannot {verb} resource {:?} in API group {group:?}",
        place.plural, user["username"], place.plural
    );
    (!is_allowed).then(|| answer::refusal(403, &message))
}

/// What the server writes into a new object, whatever its author has written there.
pub(crate) fn complete(place: &Place, object: &mut Value) {
    if let Some(prefix) = object["metadata"]["generateName"].as_str() {
        let name = format!("{prefix}{}", MADE.fetch_add(1, Ordering::Relaxed));
        object["metadata"]["name"] = json!(name);
    }
    object["metadata"]["namespace"] = json!(place.namespace);
    object["metadata"]["creationTimestamp"] = json!(humantime::format_rfc3339_seconds(SystemTime::now()).to_string());
    object["kind"] = json!(place.kind);
    object["apiVersion"] = json!(place.version);
}

/// A merge patch of one object (RFC 7396), as one write.
pub(crate) fn merge(shared: &Shared, key: &Key, patch: &Value) -> Option<Value> {
    let mut object = shared.store().object(key)?.clone();
    apply(&mut object, patch);
    Some(shared.put(key.clone(), object))
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

static MADE: AtomicUsize = AtomicUsize::new(1);
