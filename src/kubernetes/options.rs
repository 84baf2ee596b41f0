//! The settings of a cluster.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use crate::policy::allowlist::{self, Suffixes};

/// The Services of a cluster that are on the allowlist, and their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The kubeconfig file of the API server; `None` for the pod's service account, or outside a cluster for KUBECONFIG.
    pub kubeconfig: Option<PathBuf>,
    /// The Namespaces whose Services are watched; empty for all.
    pub namespaces: Vec<Box<str>>,
    /// A label selector of Namespaces: only their Services are on the allowlist. `None` for all.
    pub namespace_selector: Option<Box<str>>,
    /// The label selector of Services.
    pub selector: Box<str>,
    /// The prefix of annotation names, with its slash.
    pub annotation_prefix: Box<str>,
    /// The DNS domain of the cluster.
    pub cluster_domain: Box<str>,
    /// Further suffixes of a Service's names, beside those of the cluster domain.
    pub public_suffixes: Vec<Box<str>>,
    /// The port that leads to the SSH port of every Service, beside the number of that port.
    pub alias_port: u16,
    /// The networks of endpoints; empty for all networks without dangerous addresses.
    pub allowed_cidrs: Vec<IpNet>,
    /// The longest wait of a client for an endpoint of a Service that has none.
    pub wait_for_ready: Duration,
    /// Whether the tunnels of a Service go on when it leaves the allowlist.
    pub keeps_removed: bool,
    /// Whether the annotation `wake` counts.
    pub wakes: bool,
    /// How long a workload that was started has for an endpoint.
    pub wake_timeout: Duration,
    /// Whether the annotation `report-activity` counts.
    pub reports_activity: bool,
    /// Whether Events about Services are written.
    pub writes_events: bool,
    /// The file with the last known objects, for a restart.
    pub snapshot_file: Option<PathBuf>,
    /// Whether a port asks clients for certificates, which the annotation `allowed-clients` needs.
    pub knows_clients: bool,
    /// Whether users are proved, which the annotations `allowed-users` and `allowed-groups` need.
    pub knows_users: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            namespaces: Vec::new(),
            namespace_selector: None,
            selector: "switchboard.dev/expose=true".into(),
            annotation_prefix: "switchboard.dev/".into(),
            cluster_domain: "cluster.local".into(),
            public_suffixes: Vec::new(),
            alias_port: 22,
            allowed_cidrs: Vec::new(),
            wait_for_ready: Duration::from_secs(10),
            keeps_removed: false,
            wakes: false,
            wake_timeout: Duration::from_secs(90),
            reports_activity: false,
            writes_events: false,
            snapshot_file: None,
            knows_clients: false,
            knows_users: false,
        }
    }
}

impl Options {
    /// The options of the allowlist for the Services of this cluster.
    pub(super) fn of_allowlist(&self) -> allowlist::Options {
        let public = self.public_suffixes.iter().map(|suffix| &**suffix);
        allowlist::Options {
            suffixes: Arc::new(Suffixes::new(&self.cluster_domain, public)),
            keeps_removed: self.keeps_removed,
            wait_for_ready: self.wait_for_ready,
            wake: self.wakes.then_some(self.wake_timeout),
        }
    }
}
