//! The objects of the cluster, with the fields that lookups and dials need. Snapshots store them as JSON.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::annotations::{AnnotationError, Annotations};
use crate::policy::allowlist::TargetId;

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// core/v1 Service.
    Service,
    /// discovery.k8s.io/v1 EndpointSlice.
    Slice,
    /// core/v1 Pod.
    Pod,
    /// core/v1 Namespace.
    Namespace,
}

impl Kind {
    /// Returns the plural name of the API, also the field `kind` of log lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Service => "services",
            Self::Slice => "endpointslices",
            Self::Pod => "pods",
            Self::Namespace => "namespaces",
        }
    }
}

/// The identity of an object among those of its kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Key {
    /// The object's namespace; empty for a Namespace.
    pub(crate) namespace: Box<str>,
    /// The object's name.
    pub(crate) name: Box<str>,
}

impl Key {
    /// Creates the identity of an object.
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        let (namespace, name) = (namespace.into(), name.into());
        Self { namespace, name }
    }

    /// Returns the identity of a pod.
    pub(crate) fn of_pod(namespace: &str, pod: &str) -> Self {
        Self::new(namespace, &format!("{pod}{}", TargetId::POD))
    }

    /// Returns the name of a pod; `None` for another object.
    pub(crate) fn pod_name(&self) -> Option<&str> {
        self.name.strip_suffix(TargetId::POD)
    }

    /// Returns the identity of the target of a Service or a pod.
    pub(crate) fn target_id(&self) -> TargetId {
        TargetId {
            namespace: self.namespace.clone(),
            service: self.name.clone(),
        }
    }
}

/// Prints `namespace/name`, or the name of a Namespace.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Object {
    /// A Service.
    Service(Box<Service>),
    /// An EndpointSlice.
    Slice(Box<Slice>),
    /// A pod that is a target by itself.
    Pod(Box<Pod>),
    /// A Namespace. Only its existence matters: the API server has applied the selector.
    Namespace,
}

/// A Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Service {
    /// True for `type: ExternalName`: a DNS name of a tenant's choice, which may point out of the cluster.
    pub(crate) external: bool,
    /// True if endpoints that are not ready count as ready (`publishNotReadyAddresses`).
    pub(crate) publishes_not_ready: bool,
    /// The port for SSH; `None` if unknown.
    pub(crate) port: Option<ServicePort>,
    /// The values of its annotations.
    pub(crate) annotations: Annotations,
    /// The object that the label `owner` names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<Box<str>>,
    /// The errors of its annotations.
    pub(crate) faults: Vec<AnnotationError>,
}

/// A pod, as a Service of its own with one slice: it is joined and guarded as one. Its key ends with [`POD`](TargetId::POD),
/// which no Service's name has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pod {
    /// The identity of this pod: another one of its name has another.
    pub(crate) uid: Box<str>,
    /// True if it is being deleted.
    pub(crate) is_terminating: bool,
    /// Its port and its annotations.
    pub(crate) service: Service,
    /// Its addresses.
    pub(crate) slice: Slice,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServicePort {
    /// The number that clients ask for.
    pub(crate) number: u16,
    /// The name, which the Service's EndpointSlices use, too; empty for a port without a name.
    pub(crate) name: Box<str>,
    /// True if the Service has no ports, as only a headless one may: its EndpointSlices have none either, and its pods
    /// are dialled at this number.
    pub(crate) is_implied: bool,
}

/// An EndpointSlice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Slice {
    /// The name of its Service.
    pub(crate) service: Box<str>,
    /// The TCP ports with a valid number.
    pub(crate) ports: Box<[SlicePort]>,
    /// The endpoints with a valid address.
    pub(crate) endpoints: Box<[Endpoint]>,
    /// The names of its other ports (another protocol, or no valid number). A port without a name has an empty one.
    pub(crate) unusable_ports: Box<[Box<str>]>,
    /// True if an endpoint has no IP address of the address type.
    pub(crate) has_unusable_address: bool,
    /// A label of its Service, which slices get too, that resembles the one that is selected; empty if there is none.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub(crate) other_label: Box<str>,
}

/// A port of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SlicePort {
    /// The name; empty for a port without one.
    pub(crate) name: Box<str>,
    /// The port of the pods.
    pub(crate) number: u16,
}

/// An endpoint of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Endpoint {
    /// The first address. Further ones are interchangeable with it.
    pub(crate) address: IpAddr,
    /// The state of the pod.
    pub(crate) state: State,
    /// The node of the pod; empty if unknown.
    pub(crate) node: Box<str>,
    /// The name of the pod below its Service's, as DNS has it; empty if it has none.
    #[serde(default)]
    pub(crate) hostname: Box<str>,
}

/// The state of an endpoint's pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum State {
    /// The pod serves.
    Ready,
    /// The pod terminates and still serves.
    Terminating,
    /// The pod does not serve, or no longer.
    NotReady,
}
