//! The protocols that several programs speak: sessions, tickets, notices, their sentences, and their share of SSH.

pub(crate) mod end_notice;
pub mod jwt;
pub mod phrase;
pub mod registration;
pub mod resume;
pub(crate) mod ssh_disconnect;
pub mod ticket;
