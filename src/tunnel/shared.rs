//! What all tunnels of a process share.

use std::sync::Arc;

use super::ids::Ids;
use super::record::{AccessLog, Telemetry};
use super::registry::Registry;
use crate::access::Access;
use crate::allowlist::Allowlist;
use crate::connect;
use crate::drain::Drain;
use crate::limits::budget::Budgets;
use crate::limits::clients::Clients;
use crate::limits::slots::Slots;
use crate::limits::unfinished::Unfinished;
use crate::limits::users::Users;
use crate::metrics::Metrics;
use crate::net::dial;
use crate::relay::{self, Resources};
use crate::ssh::identification;
use crate::tls::Tls;

/// What all tunnels of a process share.
#[derive(Debug)]
pub struct Shared {
    /// Access control.
    pub access: Arc<Access>,
    /// The targets, by name.
    pub allowlist: Arc<Allowlist>,
    /// The process's metrics.
    pub metrics: Metrics,
    /// The access log.
    pub access_log: AccessLog,
    /// The open tunnels.
    pub registry: Registry,
    /// The phase of the drain.
    pub drain: Drain,
    /// The pipes and buffers of the relays.
    pub resources: Resources,
    /// The clients that have connections, and the limits of each.
    pub clients: Clients,
    /// The users that have tunnels, and the limits of each.
    pub users: Users,
    /// The connections whose request is not complete.
    pub unfinished: Unfinished,
    /// A slot for each tunnel.
    pub tunnels: Arc<Slots>,
    /// The byte budgets of all tunnels together.
    pub total: Budgets,
    /// The numbers of connections and requests.
    pub ids: Ids,
    /// The certificates, and what is asked of clients that speak TLS.
    pub tls: Tls,
    /// The timeout of a request head.
    pub connect: connect::Options,
    /// The timeouts of a dial.
    pub dial: dial::Options,
    /// The timeout of the SSH identifications.
    pub identification: identification::Options,
    /// The timeouts of a relay.
    pub relay: relay::Options,
}

impl Shared {
    /// The metrics and the access log, which account for connections.
    pub(super) fn telemetry(&self) -> Telemetry<'_> {
        Telemetry {
            metrics: &self.metrics,
            access_log: &self.access_log,
            registry: &self.registry,
        }
    }
}
