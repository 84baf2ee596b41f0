//! What the relays of a process share: pipes, memory for large copies, and where they yield.

use super::copy::LargePieces;
use super::splice::PipePool;
use super::yielder::Yielder;

/// Shared by all relays of a runtime.
#[derive(Debug)]
pub struct Resources {
    pub(super) pipes: PipePool,
    pub(super) pieces: LargePieces,
    pub(super) yielder: Yielder,
}

impl Resources {
    /// With at most `pipes` pipes out at once, two descriptors each.
    pub fn new(pipes: usize) -> Self {
        Self {
            pipes: PipePool::new(pipes),
            pieces: LargePieces::default(),
            yielder: Yielder::default(),
        }
    }

    /// How many pipes are out: each holds bytes, or is about to.
    pub fn pipes_in_use(&self) -> usize {
        self.pipes.in_use()
    }
}
