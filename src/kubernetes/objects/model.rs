//! The objects of the cluster, with the fields that lookup and dial need. Snapshots hold them as JSON.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::annotations::{AnnotationFault, Annotations};

/// The kind of an object.
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
    /// The plural name of the API, also the field `kind` of log lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Service => "services",
            Self::Slice => "endpointslices",
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
    /// A Namespace, which has nothing to say but that it exists: the API server has applied the selector.
    Namespace,
}

/// A Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Service {
    /// `type: ExternalName`: a DNS name of a tenant's choice, which leads out of the cluster.
    pub(crate) external: bool,
    /// `publishNotReadyAddresses`: whether endpoints that are not ready count as ready.
    pub(crate) publishes_not_ready: bool,
    /// The port for SSH.
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
    /// The name, which its EndpointSlices have too; empty for a port without one.
    pub(crate) name: Box<str>,
    /// Whether the Service has no ports, as only a headless one may: its EndpointSlices have none either, and its pods
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
    /// Its items that cannot be used, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unusable: Option<Box<Unusable>>,
}

/// The items of an EndpointSlice that cannot be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Unusable {
    /// Whether `addressType` is neither `IPv4` nor `IPv6`, so that nothing of the slice counts.
    pub(crate) address_type: bool,
    /// Whether an endpoint has no address of that type.
    pub(crate) address: bool,
    /// The names of ports without a number from 1 to 65535, empty for a port without a name.
    pub(crate) port_numbers: Vec<Box<str>>,
    /// The names of ports of another protocol than TCP.
    pub(crate) protocols: Vec<Box<str>>,
}

/// The reason why endpoints of a Service are not dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndpointFault {
    /// The guards refuse the address.
    Forbidden,
    /// See [`Unusable::address_type`].
    AddressType,
    /// See [`Unusable::address`].
    Address,
    /// The port of the Service is one of [`Unusable::port_numbers`].
    PortNumber,
    /// The port of the Service is one of [`Unusable::protocols`].
    Protocol,
}

impl EndpointFault {
    /// Every fault, for metrics that show zero before the first.
    pub(crate) const ALL: [Self; 5] = [
        Self::Forbidden,
        Self::AddressType,
        Self::Address,
        Self::PortNumber,
        Self::Protocol,
    ];

    /// The value of the metric label `reason`.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Forbidden => "forbidden",
            Self::AddressType => "address_type",
            Self::Address => "address",
            Self::PortNumber => "port",
            Self::Protocol => "protocol",
        }
    }

    /// The fault as a log line has it.
    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Self::Forbidden => "an address is not allowed",
            Self::AddressType => "its addressType is neither IPv4 nor IPv6",
            Self::Address => "an endpoint has no address of its addressType",
            Self::PortNumber => "its port is not a number from 1 to 65535",
            Self::Protocol => "its port is not TCP",
        }
    }
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
    /// The node of the pod; empty where it is not named.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub(crate) node: Box<str>,
}

/// The state of an endpoint's pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum State {
    /// The pod serves.
    Ready,
    /// The pod terminates and still serves.
    #[serde(rename = "Leaving")]
    Terminating,
    /// The pod does not serve, or no longer.
    NotReady,
}
