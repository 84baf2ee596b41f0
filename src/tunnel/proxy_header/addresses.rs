//! The types that both versions of a header share: its addresses, its length, and its error.

use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

/// The addresses of a connection between a client and the first proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressPair {
    /// The client's.
    pub source: SocketAddr,
    /// The one that the client connected to.
    pub destination: SocketAddr,
}

impl AddressPair {
    /// Creates the addresses of a connection without a header, whose peer is canonical already. Without a local address the
    /// destination is the peer's.
    pub fn without_header(peer: SocketAddr, local: Option<SocketAddr>) -> Self {
        let local = local.unwrap_or(peer);
        Self {
            source: peer,
            destination: SocketAddr::new(local.ip().to_canonical(), local.port()),
        }
    }
}

/// The bytes are no valid header of version 1 or 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The length of a header of which the first bytes are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderLen {
    /// Not known yet: more bytes are needed.
    Incomplete,
    /// In bytes.
    Exactly(usize),
}

/// Addresses of one family: neither version can mix the families. A mixed pair becomes IPv6.
pub(super) enum SameFamily {
    V4(SocketAddrV4, SocketAddrV4),
    V6(SocketAddrV6, SocketAddrV6),
}

impl From<&AddressPair> for SameFamily {
    fn from(addresses: &AddressPair) -> Self {
        let mapped = |address: SocketAddr| match address {
            SocketAddr::V4(address) => SocketAddrV6::new(address.ip().to_ipv6_mapped(), address.port(), 0, 0),
            SocketAddr::V6(address) => address,
        };
        match (addresses.source, addresses.destination) {
            (SocketAddr::V4(source), SocketAddr::V4(destination)) => Self::V4(source, destination),
            (source, destination) => Self::V6(mapped(source), mapped(destination)),
        }
    }
}
