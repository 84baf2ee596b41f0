//! The protocols that several programs speak: sessions, tickets, notices, and their share of SSH and HTTP/2.

pub(crate) mod end_notice;
pub(crate) mod http2;
pub mod jwt;
pub mod resume;
pub(crate) mod ssh_disconnect;
pub mod ticket;
