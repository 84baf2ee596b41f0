//! The tunnels that are open in this process, for operators. A relay never waits for a reader of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::facts::Facts;
use crate::drain::Open;
use crate::metrics::TargetSeries;
use crate::relay::meter::Meter;

/// A tunnel from its 200 to its end.
#[derive(Debug)]
pub struct OpenTunnel {
    /// What was learnt of it before its 200, and the SSH software of both sides behind that.
    pub facts: Facts,
    /// When it was established, by the host's clock.
    pub since: SystemTime,
    /// The same by a clock that is never set.
    pub established: Instant,
    /// Its byte counts.
    pub meter: Meter,
    /// The tunnel in a drain.
    pub open: Open,
}

impl OpenTunnel {
    /// A tunnel that was established just now; its bytes are also its target's.
    pub(super) fn new(facts: Facts, series: &TargetSeries, open: Open) -> Self {
        Self {
            facts,
            since: SystemTime::now(),
            established: Instant::now(),
            meter: Meter::new(Arc::clone(&series.totals)),
            open,
        }
    }
}

/// The open tunnels, by number.
#[derive(Debug)]
pub struct Registry {
    /// By the low bits of the number, so that threads seldom meet at a lock.
    shards: [Mutex<HashMap<u64, Arc<OpenTunnel>>>; SHARDS],
}

impl Default for Registry {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
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
        Registration { registry: self, tunnel }
    }

    fn shard(&self, number: u64) -> &Mutex<HashMap<u64, Arc<OpenTunnel>>> {
        let shard = usize::try_from(number % SHARDS as u64).unwrap_or_default();
        &self.shards[shard]
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
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let number = self.tunnel.facts.id.number;
        self.registry.shard(number).lock().remove(&number);
    }
}

const SHARDS: usize = 16;
