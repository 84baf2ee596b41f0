//! The lines at the start of a connection that carries a session, and both sides of that handshake.

pub mod anchor_handshake;
pub mod client_handshake;
pub mod lines;
