//! Sockets: how they are bound, accepted, dialled, read and written, and what is said on them about addresses.

pub mod dial;
pub mod listener;
pub(crate) mod overlap;
pub mod proxy_header;
pub mod sock_diag;
pub(crate) mod socket;
pub mod transport;
