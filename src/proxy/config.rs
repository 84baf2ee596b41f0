//! The settings of a process: one YAML file, overridden by flags and environment variables.
//!
//! `load` reads a file by `crate::base::yaml` into a `ConfigFile` (`file`), whose sections describe their keys themselves.
//! `rules` turns it into a [`Config`]: it finds the faults of several keys together, with `listen` those of two ports.
//! `warnings` finds what is odd about the whole. All findings of a file are reported together, or a YAML syntax error
//! and those before it. Flags and warnings are checked only if the file has no faults.

mod file;
mod listen;
mod load;
mod rules;
mod warnings;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

pub use crate::base::yaml::diagnostic::{Diagnostic, Position, Report, Severity};

use crate::base::values::address;
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
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The certificates of the proxy, and those that it requests from clients.
    pub tls: tls::Settings,
    /// The public ports; at least one.
    pub listen: Vec<Port>,
    /// The address of the admin port.
    pub admin: SocketAddr,
    /// The peers of the admin port that may read names of targets.
    pub admin_scrape: ScrapeNetworks,
    /// Access control.
    pub access: access::Options,
    /// The kubeconfig for the sources of `access` that read a cluster; `None` is that of the pod or the user.
    pub access_kubeconfig: Option<PathBuf>,
    /// The anchors that dial in; `None` if only static targets may have any.
    pub anchors: Option<anchors::Options>,
    /// True if the host keys of anchors are sent to clients.
    pub anchor_keys: bool,
    /// True if users may list the names that they may reach.
    pub lists_names: bool,
    /// The targets of the configuration, each with a name of its own.
    pub targets: Vec<StaticTarget>,
    /// The cluster with further targets, if there is one.
    pub cluster: Option<kubernetes::Options>,
    /// The limits of tunnels, targets, clients and the process.
    pub limits: Limits,
    /// The deadlines of every wait for a peer.
    pub timeouts: Timeouts,
    /// The phases of a shutdown.
    pub drain: drain::Options,
}

/// The purpose of reading a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To serve: a fault of a file that a process can run without, such as a kubeconfig, is a warning.
    Serve,
    /// To check: such a fault is an error.
    Check,
}

/// A configuration without faults.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// The settings of the file, overridden by flags and environment.
    pub config: Config,
    /// The warnings and notes about it.
    pub report: Report,
}

impl Config {
    /// Returns whether anchors may dial in.
    pub fn takes_anchors(&self) -> bool {
        self.anchors.is_some() || self.targets.iter().any(|target| target.dials_in.is_some())
    }

    /// Returns whether users are authenticated: those of requests, or those of anchors.
    pub fn proves_users(&self) -> bool {
        self.access.mode != access::Mode::Open || self.takes_anchors()
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
            access_kubeconfig: _,
            anchors,
            anchor_keys: _,
            lists_names: _,
            targets: _,
            cluster: _,
            limits: _,
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
        let stay: HashSet<_> = new.targets.iter().map(|target| &target.name).collect();
        let targets = self.targets.iter();
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
