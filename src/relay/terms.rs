//! What a relay is given: the two transports, and the terms it runs under.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;

use super::meter::Meter;
use super::splice::PipePool;
use super::yielder::Yielder;
use crate::limits::bucket::Limit;
use crate::limits::budget::Budget;
use crate::limits::slots::Slots;

/// How long a relay may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The longest silence both ways; `None` is for ever, as SSH sessions sleep for days.
    pub idle: Option<Duration>,
    /// The longest silence once one side has finished.
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

/// The two ends of a tunnel.
#[derive(Debug)]
pub struct Transports<D> {
    /// The client's: a socket, or what is spoken on one.
    pub downstream: D,
    /// The target's, which speaks nothing but the tunnel's bytes.
    pub upstream: TcpStream,
    /// What was read of them already. Boxed: it is gone when the relay has begun.
    pub early: Box<Early>,
}

/// The first bytes of both directions.
#[derive(Debug, Default)]
pub struct Early {
    /// From the client, such as those behind its request head.
    pub upload: Vec<u8>,
    /// From the target.
    pub download: Vec<u8>,
}

/// What bounds one direction.
#[derive(Clone, Copy, Debug)]
pub struct Bounds<'a> {
    /// This tunnel alone.
    pub tunnel: &'a Limit,
    /// This tunnel together with others: those of its target, of its client, of the process.
    pub shared: [Option<&'a Budget>; 3],
}

/// Nothing is shared.
impl<'a> From<&'a Limit> for Bounds<'a> {
    fn from(tunnel: &'a Limit) -> Self {
        Self {
            tunnel,
            shared: [None; 3],
        }
    }
}

/// Under what a relay runs. All of it may be shared with other relays but the meter.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// What bounds the upload.
    pub upload: Bounds<'a>,
    /// What bounds the download.
    pub download: Bounds<'a>,
    /// Counts the bytes.
    pub meter: &'a Meter,
    /// What all relays share.
    pub resources: &'a Resources,
    /// What moves its bytes.
    pub engine: Engine,
    /// Timeouts.
    pub options: &'a Options,
}

/// What moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Copies, and splices while the direction runs hot: copy is cheaper for small messages, splice for bulk.
    Adaptive,
    /// Always through a buffer.
    Copy,
    /// Through a pipe whenever the pool has one.
    Splice,
}

/// Shared by all relays of a runtime.
#[derive(Debug)]
pub struct Resources {
    pub(super) pipes: PipePool,
    /// One slot for each large piece that is in flight: what its receiver has not taken of it stays in memory.
    pub(super) large_pieces: Arc<Slots>,
    pub(super) yielder: Yielder,
}

impl Resources {
    /// With at most `pipes` pipes in use at once, two descriptors each.
    pub fn new(pipes: usize) -> Self {
        Self {
            pipes: PipePool::new(pipes),
            large_pieces: Arc::new(Slots::exactly(MOST_LARGE_PIECES)),
            yielder: Yielder::default(),
        }
    }

    /// The number of pipes in use: each holds bytes, or is about to.
    pub fn pipes_in_use(&self) -> usize {
        self.pipes.in_use()
    }
}

/// 8 MiB of memory at most.
const MOST_LARGE_PIECES: u32 = 16;

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
