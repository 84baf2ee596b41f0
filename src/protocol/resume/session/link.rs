//! A connection of a session, as long as it carries it.

use std::time::Instant;

use crate::protocol::resume::frame::Decoder;
use crate::protocol::resume::liveness::{Liveness, Timing};
use crate::protocol::resume::reason::Going;

/// The number of a connection of a session, in the order in which they began to carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachment(pub(in crate::protocol::resume) u64);

/// The state of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// There is none, or not the one that was asked about.
    Detached,
    /// It carries the session.
    Alive,
    /// Nothing has come for too long. It is to be dropped.
    Dead,
    /// The other side drops it. So should this one.
    Going(Going),
}

/// The state that ends with a connection.
#[derive(Debug)]
pub(in crate::protocol::resume) struct Link {
    pub(in crate::protocol::resume) decoder: Decoder,
    pub(in crate::protocol::resume) liveness: Liveness,
    /// The number of the last PING that was not answered yet.
    pub(in crate::protocol::resume) pong: Option<u64>,
    pub(in crate::protocol::resume) left: Option<Going>,
    pub(in crate::protocol::resume) has_sent_last: bool,
}

impl Link {
    pub(in crate::protocol::resume) fn new(timing: Timing, now: Instant) -> Self {
        Self {
            decoder: Decoder::default(),
            liveness: Liveness::new(timing, now),
            pong: None,
            left: None,
            has_sent_last: false,
        }
    }
}
