//! The lines with which a connection begins to carry a session, and both sides of that exchange.

pub mod lines;
pub mod opening;
pub mod welcome;
