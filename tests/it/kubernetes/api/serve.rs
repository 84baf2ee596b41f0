//! Answers requests: by the rights of the token, the faults of the scenario, and the store.

use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::{Method, Request};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::Shared;
use super::answer::{self, Answer};
use super::faults::{Fault, Verb};
use super::merge;
use super::request::{Place, Query};
use super::reviews;
use super::scale;
use super::store::{Key, Scope};
use super::watch_stream::Watch;

/// The rest of a list, for requests for the next page.
#[derive(Debug)]
pub(crate) struct Page {
    revision: u64,
    rest: Vec<Value>,
}

pub(crate) async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Answer {
    shared.thawed().await;
    let query = Query::of(request.uri());
    let Some(place) = Place::of(request.uri().path()) else {
        return match request.uri().path() {
            "/version" => answer::json(200, &json!({"major": "1", "minor": "34", "gitVersion": "v1.34.0"})),
            _ => answer::refusal(404, "the server could not find the requested resource"),
        };
    };
    let verb = query.verb(&place);
    let _under_way = shared.under_way(verb);
    let fault = shared.script().next(verb);
    if let Some(refusal) = refused(&shared, &request, &place) {
        return refusal;
    }
    match fault {
        Some(Fault::Status(code)) => return answer::refusal(code, "as the scenario wants it"),
        Some(Fault::TooMany) => return answer::too_many(1),
        Some(Fault::TooManyFor(seconds)) => return answer::too_many(seconds),
        Some(Fault::Expired) if verb != Verb::Watch => return expired(),
        Some(Fault::Expired) => {
            // Whatever revision it names is too old now, and that is told as an event.
            let (sender, pieces) = mpsc::channel(1);
            let event = json!({"type": "ERROR", "object": answer::status(410, "too old resource version")});
            sender.try_send(Ok(format!("{event}\n").into())).unwrap();
            return answer::stream(pieces);
        }
        Some(Fault::Slow(delay)) => sleep(delay).await,
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::CutBody) => return answer::cut(),
        Some(Fault::Body(body)) => return answer::text(201, body.to_owned()),
        Some(Fault::Long(length)) => return answer::text(201, " ".repeat(length)),
        None => {}
    }
    // A request that froze in the meantime is silent, too.
    shared.thawed().await;
    match verb {
        Verb::Watch => watch(&shared, place, &query),
        Verb::List if request.method() == Method::POST => write(&shared, &place, request).await,
        Verb::List => list(&shared, &place, &query),
        Verb::Page => page(&shared, &place, &query),
        Verb::Other => write(&shared, &place, request).await,
        Verb::TokenReview | Verb::AccessReview => reviews::answer(&shared, verb, request).await,
    }
}

/// Bearer tokens, then rights: the administrator's token may everything.
fn refused(shared: &Shared, request: &Request<Incoming>, place: &Place) -> Option<Answer> {
    let token = bearer(request);
    if token == super::ADMINISTRATOR {
        return None;
    }
    let mut access = shared.access();
    if !access.tokens.contains(token) {
        return Some(answer::refusal(401, "Unauthorized"));
    }
    let is_review = matches!(place.plural, "tokenreviews" | "subjectaccessreviews");
    let method = if is_review { Method::POST } else { Method::GET };
    // With the scale of workloads, as the chart gives the rights.
    let is_write = match (place.plural, place.subresource.as_deref()) {
        ("statefulsets" | "deployments", Some("scale"))
        | ("notebooks" | "workspaces" | "sandboxes" | "devworkspaces" | "rayclusters" | "virtualmachines", None) => {
            request.method() == Method::PATCH
        }
        ("events", None) => matches!(*request.method(), Method::POST | Method::PATCH),
        _ => false,
    };
    let is_readable = (request.method() == method || is_write) && access.readable.contains(&place.plural);
    let namespace = place.namespace.as_ref();
    let refusals = namespace.and_then(|namespace| access.forbidden.get_mut(namespace));
    let is_read = is_readable && refusals.is_none();
    if let Some(refusals) = refusals {
        *refusals += 1;
    }
    let verb = if is_review { "create" } else { "list" };
    let message = format!(
        "{} is forbidden: User \"system:serviceaccount:switchboard:switchboard\" cannot {verb} resource \"{}\" in API \
         group \"\" at the cluster scope",
        place.plural, place.plural
    );
    (!is_read).then(|| answer::refusal(403, &message))
}

fn bearer(request: &Request<Incoming>) -> &str {
    let given = request
        .headers()
        .get(AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    given
        .and_then(|value| value.strip_prefix("Bearer "))
        .unwrap_or_default()
}

fn expired() -> Answer {
    answer::refusal(
        410,
        "The provided continue parameter is too old to display a consistent list result",
    )
}

fn watch(shared: &Arc<Shared>, place: Place, query: &Query) -> Answer {
    match query.scope(&place) {
        Some(scope) => answer::stream(Watch::start(Arc::clone(shared), place, scope, query)),
        None => answer::refusal(400, "unable to parse requirement"),
    }
}

fn list(shared: &Shared, place: &Place, query: &Query) -> Answer {
    let Some(scope) = query.scope(place) else {
        return answer::refusal(400, "unable to parse requirement");
    };
    let (objects, revision) = state(shared, &scope);
    let wanted = query.number("resourceVersion").unwrap_or_default();
    if wanted > revision {
        return answer::refusal(
            504,
            &format!("Timeout: Too large resource version: {wanted}, current: {revision}"),
        );
    }
    if query.value("resourceVersionMatch") == Some("Exact") && wanted != revision {
        return answer::refusal(410, "The resourceVersion for the provided list is too old.");
    }
    first_of(
        shared,
        place,
        query,
        Page {
            revision,
            rest: objects,
        },
    )
}

fn state(shared: &Shared, scope: &Scope) -> (Vec<Value>, u64) {
    let store = shared.store();
    let mut objects = store.list(scope);
    for object in &mut objects {
        // The items of a typed list do not repeat its kind.
        let fields = object.as_object_mut().unwrap();
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    (objects, store.revision())
}

fn page(shared: &Shared, place: &Place, query: &Query) -> Answer {
    let token = query.value("continue").unwrap_or_default();
    let page = shared.pages().remove(token);
    match page {
        Some(page) => first_of(shared, place, query, page),
        None => expired(),
    }
}

/// As much of it as is wanted at once. A later page is of the revision of the first.
fn first_of(shared: &Shared, place: &Place, query: &Query, page: Page) -> Answer {
    let Page { revision, mut rest } = page;
    let limit = query.number("limit").filter(|&limit| limit > 0);
    let limit = limit.map_or(rest.len(), |limit| usize::try_from(limit).unwrap());
    let more = rest.split_off(limit.min(rest.len()));
    let mut metadata = json!({"resourceVersion": revision.to_string()});
    if !more.is_empty() {
        let mut pages = shared.pages();
        let token = format!("{revision}.{}.{}", place.plural, more.len());
        metadata["continue"] = json!(token);
        pages.insert(token, Page { revision, rest: more });
    }
    let kind = format!("{}List", place.kind);
    answer::json(
        200,
        &json!({"kind": kind, "apiVersion": place.version, "metadata": metadata, "items": rest}),
    )
}

/// One object: read, written or deleted. Every write puts the whole object there, as a forced apply does.
async fn write(shared: &Arc<Shared>, place: &Place, request: Request<Incoming>) -> Answer {
    let method = request.method().clone();
    let is_merge = request.headers().get(CONTENT_TYPE).is_some_and(|value| value == MERGE);
    let body = request.into_body().collect().await;
    let body: Value = body.map_or(Value::Null, |body| {
        serde_json::from_slice(&body.to_bytes()).unwrap_or_default()
    });
    if place.subresource.as_deref() == Some("token") {
        return issue(shared, place, &body);
    }
    let key = place.key().or_else(|| {
        Some(Key {
            plural: place.plural.to_owned(),
            namespace: place.namespace.clone().unwrap_or_default(),
            name: body["metadata"]["name"].as_str()?.to_owned(),
        })
    });
    let Some(key) = key else {
        return answer::refusal(422, "metadata.name: Required value");
    };
    if place.subresource.as_deref() == Some("scale") {
        return scale::answer(shared, &key, &method, &body);
    }
    let is_there = shared.store().object(&key).is_some();
    let found = match method {
        Method::POST if place.plural == "events" && is_there => {
            return answer::refusal(409, "it already exists");
        }
        Method::PATCH if is_merge => match merge::merge(shared, &key, &body).transpose() {
            Ok(merged) => merged,
            Err(conflict) => return conflict,
        },
        Method::GET => {
            let found = shared.store().object(&key).cloned();
            shared.put_after_read(&key);
            found
        }
        Method::DELETE => shared.delete(&key),
        _ => Some(shared.put(key, body)),
    };
    found.map_or_else(
        || answer::refusal(404, "not found"),
        |object| answer::json(200, &object),
    )
}

/// A token of a service account: every one has the rights of the proxy.
fn issue(shared: &Shared, place: &Place, asked: &Value) -> Answer {
    let key = place.key().unwrap();
    let Some(account) = shared.store().object(&key).cloned() else {
        return answer::refusal(404, "serviceaccounts not found");
    };
    let mut access = shared.access();
    let token = format!("issued-{}", access.tokens.len());
    access.tokens.insert(token.clone());
    let audiences = asked["spec"]["audiences"]
        .as_array()
        .filter(|audiences| !audiences.is_empty());
    let audiences = audiences.cloned().unwrap_or_else(|| vec![json!(reviews::SERVER)]);
    let known = reviews::of_account(&key, &account, &audiences);
    shared.reviews().tokens.insert(token.clone(), known);
    let status = json!({"token": token, "expirationTimestamp": "2099-01-01T00:00:00Z"});
    let request = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec":
        {"audiences": audiences}, "status": status});
    answer::json(201, &request)
}

const MERGE: &str = "application/merge-patch+json";
