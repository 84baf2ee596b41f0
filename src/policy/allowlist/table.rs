//! The immutable table that lookups read: static targets by authority, and Services in shards.
//!
//! A Service has many names (`svc.ns`, `svc.ns.svc`, …), each at two ports. They are reduced to the shortest, so that it has
//! one entry. The entries are in shards, so that a change copies one shard and not the table.

use std::collections::HashMap;
use std::sync::Arc;

use super::Options;
use super::target::Target;
use crate::base::authority::Authority;
use crate::base::fnv::fnv1a;

/// The static targets.
pub(super) type Statics = HashMap<Authority, Arc<Target>>;
/// A part of the Services, by their shortest names.
pub(super) type Shard = HashMap<Arc<str>, Route>;

/// A Service's target, and the ports that lead to it.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) target: Arc<Target>,
    pub(super) ports: [u16; 2],
}

/// The allowlist at one moment.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) statics: Arc<Statics>,
    pub(super) options: Options,
    pub(super) shards: Vec<Arc<Shard>>,
    /// The number of Services in all shards.
    pub(super) services: usize,
    /// Whether all targets are known: then a name that is absent is forbidden, and else it is unknown.
    pub(super) complete: bool,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            statics: Arc::default(),
            options: Options::default(),
            shards: vec![Arc::default(); SHARDS],
            services: 0,
            complete: true,
        }
    }
}

impl Table {
    /// The target of an authority. A static target takes precedence over a Service.
    pub(super) fn find(&self, authority: &Authority) -> Option<&Arc<Target>> {
        self.statics.get(authority).or_else(|| self.service(authority))
    }

    /// The Service of an authority.
    pub(super) fn service(&self, authority: &Authority) -> Option<&Arc<Target>> {
        let route = self.route(self.options.suffixes.strip(authority.host()))?;
        route.ports.contains(&authority.port()).then_some(&route.target)
    }

    /// The route of a Service by its shortest name.
    pub(super) fn route(&self, name: &str) -> Option<&Route> {
        self.shards.get(shard_of(name))?.get(name)
    }
}

/// The suffixes of a Service's names behind `svc.ns`: `.svc`, `.svc.<cluster domain>` and the public suffixes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suffixes(Vec<Box<str>>);

impl Suffixes {
    /// The suffixes of a cluster with that domain. Case and dots at either end do not matter.
    pub fn new<'a>(cluster_domain: &str, public: impl IntoIterator<Item = &'a str>) -> Self {
        let spelled = |name: &str| format!(".{}", name.trim_matches('.').to_ascii_lowercase()).into();
        let cluster = [spelled("svc"), spelled(&format!("svc.{cluster_domain}"))];
        let mut suffixes: Vec<Box<str>> = cluster.into_iter().chain(public.into_iter().map(spelled)).collect();
        suffixes.retain(|suffix| suffix.len() > 1);
        // The longest first: of two that match, the longer one is meant.
        suffixes.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        suffixes.dedup();
        Self(suffixes)
    }

    /// The host without its suffix: the shortest name of a Service, `svc.ns`. Any other host as it is.
    pub fn strip<'a>(&self, host: &'a str) -> &'a str {
        self.0
            .iter()
            .filter_map(|suffix| host.strip_suffix(&**suffix))
            .find(|rest| rest.contains('.'))
            .unwrap_or(host)
    }
}

/// The shard of a name, the same in every process.
pub(super) fn shard_of(name: &str) -> usize {
    usize::try_from((fnv1a(name.as_bytes()) >> 32) % SHARDS as u64).unwrap_or_default()
}

/// With 256 shards, a change among 100,000 Services copies 400 entries.
const SHARDS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_stripped_to_the_shortest() {
        let suffixes = Suffixes::new("Cluster.Local.", ["ssh.example.com", ".example.com", ""]);
        for (host, name) in [
            ("svc-a.team-a", "svc-a.team-a"),
            ("svc-a.team-a.svc", "svc-a.team-a"),
            ("svc-a.team-a.svc.cluster.local", "svc-a.team-a"),
            ("svc-a.team-a.ssh.example.com", "svc-a.team-a"),
            ("svc-a.team-a.example.com", "svc-a.team-a"),
            // A Service in the namespace `ssh`, and one in the namespace `svc`.
            ("svc-a.ssh.example.com", "svc-a.ssh"),
            ("svc-a.svc", "svc-a.svc"),
            ("svc-a.svc.svc", "svc-a.svc"),
            ("svc-a.team-a.cluster.local", "svc-a.team-a.cluster.local"),
            ("svc-a", "svc-a"),
            ("10.0.0.1", "10.0.0.1"),
        ] {
            assert_eq!(suffixes.strip(host), name, "{host}");
        }
    }
}
