//! The part of SSH that the proxy reads: identification lines (RFC 4253 section 4.2). The message that it writes is in
//! `protocol::ssh_disconnect`.

pub mod identification;
