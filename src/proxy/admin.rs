//! The API of operators, behind the pages of the admin port.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;

use crate::daemon::admin::{Handlers, Routes, caller};
use crate::proxy::connection::Shared;
use axum::response::IntoResponse as _;
use axum::response::Response;
use axum::routing::get;
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use hyper::header::HeaderValue;

mod activity;
mod clients;
mod diagnosis;
mod events;
pub(crate) mod handlers;
mod listing;
mod refusals;
mod request;
mod targets;
mod tunnels;
mod view;

/// The pages of the probes, and the API of operators.
pub(crate) fn routes(handlers: Handlers, shared: &Arc<Shared>) -> Routes {
    let parts = [
        diagnosis::router(),
        targets::router(),
        clients::router(),
        events::router(),
        refusals::router(),
    ];
    let api = parts.into_iter().fold(tunnels::router(), Router::merge);
    let api = api
        .method_not_allowed_fallback(request::other_method)
        .layer(DefaultBodyLimit::max(request::LONGEST_BODY))
        .layer(axum::middleware::from_fn(caller::only_from_here))
        .with_state(Arc::clone(shared))
        .merge(activity::router().with_state(Arc::clone(shared)));
    Routes::probes(handlers).and(router().merge(api), PATHS)
}

const PATHS: &str = "here are /metrics, /livez, /readyz, /drain, /activity, /tunnels, /targets, /clients, /refusals and \
                     /events: /openapi.json describes them\n";

/// The route.
fn router() -> Router {
    Router::new().route("/openapi.json", get(document))
}

async fn document() -> Response {
    let kind = HeaderValue::from_static("application/json");
    (StatusCode::OK, [(CONTENT_TYPE, kind)], DOCUMENT).into_response()
}

const DOCUMENT: &str = include_str!("../../docs/openapi.json");

#[cfg(test)]
mod tests;
