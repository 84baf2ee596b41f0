//! The tunnels that are open, as operators see them.

pub mod diagnosis;
pub mod events;
pub mod facts;
pub mod open_tunnel;
pub mod registry;
