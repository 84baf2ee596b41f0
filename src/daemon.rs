//! What the programs that serve share, the proxy and the anchor: their logs, their threads, and the admin port.

pub mod admin;
pub mod calls;
pub(crate) mod connections;
pub mod logging;
pub mod process_size;
pub(crate) mod readiness;
pub mod threads;
pub mod vital;
