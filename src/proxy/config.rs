//! The settings of a process: one YAML file, overridden by flags and environment variables.
//!
//! `load` reads a file into a tree of texts with their positions (`crate::base::yaml`), `schema` has a reader for each section,
//! `warnings` says what is odd about the whole. Every finding of a file is reported at once, up to a YAML syntax error;
//! `flags` and `warnings` look at a file without faults only.

mod flags;
mod load;
mod schema;
mod warnings;

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};

pub use crate::base::yaml::finding::{Finding, Position, Report, Severity};
pub use load::{Loaded, Purpose};

use crate::base::yaml::{finding, form, section, shape};
use crate::kubernetes;
use crate::net::tls;
use crate::policy::access;
use crate::policy::allowlist::StaticTarget;
use crate::proxy::connection::Port;
use crate::proxy::http;
use crate::tunnel::dial;
use crate::tunnel::drain;
use crate::tunnel::limits::Limits;
use crate::tunnel::relay;
use crate::tunnel::ssh::identification;

/// All settings, checked. `config/switchboard.yaml` documents each with its default.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The public ports; at least one.
    pub listen: Vec<Port>,
    /// The address of the admin port.
    pub admin: SocketAddr,
    /// Access control.
    pub access: access::Options,
    /// The targets of the configuration, each with a name of its own.
    pub targets: Vec<StaticTarget>,
    /// The cluster with further targets, if there is one.
    pub kubernetes: Option<kubernetes::Options>,
    /// The limits of tunnels, targets, clients and the process.
    pub limits: Limits,
    /// The certificates of the proxy, and the ones that it asks of clients.
    pub tls: tls::Settings,
    /// The deadline of a TLS handshake.
    pub handshake: tls::Options,
    /// The deadline of a request head.
    pub connect: http::Options,
    /// The deadlines of a dial.
    pub dial: dial::Options,
    /// The deadline of the SSH identification of both sides.
    pub identification: identification::Options,
    /// The longest silences of a tunnel.
    pub relay: relay::Options,
    /// The phases of a shutdown.
    pub drain: drain::Options,
}

/// The settings of the file `{}`: clients at `0.0.0.0:8080`, the admin port at `0.0.0.0:9090`, no targets.
impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8080)).into()],
            admin: (Ipv4Addr::UNSPECIFIED, 9090).into(),
            access: access::Options::default(),
            targets: Vec::new(),
            kubernetes: None,
            limits: Limits::default(),
            tls: tls::Settings::default(),
            handshake: tls::Options::default(),
            connect: http::Options::default(),
            dial: dial::Options::default(),
            identification: identification::Options::default(),
            relay: relay::Options::default(),
            drain: drain::Options::default(),
        }
    }
}

impl Config {
    /// This configuration with the values of the command line and the environment in place of its own.
    ///
    /// A target of theirs is added, or replaces the one of the same name.
    #[must_use]
    pub fn overridden(mut self, by: Overrides) -> Self {
        if !by.listen.is_empty() {
            self.listen = by.listen.into_iter().map(Port::from).collect();
        }
        self.admin = by.admin.unwrap_or(self.admin);
        let knows_clients = self.knows_clients();
        if let Some(cluster) = &mut self.kubernetes {
            cluster.knows_clients = knows_clients;
            cluster.knows_users = self.access.mode != access::Mode::Open;
        }
        let mut indices: HashMap<_, _> = self.targets.iter().map(|target| target.name.clone()).zip(0..).collect();
        for target in by.allow {
            let next = self.targets.len();
            let index = *indices.entry(target.name.clone()).or_insert(next);
            match self.targets.get_mut(index) {
                Some(known) => *known = target,
                None => self.targets.push(target),
            }
        }
        self
    }

    /// Whether a port asks clients for certificates.
    fn knows_clients(&self) -> bool {
        self.tls.client_auth != tls::ClientAuth::Off && self.listen.iter().any(|port| port.tls != tls::Mode::Off)
    }

    /// The sections that differ in `new` and take effect only after a restart. Access, targets, limits and TLS need none.
    pub fn changes_needing_restart(&self, new: &Self) -> Vec<&'static str> {
        // Every field by name: the compiler demands a decision about each new one.
        let Self {
            listen,
            admin,
            access: _,
            targets: _,
            kubernetes: _,
            limits: _,
            tls: _,
            handshake,
            connect,
            dial,
            identification,
            relay,
            drain,
        } = self;
        [
            ("listen", *listen != new.listen),
            ("admin", *admin != new.admin),
            (
                "timeouts",
                *handshake != new.handshake
                    || *connect != new.connect
                    || *dial != new.dial
                    || *identification != new.identification
                    || *relay != new.relay,
            ),
            ("drain", *drain != new.drain),
        ]
        .into_iter()
        .filter_map(|(section, changed)| changed.then_some(section))
        .collect()
    }

    /// The number of its static targets that are absent from `new`.
    pub fn targets_lost_in(&self, new: &Self) -> usize {
        let stay: HashSet<_> = new.targets.iter().map(|target| &target.name).collect();
        self.targets
            .iter()
            .filter(|target| !stay.contains(&target.name))
            .count()
    }
}

/// The settings of flags and environment variables; empty or `None` leaves the value of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// The public ports, in place of all in the file.
    pub listen: Vec<SocketAddr>,
    /// The address of the admin port.
    pub admin: Option<SocketAddr>,
    /// Further targets.
    pub allow: Vec<StaticTarget>,
}

#[cfg(test)]
mod tests;
