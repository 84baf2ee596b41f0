//! `/refusals`: those since the start of the process, by reason.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};

use super::view;
use crate::daemon::admin::api;
use crate::proxy::connection::Shared;

/// The route.
pub(super) fn router() -> Router<Arc<Shared>> {
    Router::new().route("/refusals", get(list))
}

async fn list(State(shared): State<Arc<Shared>>) -> Json<api::Refusals> {
    let all = shared.registry.refusals.all().into_iter();
    let reasons = all.map(|(reason, (count, last))| api::RefusalReason {
        reason: reason.to_owned(),
        count,
        last: view::rfc3339(last),
    });
    let mut reasons: Vec<_> = reasons.collect();
    reasons.sort_by_key(|reason| Reverse(reason.count));
    Json(api::Refusals { reasons })
}
