//! The parts of SSH that the proxy reads: identification lines (RFC 4253 section 4.2).

pub mod identification;
mod software;
