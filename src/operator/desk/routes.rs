//! Serves the page's requests: its own files, the state of all replicas, one tunnel, and the operator's changes.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::guard::{self, DeskSecret, RequestCheck};
use super::hub::Hub;
use super::state::Changes;
use crate::base::json::Object;
use crate::daemon::admin::api::{CloseRequest, CloseResponse, Rates};
use crate::daemon::admin::response::{Answer as Reply, HttpError};
use crate::operator::replicas::{
    self, AdminRequest, Reason, ReasonError, Replica, ReplicaError, ReplicaStatus as ReplicaState, TargetName,
    TunnelSelector,
};

/// Returns the routes of the page at that address.
pub(super) fn router(hub: Arc<Hub>, secret: DeskSecret, address: SocketAddr) -> Router {
    let guard = RequestCheck::new(address, secret);
    let api = Router::new()
        .route("/api/state", get(state))
        .route("/api/ended", get(ended))
        .route("/api/tunnel", get(tunnel))
        .route("/api/diagnosis", get(diagnosis))
        .route("/api/close", post(close))
        .route("/api/close-target", post(close_target))
        .route("/api/limit", post(limit))
        .route("/api/cordon", post(cordon))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(from_fn_with_state(Arc::clone(&guard), guard::with_secret))
        .with_state(hub);
    Router::new()
        .route("/", get(page))
        .route("/assets/{name}", get(file))
        .merge(api)
        .fallback(async || StatusCode::NOT_FOUND)
        .layer(from_fn_with_state(guard, guard::around))
}

#[derive(Debug, Deserialize)]
struct ChangesQuery {
    #[serde(default)]
    since: u64,
}

async fn state(State(hub): State<Arc<Hub>>, Query(ChangesQuery { since }): Query<ChangesQuery>) -> Json<Changes> {
    Json(hub.changes(since).await)
}

async fn ended(State(hub): State<Arc<Hub>>) -> Json<Vec<Value>> {
    Json(hub.ended())
}

/// A tunnel of a replica.
#[derive(Debug, Deserialize)]
struct TunnelPath {
    replica: String,
    tunnel_id: String,
}

/// Returns all that its replica reports about a tunnel; `null` if it has ended.
async fn tunnel(State(hub): State<Arc<Hub>>, Query(which): Query<TunnelPath>) -> Reply<Value> {
    let path = path_of(&which.tunnel_id)?;
    hub.fetch(&which.replica, path).await
}

/// Returns why a tunnel is slow, by observing it for a second; `null` if it has ended.
async fn diagnosis(State(hub): State<Arc<Hub>>, Query(which): Query<TunnelPath>) -> Reply<Value> {
    let path = format!("{}/diagnosis", path_of(&which.tunnel_id)?);
    hub.fetch(&which.replica, path).await
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Close {
    replica: String,
    tunnel_id: String,
    reason: String,
    #[serde(default, rename = "move")]
    is_move: bool,
}

/// The answer to a change.
#[derive(Debug, Default, Serialize)]
struct ChangeResponse {
    /// The ids of the tunnels that are being closed.
    closed: Vec<String>,
    /// The replicas that refused, or did not answer: those without an answer may have made the change.
    faults: Vec<ReplicaState>,
}

async fn close(State(hub): State<Arc<Hub>>, Json(Object(close)): Json<Object<Close>>) -> Reply<ChangeResponse> {
    let closing = closing(&close.reason, close.is_move)?;
    let ask = AdminRequest::with_body("DELETE", path_of(&close.tunnel_id)?, &closing);
    let answer = hub.find(&close.replica)?.find::<CloseResponse>(&ask).await;
    hub.refresh();
    // A 404 means that the tunnel has ended.
    let CloseResponse { closed, .. } = answer?.unwrap_or_default();
    let faults = Vec::new();
    Ok(Json(ChangeResponse { closed, faults }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CloseTarget {
    target: String,
    reason: String,
}

async fn close_target(
    State(hub): State<Arc<Hub>>,
    Json(Object(close)): Json<Object<CloseTarget>>,
) -> Reply<ChangeResponse> {
    let closing = closing(&close.reason, false)?;
    let target: TargetName = close.target.parse().map_err(HttpError::bad)?;
    let query = replicas::Query {
        target: Some(target.to_string()),
        ..replicas::Query::default()
    };
    let ended = hub.replicas.close(&TunnelSelector::Query(query), &closing).await;
    hub.refresh();
    let ended = ended.map_err(|error| gateway(error.to_string()))?;
    Ok(Json(ChangeResponse {
        closed: ended.changed.into_iter().map(|of| of.item.tunnel_id).collect(),
        faults: faults(ended.replicas),
    }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limit {
    replica: String,
    tunnel_id: String,
    rates: Object<Rates>,
}

async fn limit(State(hub): State<Arc<Hub>>, Json(Object(limit)): Json<Object<Limit>>) -> Reply<ChangeResponse> {
    let ask = AdminRequest::with_body("PATCH", path_of(&limit.tunnel_id)?, &limit.rates.0);
    hub.find(&limit.replica)?.request::<Value>(&ask).await?;
    hub.refresh();
    Ok(Json(ChangeResponse::default()))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cordon {
    target: String,
    is_cordoned: bool,
}

async fn cordon(State(hub): State<Arc<Hub>>, Json(Object(cordon)): Json<Object<Cordon>>) -> Reply<ChangeResponse> {
    let target: TargetName = cordon.target.parse().map_err(HttpError::bad)?;
    let cordoned = hub.replicas.cordon(&target, cordon.is_cordoned).await;
    hub.refresh();
    let cordoned = cordoned.map_err(|error| gateway(error.to_string()))?;
    let faults = faults(cordoned.replicas);
    if cordoned.changed.is_empty() && faults.is_empty() {
        let error = format!("no target {target} is on the allowlist of any replica");
        return Err(HttpError::unknown(error));
    }
    let closed = Vec::new();
    Ok(Json(ChangeResponse { closed, faults }))
}

/// Returns the replicas that refused or did not answer. A 404 is not an error here.
fn faults(mut replicas: Vec<ReplicaState>) -> Vec<ReplicaState> {
    replicas.retain(|state| !state.answers());
    replicas
}

/// Returns the request that closes a tunnel, with the operator's reason.
fn closing(reason: &str, is_move: bool) -> Result<CloseRequest, HttpError> {
    let reason: Reason = reason
        .parse()
        .map_err(|error: ReasonError| HttpError::bad(error.to_string()))?;
    Ok(CloseRequest {
        reason: reason.into(),
        is_move,
        refused_for: None,
    })
}

/// Returns the path of a tunnel with an id such as `89ab4567-1c`.
fn path_of(id: &str) -> Result<String, HttpError> {
    let is_of_id = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    match !id.is_empty() && id.len() <= MAX_ID && id.bytes().all(is_of_id) {
        true => Ok(format!("/tunnels/{id}")),
        false => Err(HttpError::bad("tunnel_id: this is not the id of a tunnel")),
    }
}

impl Hub {
    async fn fetch(&self, replica: &str, path: String) -> Reply<Value> {
        // `null` instead of a 404, which browsers would log as an error.
        let answer = self.find(replica)?.find(&AdminRequest::get(path)).await?;
        Ok(Json(answer.unwrap_or_default()))
    }

    fn find(&self, name: &str) -> Result<Replica, HttpError> {
        self.replica(name)
            .ok_or_else(|| HttpError::unknown("this replica is gone"))
    }
}

/// Returns a 502: the replicas are not found, or one does not answer.
fn gateway(error: impl Into<String>) -> HttpError {
    HttpError::new(StatusCode::BAD_GATEWAY, error)
}

impl From<ReplicaError> for HttpError {
    fn from(error: ReplicaError) -> Self {
        let said = error.to_string();
        match &error {
            ReplicaError::Refused { status, .. } => {
                Self::new(StatusCode::from_u16(*status).unwrap_or(StatusCode::BAD_GATEWAY), said)
            }
            ReplicaError::Unreachable(_)
            | ReplicaError::Closed(_)
            | ReplicaError::Timeout(_)
            | ReplicaError::Unexpected(_)
            | ReplicaError::LimitExceeded(_) => gateway(said),
        }
    }
}

const MAX_BODY: usize = 16 * 1024;
const MAX_ID: usize = 64;

/// Returns the page.
pub(super) async fn page() -> Response {
    ([(CONTENT_TYPE, HTML)], include_str!("assets/index.html")).into_response()
}

/// Returns a file of the page.
pub(super) async fn file(Path(name): Path<String>) -> Response {
    match FILES.iter().find(|(own, _, _)| *own == name) {
        Some((_, kind, text)) => ([(CONTENT_TYPE, *kind)], *text).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// Names, media types and contents.
const FILES: [(&str, &str, &str); 13] = [
    ("api.js", SCRIPT, include_str!("assets/api.js")),
    ("chart.js", SCRIPT, include_str!("assets/chart.js")),
    ("columns.js", SCRIPT, include_str!("assets/columns.js")),
    ("desk.css", STYLE, include_str!("assets/desk.css")),
    ("desk.js", SCRIPT, include_str!("assets/desk.js")),
    ("details.js", SCRIPT, include_str!("assets/details.js")),
    ("dialogs.js", SCRIPT, include_str!("assets/dialogs.js")),
    ("format.js", SCRIPT, include_str!("assets/format.js")),
    ("grid.js", SCRIPT, include_str!("assets/grid.js")),
    ("icon.svg", IMAGE, include_str!("assets/icon.svg")),
    ("model.js", SCRIPT, include_str!("assets/model.js")),
    ("pages.js", SCRIPT, include_str!("assets/pages.js")),
    ("questions.js", SCRIPT, include_str!("assets/questions.js")),
];

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_beside_the_page_is_served_and_holds_nothing_that_the_policy_forbids() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/operator/desk/assets");
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let mut served: Vec<_> = FILES.iter().map(|(name, _, _)| *name).collect();
        served.push("index.html");
        served.sort_unstable();
        assert_eq!(names, served);
        let texts = FILES.iter().map(|(name, _, text)| (*name, *text));
        for (name, text) in texts.chain([("index.html", include_str!("assets/index.html"))]) {
            let foreign = text.replace("http://www.w3.org/2000/svg", "");
            for word in [
                "http://",
                "https://",
                "innerHTML",
                "insertAdjacentHTML",
                "eval(",
                " style=",
                "onclick",
            ] {
                assert!(!foreign.contains(word), "{name}: {word}");
            }
        }
    }
}
