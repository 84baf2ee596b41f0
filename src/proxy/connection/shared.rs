//! The public ports, and what all tunnels of a process share.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::net::listener;
use crate::net::tls::{self, Tls};
use crate::policy::access::Access;
use crate::policy::allowlist::Allowlist;
use crate::proxy::http::{self, Refusals};
use crate::proxy::open_tunnels::facts::Ids;
use crate::proxy::open_tunnels::registry::Registry;
use crate::proxy::record::{AccessLog, Telemetry};
use crate::tunnel::drain::Drain;
use crate::tunnel::limits::budget::Budgets;
use crate::tunnel::limits::connect_rate::ConnectRate;
use crate::tunnel::limits::owners::LimitOwners;
use crate::tunnel::limits::slots::Slots;
use crate::tunnel::limits::unfinished::Unfinished;
use crate::tunnel::metrics::Metrics;
use crate::tunnel::relay::{self, Resources};
use crate::tunnel::ssh::identification;
use crate::tunnel::{dial, proxy_header};

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
    pub clients: LimitOwners,
    /// The users that have tunnels, and the limits of each.
    pub users: LimitOwners,
    /// The rate at which each client connects.
    pub connect_rate: ConnectRate,
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
    pub connect: http::Options,
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

/// One public port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The address, and whether other processes may share it.
    pub listener: listener::Options,
    /// The peers that must begin with a PROXY header.
    pub proxy_header: proxy_header::Policy,
    /// The use of TLS by clients: none, optional or required.
    pub tls: tls::Mode,
    /// The way in which refusals are told.
    pub refusals: Refusals,
}

/// A port of this process alone, without TLS and PROXY header.
impl From<SocketAddr> for Port {
    fn from(address: SocketAddr) -> Self {
        Self {
            listener: address.into(),
            proxy_header: proxy_header::Policy::Off,
            tls: tls::Mode::Off,
            refusals: Refusals::default(),
        }
    }
}
