//! HTTP/2: many tunnels on one connection, as RFC 9113 has them, and what clients may not do to each other.

mod drain;
mod floods;
mod keystrokes;
mod logout;
mod over_tls;
pub(crate) mod peer;
pub(crate) mod raw;
mod rfc9113;
pub(crate) mod siblings;
pub(crate) mod unread;
mod windows;
