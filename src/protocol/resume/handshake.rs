//! The lines with which a connection begins to carry a session, and both sides of that handshake.

pub mod anchor_handshake;
pub mod client_handshake;
pub mod lines;
