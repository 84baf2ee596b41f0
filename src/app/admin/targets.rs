//! `/targets`: the allowlist with its open tunnels, and which targets take no new ones.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::routing::{get, post};
use axum::{Json, Router};

use super::answer::{Answer, Unserved};
use super::listing::Part;
use super::view;
use crate::allowlist::Target;
use crate::api::{self, Targets};
use crate::tunnel::Shared;
use crate::tunnel::events::{Change, Event};
use crate::tunnel::open_tunnel::OpenTunnel;

/// The routes.
pub(super) fn router() -> Router<Arc<Shared>> {
    Router::new()
        .route("/targets", get(list))
        .route("/targets/{namespace}/{service}/cordon", post(cordon))
        .route("/targets/{namespace}/{service}/uncordon", post(uncordon))
}

async fn list(State(shared): State<Arc<Shared>>, Query(part): Query<Part>) -> Answer<Targets> {
    let mut tunnels: HashMap<*const Target, usize> = HashMap::new();
    for open in shared.registry.all() {
        if let Some(target) = &open.facts.target {
            *tunnels.entry(Arc::as_ptr(target)).or_default() += 1;
        }
    }
    let name = |target: &Arc<Target>| (0, target.id().to_string());
    let listed = part.of(shared.allowlist.all(), name).map_err(Unserved::bad)?;
    let count = |target: &Arc<Target>| tunnels.get(&Arc::as_ptr(target)).copied().unwrap_or_default();
    let targets = listed.items.iter().map(|target| view::target(target, count(target)));
    Ok(Json(Targets {
        targets: targets.collect(),
        total: listed.total,
        next: listed.next,
    }))
}

async fn cordon(shared: State<Arc<Shared>>, name: Path<(String, String)>) -> Answer<api::Target> {
    set(&shared, &name, true)
}

async fn uncordon(shared: State<Arc<Shared>>, name: Path<(String, String)>) -> Answer<api::Target> {
    set(&shared, &name, false)
}

fn set(shared: &Shared, (namespace, service): &(String, String), is_cordoned: bool) -> Answer<api::Target> {
    let is_it = |target: &Arc<Target>| *target.id().namespace == **namespace && *target.id().service == **service;
    let target = shared.allowlist.all().into_iter().find(is_it);
    let target =
        target.ok_or_else(|| Unserved::unknown(format!("no target {namespace}/{service} is on the allowlist")))?;
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
    Ok(Json(view::target(&target, tunnels.iter().filter(of_it).count())))
}

fn is_of(open: &OpenTunnel, target: &Arc<Target>) -> bool {
    open.facts.target.as_ref().is_some_and(|own| Arc::ptr_eq(own, target))
}
