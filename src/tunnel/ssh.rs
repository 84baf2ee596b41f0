//! The parts of SSH that the proxy reads: identification lines (RFC 4253 section 4.2). What it writes is in `ssh_disconnect`.

pub mod identification;
mod software;
