//! The pages of probes and scrapes: `/metrics`, `/livez`, `/readyz` and `/drain`.

use std::fmt::Write;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Extension, Router, middleware};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::caller::{Caller, ScrapeNetworks, only_scrapers};
use super::response::text;
use crate::daemon::readiness::Readiness;
use crate::tunnel::exposition::CONTENT_TYPE as OF_METRICS;

/// The handlers of the pages.
pub struct Handlers {
    /// The conditions of `/readyz`.
    pub readiness: Readiness,
    /// Returns more lines for `/readyz?verbose`.
    pub remarks: Box<dyn Fn() -> String + Send + Sync>,
    /// Writes the page `/metrics`.
    pub scrape: Box<dyn Fn() -> String + Send + Sync>,
    /// The peers that may read it.
    pub scrape_networks: ScrapeNetworks,
    /// The answer of `/drain`.
    pub drain_status: Box<dyn Fn() -> DrainStatus + Send + Sync>,
    /// Cancelled by a POST to `/drain`.
    pub drain_request: CancellationToken,
}

impl std::fmt::Debug for Handlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handlers")
            .field("readiness", &self.readiness)
            .finish_non_exhaustive()
    }
}

/// The state of the drain: the answer of `/drain`, as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainStatus {
    /// `serving`, `not_ready`, `closing_listeners`, `draining`, `closing` or `terminated`: see [`Phase`](crate::tunnel::drain::Phase).
    pub phase: String,
    /// Tunnels, open or with their dial in progress.
    pub tunnels: u32,
    /// The resumable ones of these tunnels: a drain closes them first, and their sessions go on. `None` for an anchor,
    /// whose sessions end with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumable: Option<u32>,
    /// Connections of clients.
    pub connections: u32,
}

/// The handlers, and the last page of metrics with its time.
struct Pages {
    handlers: Handlers,
    last: Mutex<Option<(Instant, Weak<[u8]>)>>,
}

impl Pages {
    /// Returns the page of metrics. Requests within a second share the page while one of them still holds it, since any
    /// peer may send requests and read no answer.
    fn metrics(&self) -> Arc<[u8]> {
        let mut last = self.last.lock();
        let young = last.as_ref().filter(|(at, _)| at.elapsed() < SECOND);
        if let Some(page) = young.and_then(|(_, page)| page.upgrade()) {
            return page;
        }
        let page: Arc<[u8]> = (self.handlers.scrape)().into_bytes().into();
        *last = Some((Instant::now(), Arc::downgrade(&page)));
        page
    }
}

/// Returns the routes of the pages.
pub(super) fn router(handlers: Handlers) -> Router {
    let last = Mutex::default();
    let permission = middleware::from_fn_with_state(handlers.scrape_networks.clone(), only_scrapers);
    Router::new()
        .route("/metrics", get(metrics).route_layer(permission))
        .route("/livez", get(async || text(StatusCode::OK, "ok\n")))
        .route("/readyz", get(readyz))
        .route("/drain", get(drain_status).post(begin_drain))
        .with_state(Arc::new(Pages { handlers, last }))
}

async fn metrics(State(pages): State<Arc<Pages>>) -> Response {
    ([(CONTENT_TYPE, OF_METRICS)], Bytes::from_owner(pages.metrics())).into_response()
}

async fn readyz(State(pages): State<Arc<Pages>>, RawQuery(query): RawQuery) -> Response {
    let (readiness, verbose) = (&pages.handlers.readiness, query.as_deref() == Some("verbose"));
    let conditions = readiness.conditions();
    let ready = conditions.iter().all(|&(_, met)| met);
    // After the conditions, so that it is not older than they are.
    let mut page = readiness.note();
    for (name, met) in conditions {
        if verbose || !met {
            let (sign, state) = if met { ('+', "ok") } else { ('-', "not ready") };
            // Writing to a String does not fail.
            writeln!(page, "[{sign}]{name} {state}").ok();
        }
    }
    if verbose {
        page.push_str(&(pages.handlers.remarks)());
    }
    page.push_str(if ready { "ok\n" } else { "not ready\n" });
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    text(status, page)
}

async fn drain_status(State(pages): State<Arc<Pages>>) -> Response {
    page_of(&(pages.handlers.drain_status)(), StatusCode::OK)
}

async fn begin_drain(
    State(pages): State<Arc<Pages>>,
    Extension(caller): Extension<Caller>,
    fields: HeaderMap,
) -> Response {
    match caller.require_local_caller(&fields) {
        Ok(()) => {
            pages.handlers.drain_request.cancel();
            page_of(&(pages.handlers.drain_status)(), StatusCode::ACCEPTED)
        }
        Err(reason) => text(StatusCode::FORBIDDEN, format!("{reason}\n")),
    }
}

fn page_of(drain: &DrainStatus, status: StatusCode) -> Response {
    // Serializing strings and numbers does not fail.
    let mut page = serde_json::to_string(drain).unwrap_or_default();
    page.push('\n');
    (status, [(CONTENT_TYPE, "application/json")], page).into_response()
}

/// The age up to which a page is shared. A connection lasts 30 s at most, so no more than 31 pages are in memory.
const SECOND: Duration = Duration::from_secs(1);
