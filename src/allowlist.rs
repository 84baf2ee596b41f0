//! Which authorities lead where.

use std::net::SocketAddr;

use crate::authority::Authority;
use crate::limits::TunnelOverrides;

/// A target that the configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticTarget {
    /// What clients ask for.
    pub name: Authority,
    /// Where it is; at least one.
    pub addresses: Vec<SocketAddr>,
    /// Its own limits.
    pub limits: TunnelOverrides,
}
