//! Protocols of several programs: sessions, registrations, listings, tickets, JWTs, notices, SSH disconnects, WebSocket.

pub(crate) mod end_notice;
pub mod host_key;
pub mod jwt;
pub mod listing;
pub mod phrase;
pub mod registration;
pub mod resume;
pub mod ssh_disconnect;
pub mod ticket;
pub mod websocket;
