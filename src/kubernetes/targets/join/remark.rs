//! What the tenant of a Service and the operator should know.

use std::net::SocketAddr;

use crate::kubernetes::objects::annotations::AnnotationFault;
use crate::kubernetes::objects::model::Key;
use crate::kubernetes::targets::guards::AddressClass;

/// A remark about a Service for its tenant and the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Remark {
    /// The Service was added to the allowlist.
    Added(Key),
    /// The Service was removed from the allowlist.
    Removed(Key),
    /// An annotation cannot be read, exceeds the ceiling or cannot be met.
    Annotation(Key, AnnotationFault),
    /// An endpoint is not dialled, because of its address.
    EndpointForbidden(Key, SocketAddr, AddressClass),
    /// An address of the EndpointSlice of this name, or its port, cannot be dialled.
    SliceUnusable(Key, Box<str>),
    /// The Service is of type ExternalName, and never on the allowlist.
    ExternalName(Key),
}

/// What an EndpointSlice needs.
pub(crate) const NEEDED: &str = "it needs the addressType IPv4 or IPv6, addresses of that type, and a TCP port from 1 to 65535";
