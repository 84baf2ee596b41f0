//! `/tunnels`: lists and closes tunnels, and sets the rates of one; `/clients`: lists their clients.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;

use super::extract::{JsonBody, Page, PageQuery, QueryParams, SortKey, TunnelPath, with_target_name};
use super::view;
use crate::base::values::timeout;
use crate::daemon::admin::api::{
    Client, Clients, CloseRequest, CloseResponse, Detail, Query, Rates, Sort, Tunnel, Tunnels,
};
use crate::daemon::admin::response::{Answer, HttpError};
use crate::proxy::connection::Shared;
use crate::proxy::open_tunnels::events::{Change, Event};
use crate::proxy::open_tunnels::open_tunnel::OpenTunnel;
use crate::tunnel::direction::{Both, Direction};
use crate::tunnel::limits::Rate;

/// Returns the tunnels that match a query.
pub(super) fn matching(query: &Query, shared: &Shared) -> Vec<Arc<OpenTunnel>> {
    let (mut open, query) = (shared.registry.all(), with_target_name(query, shared));
    open.retain(|open| query.selects(&open.info.subject()));
    open
}

/// Returns the sort key of a tunnel in a list.
fn sort_key(sort: Sort, open: &OpenTunnel) -> SortKey<u64> {
    let sum = |Both { upload, download }: Both<u64>| upload.saturating_add(download);
    let key = match sort {
        Sort::Bytes => sum(Both::from_fn(|direction| open.meter.bytes(direction))),
        Sort::Rate => sum(open.rates()),
        // The sequence number instead of the age, which would differ at the next request.
        Sort::Age => u64::MAX - open.info.id.number,
        Sort::Idle => view::millis(open.activity().last_active.elapsed()),
    };
    (key, open.info.id.number)
}

/// Lists the tunnels that match a query.
pub(super) async fn list(State(shared): State<Arc<Shared>>, QueryParams(query): QueryParams<Query>) -> Answer<Tunnels> {
    let (matching, sort) = (matching(&query, &shared), query.sort.unwrap_or_default());
    let Query { limit, cursor, .. } = query;
    let listed = PageQuery { limit, cursor }.page(matching, |open| sort_key(sort, open));
    let Page { items, total, next } = listed.map_err(HttpError::bad)?;
    let tunnels = items.iter().map(|open| view::tunnel(open)).collect();
    Ok(Json(Tunnels { tunnels, total, next }))
}

/// Returns a tunnel with its connections.
pub(super) async fn one(State(shared): State<Arc<Shared>>, TunnelPath(open): TunnelPath) -> Json<Detail> {
    Json(Detail {
        legs: view::legs(&open.legs(&shared.registry.sock_diag)),
        tunnel: view::tunnel(&open),
    })
}

/// Closes a tunnel.
pub(super) async fn close_one(
    State(shared): State<Arc<Shared>>,
    TunnelPath(open): TunnelPath,
    JsonBody(closing): JsonBody<CloseRequest>,
) -> Answer<CloseResponse> {
    Ok(Json(close(&[open], &closing, &shared)?))
}

/// Closes the tunnels that match a query, the oldest first.
pub(super) async fn close_those(
    State(shared): State<Arc<Shared>>,
    QueryParams(query): QueryParams<Query>,
    JsonBody(closing): JsonBody<CloseRequest>,
) -> Answer<CloseResponse> {
    if query.is_for_all() {
        return Err(HttpError::bad("which tunnels? give target, client, user or node"));
    }
    // An empty value comes from an unset variable. If it were ignored, more tunnels would end; an empty user
    // would match every tunnel without a user.
    let texts = [("target", &query.target), ("user", &query.user), ("node", &query.node)];
    if let Some((name, _)) = texts.iter().find(|(_, text)| text.as_deref() == Some("")) {
        return Err(HttpError::bad(format!("{name}: the value is empty")));
    }
    if query.sort.is_some() || query.cursor.is_some() {
        return Err(HttpError::bad("sort, cursor: the oldest tunnels end first"));
    }
    let mut tunnels = matching(&query, &shared);
    tunnels.sort_unstable_by_key(|open| open.info.id.number);
    let left = tunnels.split_off(query.limit.unwrap_or(usize::MAX).min(tunnels.len()));
    Ok(Json(CloseResponse {
        left: left.len(),
        ..close(&tunnels, &closing, &shared)?
    }))
}

/// Closes tunnels and, unless they are moved, the sessions in them.
pub(super) fn close(
    tunnels: &[Arc<OpenTunnel>],
    closing: &CloseRequest,
    shared: &Shared,
) -> Result<CloseResponse, HttpError> {
    let is_final = !closing.is_move;
    let time = closing.refused_for.as_deref().map(timeout).transpose();
    let time = time.map_err(|error| HttpError::bad(format!("for: {error}")))?;
    let told = tunnels.iter().filter(|open| is_final || open.guard.is_resumable());
    let told = told.filter(|open| open.close(&closing.reason, is_final));
    let mut sessions = HashSet::new();
    let mut closed = Vec::new();
    for open in told {
        if is_final && let Some(session) = open.guard.session() {
            let reason = open.close_reason().unwrap_or_default();
            let time = time.unwrap_or(REFUSED_FOR);
            shared
                .registry
                .ended_sessions
                .refuse(session, open.info.user_name(), reason, time);
            sessions.insert((session, open.info.user_name()));
        }
        log_change(open, Change::Closing, shared);
        closed.push(open.info.id.to_string());
    }
    // If a tunnel was half-open, a newer tunnel may carry its session by now. A tunnel of another user only claims to.
    if !sessions.is_empty() {
        for open in shared.registry.all() {
            let session = open.guard.session().map(|session| (session, open.info.user_name()));
            if session.is_some_and(|session| sessions.contains(&session)) && open.close(&closing.reason, true) {
                log_change(&open, Change::Closing, shared);
            }
        }
    }
    Ok(CloseResponse { closed, left: 0 })
}

/// How long this process refuses a session that an operator has ended: longer than an awake client stays away.
const REFUSED_FOR: Duration = Duration::from_mins(10);

fn log_change(open: &OpenTunnel, change: Change, shared: &Shared) {
    let name = || Event::Changed(open.info.id.to_string().into(), change);
    shared.registry.events.publish(name);
}

/// Sets the rates of a tunnel until it ends.
pub(super) async fn limit(
    State(shared): State<Arc<Shared>>,
    TunnelPath(open): TunnelPath,
    JsonBody(rates): JsonBody<Rates>,
) -> Answer<Tunnel> {
    for (direction, rate) in parse_rates(&rates)? {
        open.set_own_rate(direction, rate);
    }
    open.apply_limits(&shared.registry.restrictions);
    log_change(&open, Change::Limited, &shared);
    Ok(Json(view::tunnel(&open)))
}

/// Parses the rates that are given.
pub(super) fn parse_rates(rates: &Rates) -> Result<Vec<(Direction, Option<Rate>)>, HttpError> {
    let given = [
        (Direction::Download, &rates.download),
        (Direction::Upload, &rates.upload),
    ];
    let given = given
        .into_iter()
        .filter_map(|(direction, rate)| Some((direction, rate.as_ref()?)));
    given
        .map(|(direction, rate)| Ok((direction, parse_rate(direction, rate)?)))
        .collect()
}

/// Parses a rate; `None` means the target's rate.
fn parse_rate(direction: Direction, text: &str) -> Result<Option<Rate>, HttpError> {
    if text == "default" {
        return Ok(None);
    }
    let faulty = |error| HttpError::bad(format!("{}: {error}", direction.label()));
    text.parse().map(Some).map_err(faulty)
}

/// Lists the clients that have tunnels.
pub(super) async fn clients(
    State(shared): State<Arc<Shared>>,
    QueryParams(part): QueryParams<PageQuery>,
) -> Answer<Clients> {
    let mut clients: HashMap<(_, String), Client> = HashMap::new();
    for open in shared.registry.all() {
        let (address, user) = (open.info.client.ip().to_canonical(), open.info.user_name());
        let client = clients.entry((address, user.to_owned())).or_insert_with(|| Client {
            address,
            user: user.to_owned(),
            tunnels: 0,
            bytes_sent: 0,
            bytes_received: 0,
            sent_per_second: 0,
            received_per_second: 0,
            idle_ms: u64::MAX,
        });
        let rates = open.rates();
        client.sent_per_second += rates.download;
        client.received_per_second += rates.upload;
        client.tunnels += 1;
        client.bytes_sent += open.meter.bytes(Direction::Download);
        client.bytes_received += open.meter.bytes(Direction::Upload);
        client.idle_ms = client.idle_ms.min(view::millis(open.activity().last_active.elapsed()));
    }
    let place = |client: &Client| (client.tunnels as u64, format!("{} {}", client.address, client.user));
    let Page { items, total, next } = part
        .page(clients.into_values().collect(), place)
        .map_err(HttpError::bad)?;
    let clients = items;
    Ok(Json(Clients { clients, total, next }))
}
