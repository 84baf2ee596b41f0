//! The API of operators, behind the pages of the admin port.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;

use crate::daemon::admin::{Handlers, Routes, caller};
use crate::tunnel::Shared;

mod activity;
mod asked;
mod clients;
mod diagnosis;
mod events;
mod listing;
mod openapi;
mod refusals;
mod rows;
mod targets;
mod tunnels;
mod view;

/// The pages of the probes, and the API of operators.
pub(super) fn routes(handlers: Handlers, shared: &Arc<Shared>) -> Routes {
    let parts = [
        diagnosis::router(),
        targets::router(),
        clients::router(),
        events::router(),
        refusals::router(),
    ];
    let api = parts.into_iter().fold(tunnels::router(), Router::merge);
    let api = api
        .method_not_allowed_fallback(asked::other_method)
        .layer(DefaultBodyLimit::max(asked::LONGEST_BODY))
        .layer(axum::middleware::from_fn(caller::only_from_here))
        .with_state(Arc::clone(shared))
        .merge(activity::router().with_state(Arc::clone(shared)));
    Routes::probes(handlers).and(openapi::router().merge(api), PATHS)
}

const PATHS: &str = "here are /metrics, /livez, /readyz, /drain, /activity, /tunnels, /targets, /clients, /refusals and \
                     /events: /openapi.json describes them\n";

#[cfg(test)]
mod tests;
