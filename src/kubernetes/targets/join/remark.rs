//! What the tenant of a Service and the operator should know.

use std::net::SocketAddr;

use crate::kubernetes::objects::annotations::AnnotationFault;
use crate::kubernetes::objects::model::{EndpointFault, Key};
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
    /// The EndpointSlice of this name, or an item of it, cannot be used.
    SliceUnusable(Key, Box<str>, EndpointFault),
    /// The Service is of type ExternalName, and never on the allowlist.
    ExternalName(Key),
}
