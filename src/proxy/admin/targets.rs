//! `/targets`: the allowlist with its open tunnels, and which targets take no new ones.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};

use super::listing::{self, Part};
use super::request::{Listed, Options};
use super::view;
use crate::daemon::admin::answer::{Answer, Unserved};
use crate::daemon::admin::api;
use crate::policy::allowlist::Target;
use crate::proxy::connection::Shared;
use crate::proxy::open_tunnels::events::{Change, Event};
use crate::proxy::open_tunnels::open_tunnel::OpenTunnel;

/// The routes.
pub(super) fn router() -> Router<Arc<Shared>> {
    Router::new()
        .route("/targets", get(list))
        .route("/targets/{namespace}/{service}", get(one))
        .route("/targets/{namespace}/{service}/cordon", post(cordon))
        .route("/targets/{namespace}/{service}/uncordon", post(uncordon))
}

async fn list(State(shared): State<Arc<Shared>>, Options(part): Options<Part>) -> Answer<api::Targets> {
    let mut tunnels: HashMap<*const Target, usize> = HashMap::new();
    for open in shared.registry.all() {
        if let Some(target) = &open.facts.target {
            *tunnels.entry(Arc::as_ptr(target)).or_default() += 1;
        }
    }
    let name = |target: &Arc<Target>| (0, target.id().to_string());
    let listing::Listed { items, total, next } = part.of(shared.allowlist.all(), name).map_err(Unserved::bad)?;
    let row = |target: &Arc<Target>| {
        let tunnels = tunnels.get(&Arc::as_ptr(target)).copied();
        view::target(target, tunnels.unwrap_or_default())
    };
    let targets = items.iter().map(row).collect();
    Ok(Json(api::Targets { targets, total, next }))
}

async fn one(State(shared): State<Arc<Shared>>, Listed(target): Listed) -> Json<api::Target> {
    Json(view(&target, &shared))
}

async fn cordon(State(shared): State<Arc<Shared>>, Listed(target): Listed) -> Json<api::Target> {
    target.cordon(true);
    changed(&target, Change::Cordoned, &shared)
}

async fn uncordon(State(shared): State<Arc<Shared>>, Listed(target): Listed) -> Json<api::Target> {
    target.cordon(false);
    changed(&target, Change::Uncordoned, &shared)
}

fn changed(target: &Arc<Target>, change: Change, shared: &Shared) -> Json<api::Target> {
    let name = || Event::Changed(target.id().to_string().into(), change);
    shared.registry.events.tell(name);
    Json(view(target, shared))
}

fn view(target: &Arc<Target>, shared: &Shared) -> api::Target {
    let tunnels = shared.registry.all();
    view::target(target, tunnels.iter().filter(|open| is_of(open, target)).count())
}

fn is_of(open: &OpenTunnel, target: &Arc<Target>) -> bool {
    open.facts.target.as_ref().is_some_and(|own| Arc::ptr_eq(own, target))
}
