//! The settings of a cluster.

mod workload_kind;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;

use self::workload_kind::NeededRules;
pub use self::workload_kind::WorkloadKind;
use crate::base::values::{domain, is_label};
use crate::base::yaml::forms::{self, Schema};
use crate::policy::allowlist::{self, Suffixes, Workload};

/// The Services of a cluster that are on the allowlist, and their names.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// True if the Services are on the allowlist.
    pub enabled: bool,
    /// The kubeconfig file of the API server; `None` for that of KUBECONFIG or the user, or, without one, for the pod's
    /// service account.
    pub kubeconfig: Option<PathBuf>,
    /// The Namespaces whose Services are watched; empty for all.
    #[serde(deserialize_with = "forms::list::<Namespace, _, _>")]
    pub namespaces: Vec<Box<str>>,
    /// A label selector of Namespaces: only their Services are on the allowlist. `None` for all.
    #[serde(deserialize_with = "forms::some::<Selector, _>")]
    pub namespace_selector: Option<Box<str>>,
    /// The label selector of Services.
    #[serde(deserialize_with = "forms::one::<Selector, _>")]
    pub selector: Box<str>,
    /// The pods that are on the allowlist by themselves.
    pub pods: PodOptions,
    /// The prefix of annotation names, with its slash.
    #[serde(deserialize_with = "forms::one::<AnnotationPrefix, _>")]
    pub annotation_prefix: Box<str>,
    /// The DNS domain of the cluster.
    #[serde(deserialize_with = "forms::one::<forms::Domain, _>")]
    pub cluster_domain: Box<str>,
    /// Further suffixes of a Service's names, besides those of the cluster domain.
    #[serde(deserialize_with = "forms::list::<forms::Domain, _, _>")]
    pub public_suffixes: Vec<Box<str>>,
    /// The port that clients may ask for instead of a Service's own SSH port.
    #[serde(deserialize_with = "forms::one::<forms::Port, _>")]
    pub alias_port: u16,
    /// The networks of endpoints; empty for all addresses but dangerous ones.
    #[serde(deserialize_with = "forms::list::<forms::Network, _, _>")]
    pub allowed_cidrs: Vec<IpNet>,
    /// The longest wait of a client for an endpoint of a Service that has none.
    #[serde(deserialize_with = "forms::one::<forms::Brief, _>")]
    pub wait_for_ready: Duration,
    /// True if the tunnels of a Service stay open when it is removed from the allowlist.
    #[serde(rename = "on_removal", deserialize_with = "forms::one::<OnRemoval, _>")]
    pub keeps_removed: bool,
    /// True if the annotation `wake` has an effect.
    #[serde(rename = "wake")]
    pub wakes: bool,
    /// The kinds of workloads that the annotations `wake` and `report-activity` can name.
    #[serde(deserialize_with = "forms::items")]
    pub workload_kinds: Vec<WorkloadKind>,
    /// How long a workload may take from its start to a ready endpoint.
    #[serde(deserialize_with = "forms::one::<forms::Brief, _>")]
    pub wake_timeout: Duration,
    /// True if the annotation `report-activity` has an effect.
    #[serde(rename = "report_activity")]
    pub reports_activity: bool,
    /// True if Events about Services are written.
    #[serde(rename = "events")]
    pub writes_events: bool,
    /// The file with the last known objects, for a restart.
    pub snapshot_file: Option<PathBuf>,
}

/// The pods that are on the allowlist by themselves, without a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PodOptions {
    /// True if pods are on the allowlist.
    pub enabled: bool,
    /// The label selector of pods; `None` for that of Services.
    #[serde(deserialize_with = "forms::some::<Selector, _>")]
    pub selector: Option<Box<str>>,
    /// The Namespaces whose pods are watched; empty for those of Services.
    #[serde(deserialize_with = "forms::list::<Namespace, _, _>")]
    pub namespaces: Vec<Box<str>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            enabled: false,
            kubeconfig: None,
            namespaces: Vec::new(),
            namespace_selector: None,
            selector: "switchboard.dev/expose=true".into(),
            pods: PodOptions::default(),
            annotation_prefix: "switchboard.dev/".into(),
            cluster_domain: "cluster.local".into(),
            public_suffixes: Vec::new(),
            alias_port: 22,
            allowed_cidrs: Vec::new(),
            wait_for_ready: Duration::from_secs(10),
            keeps_removed: false,
            wakes: false,
            workload_kinds: WorkloadKind::shipped(),
            wake_timeout: Duration::from_secs(90),
            reports_activity: false,
            writes_events: false,
            snapshot_file: None,
        }
    }
}

impl Options {
    /// Returns the options of the allowlist for the Services of this cluster.
    pub(super) fn allowlist_options(&self) -> allowlist::Options {
        let public = self.public_suffixes.iter().map(|suffix| &**suffix);
        allowlist::Options {
            suffixes: Arc::new(Suffixes::new(&self.cluster_domain, public)),
            keeps_removed: self.keeps_removed,
            wait_for_ready: self.wait_for_ready,
            wake: self.wakes.then_some(self.wake_timeout),
        }
    }

    /// Returns the kind of a workload; `None` if it is not configured.
    pub(super) fn kind(&self, workload: &Workload) -> Option<&WorkloadKind> {
        self.workload_kinds.iter().find(|kind| kind.name == workload.kind)
    }

    /// Returns the permissions that `pods`, `wake` and `report_activity` need, as rules of a Role; empty if all are off.
    pub fn needed_rules(&self) -> String {
        let needed = NeededRules {
            kinds: &self.workload_kinds,
            wakes: self.wakes,
            reports_activity: self.reports_activity,
        };
        let pods = "{apiGroups: [\"\"], resources: [pods], verbs: [get, list, watch]}";
        let rules = [self.pods.enabled.then(|| pods.to_owned()), Some(needed.to_string())];
        let rules = rules.into_iter().flatten().filter(|rules| !rules.is_empty());
        rules.collect::<Vec<_>>().join(", ")
    }
}

forms::forms! {
    Namespace: Box<str> = namespace, Schema::Pattern("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$");
    Selector: Box<str> = selector,
        Schema::Pattern("^[-A-Za-z0-9_./=!,()<> \\t\\r\\n]*[A-Za-z0-9][-A-Za-z0-9_./=!,()<> \\t\\r\\n]*$");
    AnnotationPrefix: Box<str> = annotation_prefix, Schema::Pattern("./$");
    OnRemoval: bool = keeps_removed, Schema::Words(&["close", "keep"]);
}

fn namespace(text: &str) -> Result<Box<str>, &'static str> {
    match is_label(text) {
        true => Ok(text.into()),
        false => Err("expected the name of a Namespace: lower case letters, digits and `-`"),
    }
}

/// Reads a label selector, whose grammar only the API server checks. An empty one would select everything, and so would
/// one that begins with a NUL, where the API server stops reading.
fn selector(text: &str) -> Result<Box<str>, &'static str> {
    let text = text.trim();
    let is_empty = !text.contains(|character: char| character.is_ascii_alphanumeric());
    match is_empty || !text.is_ascii() || text.contains('\0') {
        true => Err("expected a label selector such as `switchboard.dev/expose=true`"),
        false => Ok(text.into()),
    }
}

fn annotation_prefix(text: &str) -> Result<Box<str>, &'static str> {
    match text.strip_suffix('/').map(domain) {
        Some(Ok(_)) => Ok(text.into()),
        _ => Err("expected a DNS name with a slash, such as `switchboard.dev/`"),
    }
}

fn keeps_removed(text: &str) -> Result<bool, &'static str> {
    match text {
        "close" => Ok(false),
        "keep" => Ok(true),
        _ => Err("expected `close` or `keep`"),
    }
}
