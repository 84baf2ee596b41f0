//! The parts of SSH that the proxy reads and writes: identification lines (RFC 4253 section 4.2) and a disconnect.

pub(crate) mod disconnect;
pub mod identification;
mod software;
