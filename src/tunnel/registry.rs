//! The tunnels that are open in this process, for operators. A relay never waits for a reader of them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::events::{Event, Events};
use super::open_tunnel::OpenTunnel;
use crate::net::sock_diag::SockDiag;
use crate::outcome::Close;

/// The open tunnels, by number.
#[derive(Debug)]
pub struct Registry {
    /// By the low bits of the number, so that threads seldom meet at a lock.
    shards: [Mutex<HashMap<u64, Arc<OpenTunnel>>>; SHARDS],
    /// What happens to tunnels.
    pub events: Arc<Events>,
    /// What the kernel knows of their connections.
    pub sock_diag: SockDiag,
}

impl Default for Registry {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            events: Arc::default(),
            sock_diag: SockDiag::default(),
        }
    }
}

impl Registry {
    /// The tunnels that are open now, in no order.
    pub fn all(&self) -> Vec<Arc<OpenTunnel>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().values().cloned());
        }
        all
    }

    /// The open tunnel of that number.
    pub fn get(&self, number: u64) -> Option<Arc<OpenTunnel>> {
        self.shard(number).lock().get(&number).cloned()
    }

    /// Lists a tunnel for as long as the registration is held.
    pub(super) fn enter(&self, tunnel: Arc<OpenTunnel>) -> Registration<'_> {
        let number = tunnel.facts.id.number;
        self.shard(number).lock().insert(number, Arc::clone(&tunnel));
        self.events.tell(|| Event::Opened(Arc::clone(&tunnel)));
        Registration { registry: self, tunnel }
    }

    fn shard(&self, number: u64) -> &Mutex<HashMap<u64, Arc<OpenTunnel>>> {
        let [first, rest @ ..] = &self.shards;
        let shard = usize::try_from(number % SHARDS as u64).unwrap_or_default();
        rest.get(shard).unwrap_or(first)
    }
}

/// A listed tunnel; its drop takes it off the list.
#[derive(Debug)]
#[must_use = "dropping it takes the tunnel off the list"]
pub(super) struct Registration<'a> {
    registry: &'a Registry,
    tunnel: Arc<OpenTunnel>,
}

impl Registration<'_> {
    pub(super) fn tunnel(&self) -> &OpenTunnel {
        &self.tunnel
    }

    /// Tells the end of the tunnel.
    pub(super) fn closed(&self, close: Close) {
        let tunnel = || Arc::clone(&self.tunnel);
        self.registry.events.tell(|| Event::Closed(tunnel(), close));
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let number = self.tunnel.facts.id.number;
        self.registry.shard(number).lock().remove(&number);
    }
}

const SHARDS: usize = 16;
