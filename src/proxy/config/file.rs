//! The configuration as its file has it, and the settings that it makes.

use std::collections::HashMap;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;

use super::{Config, Overrides, listen};
use crate::base::yaml::forms::{self, Schema};
use crate::daemon::admin::ScrapeNetworks;
use crate::kubernetes;
use crate::net::tls;
use crate::policy::access;
use crate::policy::allowlist::StaticTarget;
use crate::protocol::host_key::KeySource;
use crate::proxy::anchors;
use crate::proxy::connection::{Port, Timeouts};
use crate::tunnel::drain;
use crate::tunnel::limits::{
    Ceiling, ClientCaps, Limits, TargetCaps, TotalCaps, TunnelLimits, UsableAnnotations, UserCaps,
};

/// The keys of the file. [`Config`] says what they mean.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ConfigFile {
    pub(super) tls: tls::Settings,
    #[serde(deserialize_with = "listen::ports")]
    pub(super) listen: Vec<Port>,
    #[serde(deserialize_with = "forms::one::<listen::LocalAddress, _>")]
    pub(super) admin: SocketAddr,
    #[serde(deserialize_with = "listen::scrape_networks")]
    pub(super) admin_scrape: ScrapeNetworks,
    pub(super) access: access::Options,
    pub(super) anchors: Option<anchors::Options>,
    pub(super) allowlist: AllowlistFile,
    pub(super) limits: LimitsFile,
    /// True if both sides of a tunnel must begin with an SSH identification. A target may have its own setting.
    pub(super) ssh_only: bool,
    pub(super) timeouts: Timeouts,
    pub(super) drain: drain::Options,
}

/// The keys of `allowlist`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AllowlistFile {
    /// True if a request that `ssh_only` or `access` would refuse is only reported.
    pub(super) report_only: bool,
    /// The sources whose host keys are sent to clients.
    #[serde(deserialize_with = "forms::list::<PublishedBy, _, _>")]
    pub(super) host_keys: Vec<KeySource>,
    /// The users that may list names.
    pub(super) listing: NameListing,
    #[serde(rename = "static", deserialize_with = "forms::items")]
    pub(super) targets: Vec<StaticTarget>,
    pub(super) kubernetes: Option<kubernetes::Options>,
}

/// The users that may list the names of the allowlist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum NameListing {
    /// Nobody.
    #[default]
    Off,
    /// Each user those that the user may reach.
    Users,
}

forms::forms! {
    PublishedBy: KeySource = str::parse::<KeySource>, Schema::Words(&["config", "annotation", "anchor"]);
}

impl Default for AllowlistFile {
    fn default() -> Self {
        Self {
            report_only: false,
            host_keys: KeySource::ALL.into(),
            listing: NameListing::Off,
            targets: Vec::new(),
            kubernetes: None,
        }
    }
}

/// The keys of `limits`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LimitsFile {
    tunnel: TunnelLimits,
    target: TargetCaps,
    client: ClientCaps,
    user: UserCaps,
    process: TotalCaps,
    ceiling: Ceiling,
}

/// The file `{}`: clients at `[::]:8080`, the admin port at `[::]:9090`, no targets.
impl Default for ConfigFile {
    fn default() -> Self {
        Self {
            tls: tls::Settings::default(),
            listen: vec![SocketAddr::from((Ipv6Addr::UNSPECIFIED, 8080)).into()],
            admin: (Ipv6Addr::UNSPECIFIED, 9090).into(),
            admin_scrape: None,
            access: access::Options::default(),
            anchors: None,
            allowlist: AllowlistFile::default(),
            limits: LimitsFile::default(),
            ssh_only: true,
            timeouts: Timeouts::default(),
            drain: drain::Options::default(),
        }
    }
}

impl ConfigFile {
    /// Returns whether a port requests certificates from clients.
    pub(super) fn requests_client_certificates(&self) -> bool {
        self.tls.client_auth != tls::ClientAuth::Off && self.listen.iter().any(|port| port.tls != tls::Mode::Off)
    }

    /// Returns the settings, overridden by the values of the command line and the environment.
    ///
    /// A target of `overrides` is added, or replaces the target of the same name.
    pub(super) fn into_config(mut self, overrides: &Overrides, access_kubeconfig: Option<PathBuf>) -> Config {
        if !overrides.listen.is_empty() {
            self.listen = overrides.listen.iter().copied().map(Port::from).collect();
        }
        let annotations = UsableAnnotations {
            allowed_clients: self.requests_client_certificates(),
            allowed_users: self.access.mode != access::Mode::Open,
            dials_in: self.anchors.is_some(),
            host_keys: self.allowlist.host_keys.contains(&KeySource::Annotation),
        };
        let mut targets = self.allowlist.targets;
        if !self.allowlist.host_keys.contains(&KeySource::Config) {
            targets.iter_mut().for_each(|target| target.host_keys = None);
        }
        let mut indices: HashMap<_, _> = targets.iter().map(|target| target.name.clone()).zip(0..).collect();
        for target in &overrides.allow {
            let next = targets.len();
            let index = *indices.entry(target.name.clone()).or_insert(next);
            match targets.get_mut(index) {
                Some(known) => *known = target.clone(),
                None => targets.push(target.clone()),
            }
        }
        let limits = self.limits;
        Config {
            tls: self.tls,
            listen: self.listen,
            admin: overrides.admin.unwrap_or(self.admin),
            admin_scrape: self.admin_scrape,
            access: self.access,
            access_kubeconfig,
            anchors: self.anchors,
            lists_names: self.allowlist.listing == NameListing::Users,
            anchor_keys: self.allowlist.host_keys.contains(&KeySource::Anchor),
            targets,
            cluster: self.allowlist.kubernetes,
            limits: Limits {
                tunnel: limits.tunnel,
                target: limits.target,
                client: limits.client,
                user: limits.user,
                process: limits.process,
                ceiling: limits.ceiling,
                ssh_only: self.ssh_only,
                reports: self.allowlist.report_only,
                annotations,
            },
            timeouts: self.timeouts,
            drain: self.drain,
        }
    }
}

/// The settings of the file `{}`.
impl Default for Config {
    fn default() -> Self {
        ConfigFile::default().into_config(&Overrides::default(), None)
    }
}
