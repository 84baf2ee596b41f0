//! The tunnels that are open, as operators see them.

pub mod diagnosis;
pub mod ended_sessions;
pub mod events;
pub mod open_tunnel;
pub mod past;
pub mod refusals;
pub mod registry;
pub mod restrictions;
