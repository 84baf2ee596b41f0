//! Sockets: how they are bound, accepted, dialled, read and written, and what is said on them about addresses.

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
pub(crate) mod tls_records;
#[cfg(feature = "anchor")]
pub mod transport;
pub mod x509;
