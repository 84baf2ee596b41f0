//! HTTP/2: many tunnels on one connection, as RFC 9113 has them, and what clients may not do to each other.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

#[path = "tls/authority.rs"]
#[expect(dead_code, reason = "each file of tests uses a part of it")]
mod authority;
#[path = "http2/beside_bulk.rs"]
mod beside_bulk;
#[path = "http2/floods.rs"]
mod floods;
#[path = "harness/harness.rs"]
#[expect(dead_code, reason = "each file of tests uses a part of it")]
mod harness;
#[path = "http2/must.rs"]
mod must;
#[path = "http2/over_tls.rs"]
mod over_tls;
#[path = "http2/peer.rs"]
mod peer;
#[path = "http2/raw.rs"]
mod raw;
#[path = "http2/siblings.rs"]
mod siblings;
#[path = "http2/unread.rs"]
mod unread;
#[path = "http2/way_down.rs"]
mod way_down;
#[path = "http2/windows.rs"]
mod windows;
