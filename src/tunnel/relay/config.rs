//! The inputs of a relay: the two transports of a tunnel, and the configuration of the relay.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;

use super::cooperative_yield::Yielder;
use super::meter::Meter;
use super::prefix::InspectPrefix;
use super::splice::PipePool;
use super::strategy::HOT;
use crate::tunnel::direction::Both;
use crate::tunnel::drain::TunnelGuard;
use crate::tunnel::limits::bucket::{RateLimit, RateOverride};
use crate::tunnel::limits::budget::Budget;
use crate::tunnel::limits::slots::Slots;

/// The longest times that a relay goes on without use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Without an active minute, as [`activity_rule`](super::activity_rule) has it; `None` is for ever: SSH sessions
    /// sleep for days.
    pub idle: Option<Duration>,
    /// Without a byte either way, once one side has finished.
    pub half_closed: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            idle: None,
            half_closed: Duration::from_secs(300),
        }
    }
}

/// The two transports of a tunnel, and the early data that was read from them.
#[derive(Debug)]
pub struct Transports<D, U = TcpStream> {
    /// The client's: a socket, a TLS session or an HTTP/2 stream.
    pub downstream: D,
    /// The target's: a socket, or the HTTP/2 stream of an anchor.
    pub upstream: U,
    /// `None` once the relay has begun: an idle tunnel holds none.
    pub early: Option<Box<EarlyData>>,
}

impl<D, U> Transports<D, U> {
    /// Creates the transports of a tunnel, of whose client `upload` was already read.
    pub(crate) fn new(downstream: D, upstream: U, upload: Vec<u8>) -> Self {
        let early = EarlyData {
            upload,
            ..EarlyData::default()
        };
        Self {
            downstream,
            upstream,
            early: Some(Box::new(early)),
        }
    }
}

/// Early data: the first bytes of each direction, read before the relay begins.
#[derive(Debug, Default)]
pub struct EarlyData {
    /// From the client, such as those after its request head.
    pub upload: Vec<u8>,
    /// From the target.
    pub download: Vec<u8>,
    /// The inspector of the prefixes of both directions, at the cost of [`RelayConfig::is_inspected`]; `None` for none.
    /// As early data, it takes no memory of an idle tunnel.
    pub inspector: Option<Arc<dyn InspectPrefix>>,
}

/// The limits of one direction.
#[derive(Clone, Copy, Debug)]
pub struct DirectionLimits<'a> {
    /// Of this tunnel alone.
    pub tunnel: &'a RateLimit,
    /// The rate that replaces the limit's, while it is set.
    pub rate_override: Option<&'a RateOverride>,
    /// Of this tunnel together with those of its target, its limit owner and the process.
    pub shared: [Option<&'a Budget>; 3],
}

/// A limit of the tunnel alone.
impl<'a> From<&'a RateLimit> for DirectionLimits<'a> {
    fn from(tunnel: &'a RateLimit) -> Self {
        Self {
            tunnel,
            rate_override: None,
            shared: [None; 3],
        }
    }
}

/// A hook that is called before the sockets of a tunnel close.
pub trait OnClose: fmt::Debug + Sync {
    /// Is called before the close, possibly more than once. It must not wait.
    fn before_close(&self);
}

/// The configuration of a relay.
#[derive(Clone, Copy, Debug)]
pub struct RelayConfig<'a> {
    /// The limits of each direction.
    pub limits: Both<DirectionLimits<'a>>,
    /// Counter of the tunnel's bytes.
    pub meter: &'a Meter,
    /// Pipes and memory that all relays share.
    pub resources: &'a Resources,
    /// The longest times without use.
    pub options: &'a Options,
    /// Called when a side has ended, while both sockets still exist; `None` for no call.
    pub on_close: Option<&'a dyn OnClose>,
    /// The guard of the tunnel, if it may be resumable. A resumable tunnel ends once one side has ended and no byte has moved for
    /// 2 s since, because its session has its own half-close and end.
    pub guard: Option<&'a TunnelGuard>,
    /// True if the prefix of the upload decides whether the tunnel is resumable. The bytes after the prefix cost no
    /// more, unless they are a session's frames, because a direction begins with copies through memory in any case. Bytes
    /// that are [spliced from the first on](Resources::splicing_all) are not inspected.
    pub is_inspected: bool,
}

impl<'a> RelayConfig<'a> {
    /// Returns the guard of the tunnel, if its bytes are to be inspected: it carries a session, or may.
    pub(super) fn inspected(&self) -> Option<&'a TunnelGuard> {
        self.guard.filter(|guard| self.is_inspected || guard.is_resumable())
    }

    /// Returns whether the session in the tunnel is known to outlive it.
    pub(super) fn is_resumable(&self) -> bool {
        self.guard.is_some_and(TunnelGuard::is_resumable)
    }

    /// Calls the hook, if there is one.
    pub(super) fn before_close(&self) {
        if let Some(on_close) = self.on_close {
            on_close.before_close();
        }
    }
}

/// The resources that all relays of a process share.
#[derive(Debug)]
pub struct Resources {
    pub(super) pipes: PipePool,
    /// One slot for each large piece in flight: what is unwritten of it, or encrypted and not sent, stays in memory.
    pub(super) large_pieces: Arc<Slots>,
    pub(super) yielder: Yielder,
    /// The heat at which a direction counts as bulk.
    pub(super) hot: u8,
}

impl Resources {
    /// Creates resources with at most `pipes` pipes in use at once, two descriptors each.
    pub fn new(pipes: usize) -> Self {
        Self {
            pipes: PipePool::new(pipes),
            large_pieces: Arc::new(Slots::exactly(MAX_LARGE_PIECES)),
            yielder: Yielder::default(),
            hot: HOT,
        }
    }

    /// Creates resources for relays that splice from the first byte on, as tests and benchmarks need.
    pub fn splicing_all(pipes: usize) -> Self {
        Self {
            hot: 0,
            ..Self::new(pipes)
        }
    }

    /// Returns whether bulk between two sockets is spliced: pipes exist, and the kernel has not refused their calls.
    pub fn splices(&self) -> bool {
        self.pipes.is_open()
    }

    /// Returns the number of pipes in use: each holds bytes, or is about to.
    pub fn pipes_in_use(&self) -> usize {
        self.pipes.in_use()
    }
}

/// 8 MiB of memory at most, beside 64 KiB for each other direction whose receiver stalls.
const MAX_LARGE_PIECES: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_large_pieces_may_be_in_flight_at_once() {
        let resources = Resources::new(0);
        for _ in 0..3 {
            let taken: Vec<_> = (0..100).filter_map(|_| resources.large_pieces.take()).collect();
            assert_eq!(taken.len(), 16);
        }
    }
}
