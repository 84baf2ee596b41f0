//! A public port: where it listens, and what is spoken on it before a CONNECT.

use std::net::SocketAddr;

use crate::net::listener;
use crate::net::tls;
use crate::proxy::http::Refusals;
use crate::tunnel::proxy_header;

/// One public port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The address, and whether other processes may share it.
    pub listener: listener::Options,
    /// The peers that must begin with a PROXY header.
    pub proxy_header: proxy_header::Policy,
    /// Whether clients may or must speak TLS.
    pub tls: tls::Mode,
    /// How refusals are told.
    pub refusals: Refusals,
}

/// A port of this process alone, without TLS and PROXY header.
impl From<SocketAddr> for Port {
    fn from(address: SocketAddr) -> Self {
        Self {
            listener: address.into(),
            proxy_header: proxy_header::Policy::Off,
            tls: tls::Mode::Off,
            refusals: Refusals::default(),
        }
    }
}
