//! `/tunnels`: which are open, the end of some, and the rates of one; `/clients`: who has them.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use super::request::{Named, Options, Page, Part, Place, Told};
use super::view;
use crate::daemon::admin::answer::{Answer, Unserved};
use crate::daemon::admin::api::{Client, Clients, Closed, Closing, Detail, Query, Rates, Sort, Tunnel, Tunnels};
use crate::proxy::connection::Shared;
use crate::proxy::open_tunnels::events::{Change, Event};
use crate::proxy::open_tunnels::open_tunnel::OpenTunnel;
use crate::tunnel::direction::{Both, Direction};
use crate::tunnel::limits::Rate;

/// The tunnels that a query is for.
fn those(query: &Query, shared: &Shared) -> Vec<Arc<OpenTunnel>> {
    let Query {
        target,
        client,
        user,
        node,
        ..
    } = query;
    let is_one = |open: &Arc<OpenTunnel>| {
        let facts = &open.facts;
        let is_target = |name: &String| facts.target.as_ref().is_some_and(|target| target.id().is_named(name));
        target.as_ref().is_none_or(is_target)
            && client.is_none_or(|client| facts.client.ip().to_canonical() == client.to_canonical())
            && user.as_ref().is_none_or(|user| view::user(facts) == user)
            && node.as_ref().is_none_or(|node| *node == *facts.node)
    };
    let mut open = shared.registry.all();
    open.retain(is_one);
    open
}

/// The place of a tunnel in a list.
fn place(sort: Sort, open: &OpenTunnel) -> Place<u64> {
    let sum = |Both { upload, download }: Both<u64>| upload.saturating_add(download);
    let key = match sort {
        Sort::Bytes => sum(Both::from_fn(|direction| open.meter.bytes(direction))),
        Sort::Rate => sum(open.rates()),
        // Not an age, which would be another one at the next request.
        Sort::Age => u64::MAX - open.facts.id.number,
        Sort::Idle => view::millis(open.meter.last_moved().elapsed()),
    };
    (key, open.facts.id.number)
}

/// Lists those that a query is for.
pub(super) async fn list(State(shared): State<Arc<Shared>>, Options(query): Options<Query>) -> Answer<Tunnels> {
    let (those, sort) = (those(&query, &shared), query.sort.unwrap_or_default());
    let Query { limit, cursor, .. } = query;
    let listed = Part { limit, cursor }.of(those, |open| place(sort, open));
    let Page { items, total, next } = listed.map_err(Unserved::bad)?;
    let tunnels = items.iter().map(|open| view::tunnel(open)).collect();
    Ok(Json(Tunnels { tunnels, total, next }))
}

/// Shows one, with its connections.
pub(super) async fn one(State(shared): State<Arc<Shared>>, Named(open): Named) -> Json<Detail> {
    Json(Detail {
        legs: view::legs(&open.legs(&shared.registry.sock_diag)),
        tunnel: view::tunnel(&open),
    })
}

/// Ends one.
pub(super) async fn close_one(
    State(shared): State<Arc<Shared>>,
    Named(open): Named,
    Told(closing): Told<Closing>,
) -> Json<Closed> {
    Json(close(&[open], &closing, &shared))
}

/// Ends those that a query is for, the oldest first.
pub(super) async fn close_those(
    State(shared): State<Arc<Shared>>,
    Options(query): Options<Query>,
    Told(closing): Told<Closing>,
) -> Answer<Closed> {
    if query.is_for_all() {
        return Err(Unserved::bad("which tunnels? give target, client, user or node"));
    }
    if query.sort.is_some() || query.cursor.is_some() {
        return Err(Unserved::bad("sort, cursor: the oldest tunnels end first"));
    }
    let mut those = those(&query, &shared);
    those.sort_unstable_by_key(|open| open.facts.id.number);
    let left = those.split_off(query.limit.unwrap_or(usize::MAX).min(those.len()));
    Ok(Json(Closed {
        left: left.len(),
        ..close(&those, &closing, &shared)
    }))
}

fn close(tunnels: &[Arc<OpenTunnel>], closing: &Closing, shared: &Shared) -> Closed {
    let told = tunnels.iter().filter(|open| open.close(&closing.reason));
    let told = told.inspect(|open| tell(open, Change::Closing, shared));
    Closed {
        closed: told.map(|open| open.facts.id.to_string()).collect(),
        left: 0,
    }
}

fn tell(open: &OpenTunnel, change: Change, shared: &Shared) {
    let name = || Event::Changed(open.facts.id.to_string().into(), change);
    shared.registry.events.tell(name);
}

/// Sets the rates of one until it ends.
pub(super) async fn limit(
    State(shared): State<Arc<Shared>>,
    Named(open): Named,
    Told(rates): Told<Rates>,
) -> Answer<Tunnel> {
    let wanted = [(Direction::Download, rates.download), (Direction::Upload, rates.upload)]
        .map(|(direction, rate)| rate.map(|rate| Ok((direction, parse_rate(direction, &rate)?))));
    // All of them are read before one is set.
    let wanted: Vec<_> = wanted.into_iter().flatten().collect::<Result<_, Unserved>>()?;
    for (direction, rate) in wanted {
        open.own_rates[direction].set(rate);
    }
    tell(&open, Change::Limited, &shared);
    Ok(Json(view::tunnel(&open)))
}

/// A rate; `None` is the target's.
fn parse_rate(direction: Direction, text: &str) -> Result<Option<Rate>, Unserved> {
    if text == "default" {
        return Ok(None);
    }
    let faulty = |error| Unserved::bad(format!("{}: {error}", direction.label()));
    text.parse().map(Some).map_err(faulty)
}

/// Lists the clients that have one.
pub(super) async fn clients(State(shared): State<Arc<Shared>>, Options(part): Options<Part>) -> Answer<Clients> {
    let mut clients: HashMap<(_, String), Client> = HashMap::new();
    for open in shared.registry.all() {
        let (address, user) = (open.facts.client.ip().to_canonical(), view::user(&open.facts));
        let client = clients.entry((address, user.to_owned())).or_insert_with(|| Client {
            address,
            user: user.to_owned(),
            tunnels: 0,
            bytes_sent: 0,
            bytes_received: 0,
            idle_ms: u64::MAX,
        });
        client.tunnels += 1;
        client.bytes_sent += open.meter.bytes(Direction::Download);
        client.bytes_received += open.meter.bytes(Direction::Upload);
        client.idle_ms = client.idle_ms.min(view::millis(open.meter.last_moved().elapsed()));
    }
    let place = |client: &Client| (client.tunnels as u64, format!("{} {}", client.address, client.user));
    let Page { items, total, next } = part.of(clients.into_values().collect(), place).map_err(Unserved::bad)?;
    let clients = items;
    Ok(Json(Clients { clients, total, next }))
}
