//! `/openapi.json`: the description of the API, which is docs/openapi.json. It names no client and no user, so that every peer
//! may read it.

use axum::Router;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};

/// The route.
pub(super) fn router() -> Router {
    Router::new().route("/openapi.json", get(document))
}

async fn document() -> Response {
    let kind = HeaderValue::from_static("application/json");
    (StatusCode::OK, [(CONTENT_TYPE, kind)], DOCUMENT).into_response()
}

const DOCUMENT: &str = include_str!("../../../docs/openapi.json");
