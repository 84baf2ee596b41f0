//! HTTP/2: many tunnels on one connection, as RFC 9113 has them, and what clients may not do to each other.

mod beside_bulk;
mod floods;
mod must;
mod over_tls;
mod peer;
pub(crate) mod raw;
mod siblings;
mod unread;
mod way_down;
mod windows;
