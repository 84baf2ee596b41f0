//! `/ended` and `/refusals`: the tunnels that have ended and the refusals of the last hour, the latest first.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;

use super::extract::{Page, PageQuery, QueryParams, SortKey, with_target_name};
use super::view::{millis, rfc3339};
use crate::daemon::admin::api::{self, Query, Subject};
use crate::daemon::admin::response::{Answer, HttpError};
use crate::policy::allowlist::TargetId;
use crate::proxy::connection::Shared;
use crate::proxy::open_tunnels::events::RefusedRequest;
use crate::proxy::open_tunnels::past::{EndedTunnel, Entry};
use crate::proxy::open_tunnels::refusals::RefusalEntry;
use crate::tunnel::direction::Direction;
use crate::tunnel::outcome::{Outcome, RefusalReason};

/// Lists the tunnels that have ended.
pub(super) async fn ended(
    State(shared): State<Arc<Shared>>,
    QueryParams(query): QueryParams<Query>,
) -> Answer<api::EndedTunnels> {
    if query.sort.is_some() {
        return Err(HttpError::bad("sort: the latest are first"));
    }
    let (mut past, query) = (shared.registry.ended.list(), with_target_name(&query, &shared));
    past.entries.retain(|ended| {
        let target = names(ended.target.as_ref());
        query.selects(&Subject {
            client: ended.client,
            user: &ended.user,
            target,
            node: &ended.node,
        })
    });
    let Query { limit, cursor, .. } = query;
    let page = PageQuery { limit, cursor }.page(past.entries, |ended| sort_key(&**ended, ended.id.number));
    let Page { items, total, next } = page.map_err(HttpError::bad)?;
    Ok(Json(api::EndedTunnels {
        ended: items.iter().map(|tunnel| ended_tunnel(tunnel)).collect(),
        total,
        complete_since: rfc3339(past.complete_since),
        next,
    }))
}

/// The query of `/refusals`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RefusalQuery {
    /// Present, with any value, for the refusals of the last hour besides the counts.
    detail: Option<String>,
    target: Option<String>,
    client: Option<std::net::IpAddr>,
    user: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

/// Returns the refusals since the start of the process by reason, and on request those of the last hour.
pub(super) async fn refusals(
    State(shared): State<Arc<Shared>>,
    QueryParams(query): QueryParams<RefusalQuery>,
) -> Answer<api::Refusals> {
    let counts = shared.registry.refusals.counts().into_iter();
    let in_words = |label| RefusalReason::ALL.iter().find(|reason| reason.label() == label);
    let reasons = counts.map(|(reason, (count, last))| api::RefusalsByReason {
        reason: reason.to_owned(),
        sentence: in_words(reason)
            .map(|reason| reason.phrase().to_string())
            .unwrap_or_default(),
        count,
        last: rfc3339(last),
    });
    let mut reasons: Vec<_> = reasons.collect();
    reasons.sort_by_key(|reason| Reverse(reason.count));
    let is_detailed = query.detail.is_some();
    // An invalid query is refused in any case.
    let past = Some(past_refusals(query, &shared)?).filter(|_| is_detailed);
    Ok(Json(api::Refusals { reasons, past }))
}

fn past_refusals(query: RefusalQuery, shared: &Shared) -> Result<api::PastRefusals, HttpError> {
    let RefusalQuery { limit, cursor, .. } = query;
    let query = Query {
        target: query.target,
        client: query.client,
        user: query.user,
        ..Query::default()
    };
    let (mut past, query) = (shared.registry.refusals.list(), with_target_name(&query, shared));
    past.entries.retain(|entry| {
        let RefusedRequest { user, claimed, .. } = &entry.request;
        let target = names(entry.request.target.as_ref());
        query.selects(&Subject {
            client: entry.request.client,
            user: claimed.as_deref().unwrap_or(user),
            target,
            node: "",
        })
    });
    let page = PageQuery { limit, cursor }.page(past.entries, |entry| sort_key(&**entry, entry.request.id.number));
    let Page { items, total, next } = page.map_err(HttpError::bad)?;
    Ok(api::PastRefusals {
        refusals: items.iter().map(|entry| refusal(entry)).collect(),
        total,
        complete_since: rfc3339(past.complete_since),
        next,
    })
}

fn names(target: Option<&TargetId>) -> [&str; 2] {
    target.map_or([""; 2], |id| [&id.namespace, &id.service])
}

/// Returns the sort key of an entry in a list: the latest are first.
fn sort_key(entry: &impl Entry, number: u64) -> SortKey<u64> {
    let since_1970 = entry.time().duration_since(UNIX_EPOCH).unwrap_or_default();
    (millis(since_1970), number)
}

fn ended_tunnel(tunnel: &EndedTunnel) -> api::EndedTunnel {
    let [namespace, service] = names(tunnel.target.as_ref());
    api::EndedTunnel {
        tunnel_id: tunnel.id.to_string(),
        ended: rfc3339(tunnel.time()),
        ago_ms: millis(tunnel.age()),
        age_ms: millis(tunnel.end - tunnel.start.established),
        client_address: tunnel.client,
        user_name: tunnel.user.to_string(),
        target_namespace: namespace.to_owned(),
        target_service: service.to_owned(),
        upstream_node: tunnel.node.to_string(),
        is_resumable: tunnel.is_resumable,
        bytes_sent: tunnel.bytes[Direction::Download],
        bytes_received: tunnel.bytes[Direction::Upload],
        reason: tunnel.close.reason.label().to_owned(),
        closed_by: tunnel.close.by.label().to_owned(),
        sentence: tunnel.close.to_string(),
        operator_reason: tunnel.operator.to_string(),
    }
}

fn refusal(entry: &RefusalEntry) -> api::PastRefusal {
    api::PastRefusal {
        request: refused(&entry.request),
        first: rfc3339(entry.first.started),
        last: rfc3339(entry.time()),
        ago_ms: millis(entry.age()),
        count: entry.count,
        others: entry.others,
    }
}

/// Returns a refused request.
pub(super) fn refused(request: &RefusedRequest) -> api::RefusedRequest {
    let outcome = request.outcome;
    let [namespace, service] = names(request.target.as_ref());
    api::RefusedRequest {
        tunnel_id: request.id.to_string(),
        client_address: request.client,
        user_name: request.user.to_string(),
        claimed_user: request.claimed.as_deref().unwrap_or_default().to_owned(),
        authority: request.authority.as_ref().map(ToString::to_string).unwrap_or_default(),
        target_namespace: namespace.to_owned(),
        target_service: service.to_owned(),
        status: outcome.status(),
        reason: outcome.reason().to_owned(),
        closed_by: outcome.by().label().to_owned(),
        sentence: match outcome {
            Outcome::Refused(refusal) => refusal.phrase().to_string(),
            Outcome::TunnelClosed(close) => close.to_string(),
        },
        authorization_reason: request.why.to_string(),
    }
}
