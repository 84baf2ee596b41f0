//! `/restrictions`: limits and blocks of users, clients and targets, each for some time.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::extract::State;
use tokio::time::Instant;

use super::extract::{JsonBody, PageQuery, QueryParams, find_target, with_target_name};
use super::tunnels::{close, matching, parse_rates};
use super::view::{millis, rfc3339};
use crate::base::text::excerpt;
use crate::base::values::timeout;
use crate::daemon::admin::api::{self, CloseRequest, Query, Rates, RestrictionKind, RestrictionRequest};
use crate::daemon::admin::response::{Answer, HttpError};
use crate::proxy::connection::Shared;
use crate::proxy::open_tunnels::restrictions::{Effect, MAX_RESTRICTIONS, Restriction};
use crate::tunnel::direction::{Both, Direction};
use crate::tunnel::limits::Rate;

/// Lists the restrictions, the oldest first.
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    QueryParams(_): QueryParams<PageQuery>,
) -> Json<api::Restrictions> {
    let all = shared.registry.restrictions.list();
    let restrictions: Vec<_> = all.iter().map(|one| view(one, &shared)).collect();
    Json(api::Restrictions {
        total: restrictions.len(),
        restrictions,
        next: None,
    })
}

/// Adds a restriction. A block also ends the open tunnels, unless it keeps them.
pub(super) async fn add(
    State(shared): State<Arc<Shared>>,
    JsonBody(request): JsonBody<RestrictionRequest>,
) -> Answer<api::Restriction> {
    let of = selection(&request, &shared)?;
    if let Some(target) = &of.target {
        find_target(target, &shared)?;
    }
    let time = request.time.as_deref().ok_or("how long, such as 10m?");
    let time = time
        .and_then(timeout)
        .map_err(|error| HttpError::bad(format!("for: {error}")))?;
    let effect = match request.kind {
        RestrictionKind::Limit => Effect::Limit(rates(&request)?),
        RestrictionKind::Block => Effect::Block {
            reason: excerpt(&request.reason, MAX_REASON).into(),
            keeps_tunnels: request.keeps_tunnels,
        },
    };
    let until = Instant::now() + time;
    let restriction = Restriction { of, effect, until };
    if !shared.registry.restrictions.add(restriction.clone()) {
        let said = format!("there are {MAX_RESTRICTIONS} restrictions: end one of them");
        return Err(HttpError::bad(said));
    }
    shared.registry.apply_limits();
    let mut answer = view(&restriction, &shared);
    if restriction.is_block() && !request.keeps_tunnels {
        // After the block has begun: a tunnel that opens later ends by itself.
        let closing = CloseRequest {
            reason: request.reason,
            is_move: false,
            refused_for: request.time,
        };
        answer.tunnels = close(&matching(&restriction.of, &shared), &closing, &shared)?
            .closed
            .len();
    }
    Ok(Json(answer))
}

/// Ends a restriction.
pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    JsonBody(request): JsonBody<RestrictionRequest>,
) -> Answer<api::Restriction> {
    let of = selection(&request, &shared)?;
    let is_block = request.kind == RestrictionKind::Block;
    let removed = shared.registry.restrictions.remove(is_block, &of);
    // Also without one: others may have expired at this moment.
    shared.registry.apply_limits();
    let removed = removed.ok_or_else(|| HttpError::unknown("there is no such restriction"))?;
    Ok(Json(view(&removed, &shared)))
}

/// Returns whom the restriction is for.
fn selection(request: &RestrictionRequest, shared: &Shared) -> Result<Query, HttpError> {
    let of = Query {
        target: request.target.clone(),
        client: request.client.map(|client| client.to_canonical()),
        user: request.user.clone(),
        ..Query::default()
    };
    if of.is_for_all() {
        return Err(HttpError::bad("of whom? give target, client or user"));
    }
    // An empty value comes from an unset variable, and would be for every tunnel without a user.
    if [&of.target, &of.user].iter().any(|text| text.as_deref() == Some("")) {
        return Err(HttpError::bad("target, user: the value is empty"));
    }
    if request.kind == RestrictionKind::Block && of.target.is_some() {
        return Err(HttpError::bad("target: cordon it instead of blocking it"));
    }
    Ok(with_target_name(&of, shared))
}

fn rates(request: &RestrictionRequest) -> Result<Both<Option<Rate>>, HttpError> {
    let mut rates = Both::default();
    let given = Rates {
        download: request.download.clone(),
        upload: request.upload.clone(),
    };
    for (direction, rate) in parse_rates(&given)? {
        rates[direction] = rate;
    }
    if rates == Both::default() {
        return Err(HttpError::bad("download, upload: which rate?"));
    }
    Ok(rates)
}

fn view(restriction: &Restriction, shared: &Shared) -> api::Restriction {
    let left = restriction.until.saturating_duration_since(Instant::now());
    let (rates, reason) = match &restriction.effect {
        Effect::Limit(rates) => (*rates, ""),
        Effect::Block { reason, .. } => (Both::default(), &**reason),
    };
    let text = |direction| rates[direction].map(|rate| rate.to_string()).unwrap_or_default();
    api::Restriction {
        kind: match restriction.is_block() {
            true => RestrictionKind::Block,
            false => RestrictionKind::Limit,
        },
        target: restriction.of.target.clone().unwrap_or_default(),
        client_address: restriction.of.client,
        user_name: restriction.of.user.clone().unwrap_or_default(),
        download: text(Direction::Download),
        upload: text(Direction::Upload),
        reason: reason.to_owned(),
        until: rfc3339(SystemTime::now() + left),
        left_ms: millis(left),
        tunnels: matching(&restriction.of, shared).len(),
    }
}

/// Characters of a reason.
const MAX_REASON: usize = 200;
