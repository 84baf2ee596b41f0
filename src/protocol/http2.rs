//! What both ends of a CONNECT over HTTP/2 need beside h2: the price of a peer's frames, and what a stream has received.

pub(crate) mod frames;
pub(crate) mod inbox;
