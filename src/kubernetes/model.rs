//! What is kept of the cluster's objects: only what lookup and dial need.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::annotations::{AnnotationFault, Annotations};

/// A kind of object that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// core/v1 Service.
    Service,
    /// discovery.k8s.io/v1 EndpointSlice.
    Slice,
    /// core/v1 Namespace.
    Namespace,
}

impl Kind {
    /// What log lines call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Service => "services",
            Self::Slice => "endpointslices",
            Self::Namespace => "namespaces",
        }
    }
}

/// Which object of its kind. A Namespace has no namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Key {
    /// Where it is.
    pub(crate) namespace: Box<str>,
    /// What it is called there.
    pub(crate) name: Box<str>,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}

/// An object, reduced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Object {
    /// See [`ServiceFacts`].
    Service(Box<ServiceFacts>),
    /// See [`SliceFacts`].
    Slice(Box<SliceFacts>),
    /// It exists: the selector has been applied by the API server.
    Namespace,
}

/// A Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServiceFacts {
    /// Seconds since 1970; the largest number when it does not say.
    pub(crate) created: u64,
    /// `type: ExternalName`: a DNS name that a tenant chose, and no place of the cluster.
    pub(crate) external: bool,
    /// Whether endpoints count that are not ready.
    pub(crate) publishes_not_ready: bool,
    /// Which of its ports is for SSH.
    pub(crate) port: Option<ServicePort>,
    /// The values of its annotations.
    #[serde(rename = "asked")]
    pub(crate) annotations: Annotations,
    /// The faults of its annotations.
    pub(crate) faults: Vec<AnnotationFault>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServicePort {
    /// The number that clients ask for.
    pub(crate) number: u16,
    /// What its EndpointSlices call it; empty if it has no name.
    pub(crate) name: Box<str>,
    /// It is not the Service's, which has no ports: so are its EndpointSlices, and its pods are dialled as they are.
    pub(crate) is_implied: bool,
}

/// An EndpointSlice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SliceFacts {
    /// The Service that it is of.
    pub(crate) service: Box<str>,
    /// Its TCP ports; those without a number, or with one that cannot be, are left out.
    pub(crate) ports: Box<[SlicePort]>,
    /// Its endpoints; those with an address that is none are left out.
    pub(crate) endpoints: Box<[Endpoint]>,
}

/// A port of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SlicePort {
    /// Empty if it has no name.
    pub(crate) name: Box<str>,
    /// Of the pods.
    pub(crate) number: u16,
}

/// One endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Endpoint {
    /// Its first address: the others lead to the same pod.
    pub(crate) address: IpAddr,
    /// Whether it serves.
    pub(crate) state: State,
}

/// Whether an endpoint serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum State {
    /// It does.
    Ready,
    /// It does still, and will end.
    Leaving,
    /// It does not, or no longer.
    NotReady,
}
