//! Decides how one direction of a relay moves its next bytes.

use super::{copy, splice};
use crate::net::transport::BulkMode;
use crate::tunnel::direction::Direction;

/// The way in which the next bytes are moved, and their maximum number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// By a copy through memory of the worker thread.
    Copy(usize),
    /// By a copy of a large piece, if a slot for one is free, and else by an ordinary copy.
    LargeCopy(usize),
    /// By a read into memory that the writer lends.
    Lend(usize),
    /// By splice(2), if there is a pipe, and else by a copy.
    Splice(usize),
}

impl Step {
    /// Returns the most bytes that it moves.
    pub(super) fn max(self) -> usize {
        match self {
            Self::Copy(max) | Self::LargeCopy(max) | Self::Lend(max) | Self::Splice(max) => max,
        }
    }
}

/// The state of one direction: the heat of its bytes, and the speed of its receiver.
#[derive(Debug)]
pub(super) struct Strategy {
    direction: Direction,
    bulk: BulkMode,
    /// The heat at which the direction counts as bulk.
    hot: u8,
    /// Goes up with every large read and down with every small one.
    heat: u8,
    receiver_is_slow: bool,
}

impl Strategy {
    /// Creates the strategy of a direction between transports that move bulk by `bulk`.
    pub(super) fn new(direction: Direction, bulk: BulkMode, hot: u8) -> Self {
        Self {
            direction,
            bulk,
            hot,
            heat: 0,
            receiver_is_slow: false,
        }
    }

    /// Returns how the next bytes are to be moved.
    pub(super) fn next(&self) -> Step {
        let is_hot = self.heat >= self.hot;
        match (self.bulk, self.direction) {
            (BulkMode::Splice, _) if is_hot && self.receiver_is_slow => Step::Splice(splice::MAX_BYTES_IF_SLOW),
            (BulkMode::Splice, _) if is_hot => Step::Splice(splice::MAX_BYTES),
            (BulkMode::Chunks, _) if is_hot && !self.receiver_is_slow => Step::LargeCopy(copy::MAX_LARGE_BYTES),
            (BulkMode::Lend, Direction::Download) => Step::Lend(copy::MAX_LENT),
            (BulkMode::Splice | BulkMode::Chunks, _) | (BulkMode::Lend, Direction::Upload) => {
                Step::Copy(copy::MAX_BYTES)
            }
        }
    }

    /// Returns whether the relay shares its task with other relays, and so has to yield to them within the task.
    pub(super) fn shares_task(&self) -> bool {
        matches!(self.bulk, BulkMode::Lend)
    }

    /// Notes that a read has brought `bytes`.
    pub(super) fn has_read(&mut self, bytes: usize) {
        self.heat = if bytes >= LARGE_READ {
            HOTTEST.min(self.heat + 1)
        } else {
            self.heat.saturating_sub(1)
        };
    }

    /// Notes that all that was read is written, and whether the receiver was slow.
    pub(super) fn has_written(&mut self, slowly: bool) {
        self.receiver_is_slow = slowly;
    }
}

/// A read of at least this many bytes is bulk.
const LARGE_READ: usize = 16 * 1024;
/// This many more large reads than small ones make a direction hot.
pub(super) const HOT: u8 = 2;
/// The most heat that is kept: 3 small reads cool a direction, however long it was hot.
const HOTTEST: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// The strategy after so many large reads.
    fn after(large_reads: usize, direction: Direction, bulk: BulkMode) -> Strategy {
        let mut strategy = Strategy::new(direction, bulk, HOT);
        for _ in 0..large_reads {
            strategy.has_read(LARGE_READ);
        }
        strategy
    }

    #[test]
    fn bulk_is_moved_as_its_transport_says_and_small_messages_are_copied() {
        use Direction::{Download, Upload};
        for (bulk, direction, cold, hot, slow) in [
            (
                BulkMode::Splice,
                Upload,
                Step::Copy(64 << 10),
                Step::Splice(1 << 20),
                Step::Splice(256 << 10),
            ),
            (
                BulkMode::Chunks,
                Download,
                Step::Copy(64 << 10),
                Step::LargeCopy(512 << 10),
                Step::Copy(64 << 10),
            ),
            (
                BulkMode::Lend,
                Download,
                Step::Lend(256 << 10),
                Step::Lend(256 << 10),
                Step::Lend(256 << 10),
            ),
            (
                BulkMode::Lend,
                Upload,
                Step::Copy(64 << 10),
                Step::Copy(64 << 10),
                Step::Copy(64 << 10),
            ),
        ] {
            for reads in 0..6 {
                let mut strategy = after(reads, direction, bulk);
                assert_eq!(
                    strategy.next(),
                    if reads < 2 { cold } else { hot },
                    "{bulk:?} {direction:?}"
                );
                strategy.has_written(true);
                assert_eq!(
                    strategy.next(),
                    if reads < 2 { cold } else { slow },
                    "{bulk:?} {direction:?}"
                );
            }
        }
    }

    #[test]
    fn a_direction_that_was_hot_for_long_cools_after_three_small_reads() {
        let mut strategy = after(100, Direction::Download, BulkMode::Splice);
        for small_reads in 0..5 {
            assert_eq!(matches!(strategy.next(), Step::Splice(_)), small_reads < 3);
            strategy.has_read(LARGE_READ - 1);
        }
    }

    #[test]
    fn a_direction_may_be_hot_from_the_first_byte_on() {
        let mut strategy = Strategy::new(Direction::Upload, BulkMode::Splice, 0);
        for read in [LARGE_READ, 1, 1, 1, 1, 1] {
            assert!(matches!(strategy.next(), Step::Splice(_)));
            strategy.has_read(read);
        }
    }
}
