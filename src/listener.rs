//! Binds the public port and accepts, surviving a full descriptor table.

use std::net::SocketAddr;

/// One public port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where to listen; port 0 lets the kernel choose.
    pub address: SocketAddr,
}
