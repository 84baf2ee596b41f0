//! Sockets and TLS: listeners, keepalive, certificates, and the transport at each end of a tunnel.

#[cfg(feature = "server")]
pub(crate) mod exchange;
pub(crate) mod keepalive;
#[cfg(feature = "anchor")]
pub(crate) mod listen_conflicts;
#[cfg(feature = "anchor")]
pub mod listener;
#[cfg(feature = "anchor")]
pub mod sock_diag;
#[cfg(feature = "anchor")]
pub(crate) mod socket;
#[cfg(feature = "server")]
pub mod tls;
#[cfg(feature = "server")]
pub(crate) mod tls_records;
#[cfg(feature = "anchor")]
pub mod transport;
pub mod x509;
