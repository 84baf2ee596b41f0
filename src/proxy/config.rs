//! The settings of a process: one YAML file, overridden by flags and environment variables.
//!
//! `load` reads a file by `crate::base::yaml` into [`Config`], whose sections describe their keys themselves. `rules`
//! finds the faults of several keys together, `listen` those of two ports, and `warnings` what is odd about the whole.
//! All findings of a file are reported together, or a YAML syntax error and those before it. `flags` and `warnings`
//! check only a file without faults.

mod flags;
mod listen;
mod load;
mod rules;
mod warnings;

use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};

use clap::Args;
use serde::Deserialize;

pub use crate::base::yaml::diagnostic::{Diagnostic, Position, Report, Severity};
pub use load::{LoadedConfig, Purpose};

use crate::base::values::address;
use crate::base::yaml::forms;
use crate::daemon::admin::ScrapeNetworks;
use crate::kubernetes;
use crate::net::tls;
use crate::policy::access;
use crate::policy::allowlist::StaticTarget;
use crate::proxy::anchors;
use crate::proxy::connection::{Port, Timeouts};
use crate::tunnel::drain;
use crate::tunnel::limits::Limits;

/// All settings, checked. `config/switchboard.yaml` documents each with its default.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The certificates of the proxy, and those that it requests from clients.
    pub tls: tls::Settings,
    /// The public ports; at least one.
    #[serde(deserialize_with = "listen::ports")]
    pub listen: Vec<Port>,
    /// The address of the admin port.
    #[serde(deserialize_with = "forms::one::<listen::LocalAddress, _>")]
    pub admin: SocketAddr,
    /// The peers of the admin port that may read names of targets.
    #[serde(deserialize_with = "listen::scrape_networks")]
    pub admin_scrape: ScrapeNetworks,
    /// Access control.
    pub access: access::Options,
    /// The anchors that dial in; `None` if only static targets may have any.
    pub anchors: Option<anchors::Options>,
    /// The targets.
    pub allowlist: Allowlist,
    /// The limits of tunnels, targets, clients and the process.
    pub limits: Limits,
    /// True if both sides of a tunnel must begin with an SSH identification. A target may have its own setting.
    pub ssh_only: bool,
    /// The deadlines of every wait for a peer.
    pub timeouts: Timeouts,
    /// The phases of a shutdown.
    pub drain: drain::Options,
}

/// The targets.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Allowlist {
    /// True if a request that `ssh_only` or `access` would refuse is only reported.
    pub report_only: bool,
    /// The targets of the configuration, each with a name of its own.
    #[serde(rename = "static", deserialize_with = "forms::items")]
    pub targets: Vec<StaticTarget>,
    /// The cluster with further targets, if there is one.
    pub kubernetes: Option<kubernetes::Options>,
}

/// The settings of the file `{}`: clients at `0.0.0.0:8080`, the admin port at `0.0.0.0:9090`, no targets.
impl Default for Config {
    fn default() -> Self {
        Self {
            tls: tls::Settings::default(),
            listen: vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8080)).into()],
            admin: (Ipv4Addr::UNSPECIFIED, 9090).into(),
            admin_scrape: None,
            access: access::Options::default(),
            anchors: None,
            allowlist: Allowlist::default(),
            limits: Limits::default(),
            ssh_only: true,
            timeouts: Timeouts::default(),
            drain: drain::Options::default(),
        }
    }
}

impl Config {
    /// Returns this configuration, overridden by the values of the command line and the environment.
    ///
    /// A target of `by` is added, or replaces the target of the same name.
    #[must_use]
    pub fn overridden(mut self, by: Overrides) -> Self {
        if !by.listen.is_empty() {
            self.listen = by.listen.into_iter().map(Port::from).collect();
        }
        self.admin = by.admin.unwrap_or(self.admin);
        let knows_clients = self.requests_client_certificates();
        let takes_anchors = self.anchors.is_some();
        if let Some(cluster) = &mut self.allowlist.kubernetes {
            cluster.knows_clients = knows_clients;
            cluster.knows_users = self.access.mode != access::Mode::Open;
            cluster.takes_anchors = takes_anchors;
        }
        let targets = &mut self.allowlist.targets;
        let mut indices: HashMap<_, _> = targets.iter().map(|target| target.name.clone()).zip(0..).collect();
        for target in by.allow {
            let next = targets.len();
            let index = *indices.entry(target.name.clone()).or_insert(next);
            match targets.get_mut(index) {
                Some(known) => *known = target,
                None => targets.push(target),
            }
        }
        self
    }

    /// Returns whether anchors may dial in.
    pub fn takes_anchors(&self) -> bool {
        self.anchors.is_some() || self.allowlist.targets.iter().any(|target| target.dials_in.is_some())
    }

    /// Returns whether users are authenticated: those of requests, or those of anchors.
    pub fn proves_users(&self) -> bool {
        self.access.mode != access::Mode::Open || self.takes_anchors()
    }

    /// Returns whether a port requests certificates from clients.
    fn requests_client_certificates(&self) -> bool {
        self.tls.client_auth != tls::ClientAuth::Off && self.listen.iter().any(|port| port.tls != tls::Mode::Off)
    }

    /// Returns the sections that differ in `new` and take effect only after a restart. The others take effect at once.
    pub fn changes_needing_restart(&self, new: &Self) -> Vec<&'static str> {
        // Every field by name: the compiler demands a decision about each new one.
        let Self {
            tls: _,
            listen,
            admin,
            admin_scrape,
            access: _,
            anchors,
            allowlist: _,
            limits: _,
            ssh_only: _,
            timeouts,
            drain,
        } = self;
        [
            ("listen", *listen != new.listen),
            ("admin", *admin != new.admin),
            ("admin_scrape", *admin_scrape != new.admin_scrape),
            ("anchors", *anchors != new.anchors),
            ("timeouts", *timeouts != new.timeouts),
            ("drain", *drain != new.drain),
        ]
        .into_iter()
        .filter_map(|(section, changed)| changed.then_some(section))
        .collect()
    }

    /// Returns the number of this configuration's static targets that are absent from `new`.
    pub fn targets_removed_in(&self, new: &Self) -> usize {
        let stay: HashSet<_> = new.allowlist.targets.iter().map(|target| &target.name).collect();
        let targets = self.allowlist.targets.iter();
        targets.filter(|target| !stay.contains(&target.name)).count()
    }
}

/// The settings of flags and environment variables; empty or `None` leaves the value of the file.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Serve clients at this address instead of the file's (repeatable)
    #[arg(long, env = "SWITCHBOARD_LISTEN", value_name = "ADDR", value_parser = address, value_delimiter = ',')]
    pub listen: Vec<SocketAddr>,
    /// Serve /metrics, /livez and /readyz at this address
    #[arg(long, env = "SWITCHBOARD_ADMIN", value_name = "ADDR", value_parser = address)]
    pub admin: Option<SocketAddr>,
    /// Allow this target in addition to the file's (repeatable; separated by spaces in the environment)
    #[arg(
        long,
        env = "SWITCHBOARD_ALLOW",
        value_name = "NAME:PORT=ADDR[,ADDR…]",
        value_delimiter = ' '
    )]
    pub allow: Vec<StaticTarget>,
}

#[cfg(test)]
mod tests;
