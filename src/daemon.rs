//! The parts of a program that serves, proxy and anchor alike: logs, threads, readiness, the admin port.

pub mod admin;
pub(crate) mod connections;
pub mod logging;
pub mod process;
pub(crate) mod readiness;
pub mod threads;
pub mod vital;
