//! `/refusals`: those of the last hour, by reason and minute.

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
    let known = shared.registry.refusals.all().into_iter();
    let reasons = known.map(|known| api::RefusalReason {
        reason: known.reason.to_owned(),
        count: known.minutes.iter().copied().map(u64::from).sum(),
        last: view::rfc3339(known.last),
        minutes: known.minutes.to_vec(),
    });
    let mut reasons: Vec<_> = reasons.collect();
    reasons.sort_by_key(|reason| Reverse(reason.count));
    Json(api::Refusals { reasons })
}
