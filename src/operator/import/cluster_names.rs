//! The names of Services in a cluster's DNS: from a host to the Service, and from a Service to its names in switchboard.

use super::entry::Service;
use crate::base::authority::Authority;
use crate::policy::allowlist::Suffixes;

/// The names of one cluster.
#[derive(Debug)]
pub(super) struct ClusterNames {
    suffixes: Suffixes,
    alias_port: u16,
}

impl ClusterNames {
    pub(super) fn new(cluster_domain: &str, alias_port: u16) -> Self {
        Self {
            suffixes: Suffixes::new(cluster_domain, []),
            alias_port,
        }
    }

    /// Returns the Service of a host such as `svc-a.team-a.svc.cluster.local`; `None` for any other host.
    pub(super) fn service(&self, host: &str) -> Option<Service> {
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let short = self.suffixes.strip(&host);
        let (name, namespace) = short.split_once('.')?;
        (short.len() < host.len())
            .then(|| Service::new(name, namespace))
            .flatten()
    }

    /// Returns the domain that `public_suffixes` must have for a labelled Service to answer to a name; `None` if none is
    /// needed. `port` is the Service's, if known.
    ///
    /// # Errors
    /// Why it never answers to the name.
    pub(super) fn suffix(
        &self,
        service: &Service,
        port: Option<u16>,
        name: &Authority,
    ) -> Result<Option<Box<str>>, String> {
        let asked = name.port();
        if asked != self.alias_port && port.is_some_and(|port| port != asked) {
            return Err(format!(
                "a Service answers at its own port and at {}, not at {asked}: set `alias_port: {asked}` and give \
                 --alias-port {asked}, or use --format static",
                self.alias_port
            ));
        }
        let own = format!("{}.{}", service.name, service.namespace);
        if self.suffixes.strip(name.host()) == own {
            return Ok(None);
        }
        let rest = name.host().strip_prefix(&own).and_then(|rest| rest.strip_prefix('.'));
        match rest {
            Some(suffix) => Ok(Some(suffix.into())),
            None => Err(format!(
                "a Service answers to {own} and a domain after it, not to another name: use --format static"
            )),
        }
    }
}
