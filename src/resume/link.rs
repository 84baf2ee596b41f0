//! A connection of a session, as long as it carries it.

use std::time::Instant;

use super::frame::Decoder;
use super::liveness::{Liveness, Timing};
use super::reason::Going;

/// The number of a connection of a session, in the order in which they began to carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attachment(pub(super) u64);

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
pub(super) struct Link {
    pub(super) decoder: Decoder,
    pub(super) liveness: Liveness,
    /// The number of the last PING that was not answered yet.
    pub(super) pong: Option<u64>,
    pub(super) leaving: Option<Going>,
    pub(super) left: Option<Going>,
    pub(super) has_sent_last: bool,
}

impl Link {
    pub(super) fn new(timing: Timing, now: Instant) -> Self {
        Self {
            decoder: Decoder::default(),
            liveness: Liveness::new(timing, now),
            pong: None,
            leaving: None,
            left: None,
            has_sent_last: false,
        }
    }
}
