//! `/clients`: who has tunnels, and how many.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};

use super::listing::{Listed, Part};
use super::request::Options;
use super::view;
use crate::daemon::admin::answer::{Answer, Unserved};
use crate::daemon::admin::api::{Client, Clients};
use crate::proxy::connection::Shared;
use crate::tunnel::direction::Direction;

/// The route.
pub(super) fn router() -> Router<Arc<Shared>> {
    Router::new().route("/clients", get(list))
}

async fn list(State(shared): State<Arc<Shared>>, Options(part): Options<Part>) -> Answer<Clients> {
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
    let Listed { items, total, next } = part.of(clients.into_values().collect(), place).map_err(Unserved::bad)?;
    let clients = items;
    Ok(Json(Clients { clients, total, next }))
}
