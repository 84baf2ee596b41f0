//! The SSH of the proxy: identification lines (RFC 4253 section 4.2), which it reads, and the server of the jump host. The
//! message that it writes is in `protocol::ssh_disconnect`.

pub mod identification;
pub mod jump;
