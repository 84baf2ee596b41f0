//! What the relays of a process share: pipes, memory for large copies, and where they yield.

use std::sync::Arc;

use super::splice::PipePool;
use super::yielder::Yielder;
use crate::limits::slots::Slots;

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
