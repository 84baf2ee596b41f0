//! `/targets`: the allowlist with its open tunnels, and which targets take no new ones.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use hyper::StatusCode;

use super::answer::fault;
use super::listing::Part;
use super::view;
use crate::allowlist::Target;
use crate::api::Targets;
use crate::tunnel::Shared;
use crate::tunnel::events::{Change, Event};
use crate::tunnel::registry::OpenTunnel;

/// The routes.
pub(super) fn router() -> Router<Arc<Shared>> {
    Router::new()
        .route("/targets", get(list))
        .route("/targets/{namespace}/{service}/cordon", post(cordon))
        .route("/targets/{namespace}/{service}/uncordon", post(uncordon))
}

async fn list(State(shared): State<Arc<Shared>>, Query(part): Query<Part>) -> Response {
    let mut tunnels: HashMap<*const Target, usize> = HashMap::new();
    for open in shared.registry.all() {
        if let Some(target) = &open.facts.target {
            *tunnels.entry(Arc::as_ptr(target)).or_default() += 1;
        }
    }
    match part.of(shared.allowlist.all(), |target| (0, target.id().to_string())) {
        Ok(listed) => {
            let count = |target: &Arc<Target>| tunnels.get(&Arc::as_ptr(target)).copied().unwrap_or_default();
            let targets = listed.items.iter().map(|target| view::target(target, count(target)));
            Json(Targets {
                targets: targets.collect(),
                total: listed.total,
                next: listed.next,
            })
            .into_response()
        }
        Err(said) => fault(StatusCode::BAD_REQUEST, said).into_response(),
    }
}

async fn cordon(shared: State<Arc<Shared>>, name: Path<(String, String)>) -> Response {
    set(&shared, &name, true)
}

async fn uncordon(shared: State<Arc<Shared>>, name: Path<(String, String)>) -> Response {
    set(&shared, &name, false)
}

fn set(shared: &Shared, (namespace, service): &(String, String), is_cordoned: bool) -> Response {
    let is_it = |target: &Arc<Target>| *target.id().namespace == **namespace && *target.id().service == **service;
    let Some(target) = shared.allowlist.all().into_iter().find(is_it) else {
        let said = format!("no target {namespace}/{service} is on the allowlist");
        return fault(StatusCode::NOT_FOUND, said).into_response();
    };
    target.cordon(is_cordoned);
    let change = if is_cordoned {
        Change::Cordoned
    } else {
        Change::Uncordoned
    };
    let name = || Event::Changed(target.id().to_string().into(), change);
    shared.registry.events.tell(name);
    let tunnels = shared.registry.all();
    let of_it = |open: &&Arc<_>| is_of(open, &target);
    Json(view::target(&target, tunnels.iter().filter(of_it).count())).into_response()
}

fn is_of(open: &OpenTunnel, target: &Arc<Target>) -> bool {
    open.facts.target.as_ref().is_some_and(|own| Arc::ptr_eq(own, target))
}
