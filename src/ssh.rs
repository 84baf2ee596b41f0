//! The parts of SSH that the proxy reads and writes: identification lines and SSH_MSG_DISCONNECT (RFC 4253).

pub(crate) mod disconnect;
pub mod identification;
mod software;
