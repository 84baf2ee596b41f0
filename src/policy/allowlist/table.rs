//! The immutable table that lookups read: static targets by authority, and Services in shards.
//!
//! A Service has many names (`svc.ns`, `svc.ns.svc`, …), each at two ports. A lookup reduces a name to the shortest, so
//! a Service needs one entry. The entries are in shards, so that a change copies one shard and not the table.

use std::collections::HashMap;
use std::sync::Arc;

use super::options::Options;
use super::target::Target;
use crate::base::authority::Authority;
use crate::base::fnv::fnv1a;

/// The static targets.
pub(super) type Statics = HashMap<Authority, Arc<Target>>;
/// A part of the Services, by their shortest names.
pub(super) type Shard = HashMap<Arc<str>, Route>;

/// A Service's target, and the ports at which it is reached.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) target: Arc<Target>,
    pub(super) ports: [u16; 2],
}

/// The allowlist at one time.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) statics: Arc<Statics>,
    pub(super) options: Options,
    pub(super) shards: Vec<Arc<Shard>>,
    /// True if all targets are known: only then is an absent name forbidden, otherwise it is unknown.
    pub(super) complete: bool,
    /// The namespaces whose Services are not known completely; empty for all, and while `complete`.
    pub(super) awaited: Vec<Box<str>>,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            statics: Arc::default(),
            options: Options::default(),
            shards: vec![Arc::default(); SHARDS],
            complete: true,
            awaited: Vec::new(),
        }
    }
}

impl Table {
    /// Returns the target of an authority. A static target takes precedence over a Service.
    pub(super) fn find(&self, authority: &Authority) -> Option<&Arc<Target>> {
        self.statics.get(authority).or_else(|| self.service(authority))
    }

    /// Returns the Service of an authority.
    pub(super) fn service(&self, authority: &Authority) -> Option<&Arc<Target>> {
        let route = self.route(self.options.suffixes.strip(authority.host()))?;
        route.ports.contains(&authority.port()).then_some(&route.target)
    }

    /// Returns whether a Service of an absent authority may yet be listed.
    pub(super) fn awaits(&self, authority: &Authority) -> bool {
        let name = self.options.suffixes.strip(authority.host()).split_once('.');
        let is_of_name = |namespace: &str| name.is_some_and(|(_, of_name)| *namespace == *of_name);
        !self.complete && (self.awaited.is_empty() || self.awaited.iter().any(|namespace| is_of_name(namespace)))
    }

    /// Returns the targets of all Services, in no order.
    pub(super) fn services(&self) -> impl Iterator<Item = &Arc<Target>> {
        let routes = self.shards.iter().flat_map(|shard| shard.values());
        routes.map(|route| &route.target)
    }

    /// Returns the route of a Service by its shortest name.
    pub(super) fn route(&self, name: &str) -> Option<&Route> {
        self.shards.get(shard_of(name))?.get(name)
    }
}

/// Returns the shard of a name, the same in every process.
pub(super) fn shard_of(name: &str) -> usize {
    usize::try_from((fnv1a(name.as_bytes()) >> 32) % SHARDS as u64).unwrap_or_default()
}

/// With 256 shards, a change among 100,000 Services copies 400 entries.
const SHARDS: usize = 256;
