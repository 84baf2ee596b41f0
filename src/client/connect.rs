//! The walk of the ProxyCommand: from ssh's bytes to the proxy and back.

pub(crate) mod attempt;
pub(crate) mod carry;
pub(crate) mod hangup;
pub(crate) mod in_band;
pub(crate) mod login;
pub(crate) mod notice;
mod relay;
mod retry_after;
pub(crate) mod session;
pub(crate) mod stdio;
