//! `/tunnels`: which are open, the end of some, and the rates of one.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;

use super::listing::{Part, Place};
use super::request::{Named, Options, Told};
use super::{rows, view};
use crate::daemon::admin::answer::{Answer, Unserved};
use crate::daemon::admin::api::{Closed, Closing, Detail, Rates};
use crate::proxy::connection::Shared;
use crate::proxy::open_tunnels::events::{Change, Event};
use crate::proxy::open_tunnels::open_tunnel::OpenTunnel;
use crate::tunnel::direction::{Both, Direction};
use crate::tunnel::limits::Rate;

/// The routes.
pub(super) fn router() -> Router<Arc<Shared>> {
    Router::new()
        .route("/tunnels", get(list).delete(close_those))
        .route("/tunnels/{id}", get(one).delete(close_one).patch(limit))
}

/// Which tunnels.
#[derive(Clone, Debug, Default)]
struct Filter {
    /// `namespace/service`.
    target: Option<String>,
    /// An address.
    client: Option<IpAddr>,
    /// The name of a user.
    user: Option<String>,
    /// The node of the target.
    node: Option<String>,
}

impl Filter {
    fn is_empty(&self) -> bool {
        self.target.is_none() && self.client.is_none() && self.user.is_none() && self.node.is_none()
    }

    fn admits(&self, open: &OpenTunnel) -> bool {
        let facts = &open.facts;
        let is_target = |name: &String| {
            let target = facts.target.as_ref();
            target.is_some_and(|target| target.id().is_named(name))
        };
        self.target.as_ref().is_none_or(is_target)
            && self
                .client
                .is_none_or(|client| facts.client.ip().to_canonical() == client.to_canonical())
            && self.user.as_ref().is_none_or(|user| view::user(facts) == user)
            && self.node.as_ref().is_none_or(|node| *node == *facts.node)
    }

    fn of(&self, shared: &Shared) -> Vec<Arc<OpenTunnel>> {
        let mut open = shared.registry.all();
        open.retain(|tunnel| self.admits(tunnel));
        open
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Sort {
    /// Most bytes of both directions first.
    Bytes,
    /// The fastest first.
    Rate,
    /// The oldest first.
    #[default]
    Age,
    /// The longest silence first.
    Idle,
}

impl Sort {
    fn place(self, open: &OpenTunnel) -> Place<u64> {
        let key = match self {
            Self::Bytes => open.meter.bytes(Direction::Upload) + open.meter.bytes(Direction::Download),
            Self::Rate => {
                let Both { upload, download } = open.rates();
                upload.saturating_add(download)
            }
            // Not an age, which would be another one at the next request.
            Self::Age => u64::MAX - open.facts.id.number,
            Self::Idle => view::millis(open.meter.last_moved().elapsed()),
        };
        (key, open.facts.id.number)
    }
}

/// The query of a list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listing {
    target: Option<String>,
    client: Option<IpAddr>,
    user: Option<String>,
    node: Option<String>,
    #[serde(default)]
    sort: Sort,
    limit: Option<usize>,
    cursor: Option<String>,
}

/// The query of the end of several. Not `#[serde(flatten)]` in both: a query's number would be a text then.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ending {
    target: Option<String>,
    client: Option<IpAddr>,
    user: Option<String>,
    node: Option<String>,
    limit: Option<usize>,
}

async fn list(State(shared): State<Arc<Shared>>, Options(asked): Options<Listing>) -> Result<Response, Unserved> {
    let Listing {
        target,
        client,
        user,
        node,
        sort,
        limit,
        cursor,
    } = asked;
    let filter = Filter {
        target,
        client,
        user,
        node,
    };
    let listed = Part { limit, cursor }
        .of(filter.of(&shared), |open| sort.place(open))
        .map_err(Unserved::bad)?;
    Ok(rows::answer("tunnels", listed, |open, row| {
        serde_json::to_writer(row, &view::tunnel(open))
    }))
}

async fn one(State(shared): State<Arc<Shared>>, Named(open): Named) -> Response {
    let detail = Detail {
        legs: view::legs(&open.legs(&shared.registry.sock_diag)),
        tunnel: view::tunnel(&open),
    };
    Json(detail).into_response()
}

async fn close_one(
    State(shared): State<Arc<Shared>>,
    Named(open): Named,
    Told(closing): Told<Closing>,
) -> Json<Closed> {
    Json(close(&[open], &closing, &shared))
}

async fn close_those(
    State(shared): State<Arc<Shared>>,
    Options(asked): Options<Ending>,
    Told(closing): Told<Closing>,
) -> Answer<Closed> {
    let Ending {
        target,
        client,
        user,
        node,
        limit,
    } = asked;
    let filter = Filter {
        target,
        client,
        user,
        node,
    };
    if filter.is_empty() {
        return Err(Unserved::bad("which tunnels? give target, client, user or node"));
    }
    let mut those = filter.of(&shared);
    those.sort_unstable_by_key(|open| open.facts.id.number);
    let left = those.split_off(limit.unwrap_or(usize::MAX).min(those.len()));
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

async fn limit(
    State(shared): State<Arc<Shared>>,
    Named(open): Named,
    Told(rates): Told<Rates>,
) -> Result<Response, Unserved> {
    let wanted = [(Direction::Download, rates.download), (Direction::Upload, rates.upload)]
        .map(|(direction, rate)| rate.map(|rate| Ok((direction, parse_rate(direction, &rate)?))));
    // All of them are read before one is set.
    let wanted: Vec<_> = wanted.into_iter().flatten().collect::<Result<_, Unserved>>()?;
    for (direction, rate) in wanted {
        open.own_rates[direction].set(rate);
    }
    tell(&open, Change::Limited, &shared);
    Ok(Json(view::tunnel(&open)).into_response())
}

/// A rate; `None` is the target's.
fn parse_rate(direction: Direction, text: &str) -> Result<Option<Rate>, Unserved> {
    if text == "default" {
        return Ok(None);
    }
    let faulty = |error| Unserved::bad(format!("{}: {error}", direction.label()));
    text.parse().map(Some).map_err(faulty)
}
