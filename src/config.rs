//! The settings of a process: one YAML file, overlaid by flags and environment.

mod fault;
mod schema;
mod section;
mod tree;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

pub use fault::{Fault, Faults, LoadError};

use crate::allowlist::StaticTarget;
use crate::connect;
use crate::drain;
use crate::kubernetes;
use crate::limits::Limits;
use crate::net::dial;
use crate::net::listener;
use crate::relay;
use crate::ssh::identification;
use crate::tls;
use fault::Gathered;
use section::Field;

/// Every setting, checked. `config/switchboard.yaml` documents each with its default.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The public ports; at least one.
    pub listen: Vec<listener::Options>,
    /// Where metrics and health are served.
    pub admin: SocketAddr,
    /// The targets that need no cluster; no two have one name.
    pub targets: Vec<StaticTarget>,
    /// Which cluster has more of them, if any.
    pub kubernetes: Option<kubernetes::Options>,
    /// What bounds tunnels, each and together.
    pub limits: Limits,
    /// What is shown to clients who speak TLS, and wanted of them.
    pub tls: tls::Settings,
    /// How long a TLS handshake may take.
    pub handshake: tls::Options,
    /// How long a request head may take.
    pub connect: connect::Options,
    /// How long a dial may take.
    pub dial: dial::Options,
    /// How long both sides may take to say that they speak SSH.
    pub identification: identification::Options,
    /// How long a tunnel may be silent.
    pub relay: relay::Options,
    /// How a shutdown goes.
    pub drain: drain::Options,
}

/// What the file `{}` says: `0.0.0.0:8080` for clients, `0.0.0.0:9090` for the operator, and no targets.
impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8080)).into()],
            admin: (Ipv4Addr::UNSPECIFIED, 9090).into(),
            targets: Vec::new(),
            kubernetes: None,
            limits: Limits::default(),
            tls: tls::Settings::default(),
            handshake: tls::Options::default(),
            connect: connect::Options::default(),
            dial: dial::Options::default(),
            identification: identification::Options::default(),
            relay: relay::Options::default(),
            drain: drain::Options::default(),
        }
    }
}

impl Config {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// Every fault of the file at once; after a syntax error, what is wrong before it and the error itself.
    pub fn parse(text: &str) -> Result<Self, Faults> {
        Self::parse_bytes(text.as_bytes())
    }

    /// Reads a file of at most 1 MiB.
    ///
    /// # Errors
    /// When it can not be read, or has faults.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes))
            .map_err(|source| LoadError::Unreadable {
                path: path.to_owned(),
                source,
            })?;
        Self::parse_bytes(&bytes).map_err(|faults| LoadError::Faulty {
            path: path.to_owned(),
            faults,
        })
    }

    /// This configuration with what the command line and the environment say in its place.
    ///
    /// A target is added, or replaces the one of the same name.
    #[must_use]
    pub fn overridden(mut self, by: Overrides) -> Self {
        if !by.listen.is_empty() {
            self.listen = by.listen.into_iter().map(listener::Options::from).collect();
        }
        self.admin = by.admin.unwrap_or(self.admin);
        let mut places: HashMap<_, _> = self.targets.iter().map(|target| target.name.clone()).zip(0..).collect();
        for target in by.allow {
            let next = self.targets.len();
            let place = *places.entry(target.name.clone()).or_insert(next);
            match self.targets.get_mut(place) {
                Some(known) => *known = target,
                None => self.targets.push(target),
            }
        }
        self
    }

    /// The sections in which `new` differs and that a running process can not change; targets, limits and TLS it can.
    pub fn changes_needing_restart(&self, new: &Self) -> Vec<&'static str> {
        // By name, so that a new field must be sorted into one of the two.
        let Self {
            listen,
            admin,
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

    /// How many of its static targets `new` has not.
    pub fn targets_lost_in(&self, new: &Self) -> usize {
        let stay: HashSet<_> = new.targets.iter().map(|target| &target.name).collect();
        self.targets
            .iter()
            .filter(|target| !stay.contains(&target.name))
            .count()
    }

    fn parse_bytes(bytes: &[u8]) -> Result<Self, Faults> {
        let faults = Gathered::default();
        let config = text(bytes, &faults)
            .and_then(|text| tree::read(text, &faults))
            .and_then(|tree| Field::root(&tree, &faults).section(schema::config));
        faults.or(config.unwrap_or_default())
    }
}

/// What flags and environment set; empty or `None` leaves the file's value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// In place of every listener.
    pub listen: Vec<SocketAddr>,
    /// In place of the admin address.
    pub admin: Option<SocketAddr>,
    /// Further targets.
    pub allow: Vec<StaticTarget>,
}

fn text<'a>(bytes: &'a [u8], faults: &Gathered) -> Option<&'a str> {
    if bytes.len() as u64 > LARGEST {
        faults.push(None, "", "larger than 1 MiB");
        return None;
    }
    std::str::from_utf8(bytes)
        .map_err(|error| {
            let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
            faults.push(u64::try_from(line).ok(), "", "not UTF-8");
        })
        .ok()
}

/// 1 MiB: 20,000 short static targets, and as large as a ConfigMap can be.
const LARGEST: u64 = 1 << 20;

#[cfg(test)]
mod tests;
