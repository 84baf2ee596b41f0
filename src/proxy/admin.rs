//! The API of operators and the pages of the admin port: both on the state of the running process.

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use axum::{Router, middleware};
use hyper::header::CONTENT_TYPE;
use tokio_util::sync::CancellationToken;

use crate::daemon::admin::{DrainStatus, Handlers, Routes, ScrapeNetworks, caller};
use crate::daemon::readiness::Readiness;
use crate::proxy::connection::Shared;
use crate::tunnel::exposition::raise_to;

mod diagnosis;
mod events;
mod extract;
mod past;
mod restrictions;
mod targets;
mod tunnels;
mod view;

/// Returns the pages of the probes, and the API of operators. A POST to `/drain` cancels `drain_request`.
pub(crate) fn routes(
    shared: &Arc<Shared>,
    readiness: &Readiness,
    drain_request: &CancellationToken,
    scrape_networks: &ScrapeNetworks,
) -> Routes {
    let handlers = Handlers {
        readiness: readiness.clone(),
        remarks: remarks(Arc::clone(shared)),
        scrape: metrics_source(Arc::clone(shared)),
        scrape_networks: scrape_networks.clone(),
        drain_status: drain_source(Arc::clone(shared)),
        drain_request: drain_request.clone(),
    };
    let permission = middleware::from_fn_with_state(scrape_networks.clone(), caller::only_scrapers);
    let api = Router::new()
        .route("/tunnels", get(tunnels::list).delete(tunnels::close_those))
        .route(
            "/tunnels/{id}",
            get(tunnels::one).delete(tunnels::close_one).patch(tunnels::limit),
        )
        .route("/tunnels/{id}/diagnosis", get(diagnosis::diagnose))
        .route("/clients", get(tunnels::clients))
        .route("/targets", get(targets::list))
        .route("/targets/{namespace}/{service}", get(targets::one))
        .route("/targets/{namespace}/{service}/diagnosis", get(targets::diagnose))
        .route("/targets/{namespace}/{service}/cordon", post(targets::cordon))
        .route("/targets/{namespace}/{service}/uncordon", post(targets::uncordon))
        .route(
            "/restrictions",
            get(restrictions::list)
                .put(restrictions::add)
                .delete(restrictions::remove),
        )
        .route("/ended", get(past::ended))
        .route("/refusals", get(past::refusals))
        .route("/events", get(events::events))
        .method_not_allowed_fallback(extract::method_not_allowed)
        .layer(DefaultBodyLimit::max(extract::MAX_BODY))
        .layer(middleware::from_fn(caller::only_from_here))
        // Scrapers learn whether a target is used; only this host learns the users.
        .route("/activity", get(targets::activity).route_layer(permission))
        .route(
            "/openapi.json",
            get(async || ([(CONTENT_TYPE, "application/json")], DOCUMENT)),
        )
        .with_state(Arc::clone(shared));
    Routes::probes(handlers).and(api, PATHS)
}

/// Returns the writer of the remarks of `/readyz?verbose`.
fn remarks(shared: Arc<Shared>) -> Box<dyn Fn() -> String + Send + Sync> {
    Box::new(move || {
        let since = shared.allowlist.unconfirmed_since().map(view::rfc3339);
        let remark = since.map(|since| {
            format!("the API server does not answer: the allowlist has not been confirmed since {since}\n")
        });
        let unlisted = shared.allowlist.unlisted().into_iter();
        let unlisted = unlisted.map(|objects| {
            format!(
                "the API server has not listed the {objects}: they are not on the allowlist, or no new tunnel begins\n"
            )
        });
        remark.into_iter().chain(unlisted).collect()
    })
}

/// Returns the reader of the drain's state, for the page `/drain`.
fn drain_source(shared: Arc<Shared>) -> Box<dyn Fn() -> DrainStatus + Send + Sync> {
    Box::new(move || DrainStatus {
        phase: shared.drain.phase().label().to_owned(),
        tunnels: shared.tunnels.taken(),
        resumable: Some(u32::try_from(shared.drain.resumable()).unwrap_or(u32::MAX)),
        connections: u32::try_from(shared.metrics.connections_active.get()).unwrap_or_default(),
    })
}

/// Returns the writer of the page `/metrics`. The writer also sets the gauges whose values other parts keep.
fn metrics_source(shared: Arc<Shared>) -> Box<dyn Fn() -> String + Send + Sync> {
    Box::new(move || {
        let metrics = &shared.metrics;
        metrics.pipes_in_use.set(as_gauge(shared.resources.pipes_in_use()));
        metrics.relay_splices(shared.resources.splices());
        metrics.tunnels_resumable.set(as_gauge(shared.drain.resumable()));
        metrics.anchors.set(as_gauge(shared.anchors.count()));
        metrics.anchor_streams.set(shared.anchors.tunnels().into());
        metrics.connections_unfinished.set(as_gauge(shared.unfinished.len()));
        metrics.allowlist_targets.set(as_gauge(shared.allowlist.targets()));
        metrics
            .allowlist_name_conflicts
            .set(as_gauge(shared.allowlist.conflicts()));
        shared.access.count();
        raise_to(
            &metrics.log_lines_dropped,
            shared.access_log.logs.lines_dropped() as u64,
        );
        metrics.encode().unwrap_or_else(|error| format!("# {error}\n"))
    })
}

fn as_gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

const PATHS: &str = "here are /metrics, /livez, /readyz, /drain, /activity, /tunnels, /targets, /clients, /restrictions, \
                     /ended, /refusals and /events: /openapi.json describes them\n";

const DOCUMENT: &str = include_str!("../../docs/openapi.json");

#[cfg(test)]
mod tests;
