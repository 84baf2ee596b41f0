//! How much a program that serves takes for itself.

use std::num::NonZeroUsize;

/// The size of a program's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessSize {
    /// The most threads that tunnels or sessions run on.
    pub workers: NonZeroUsize,
    /// The lines that wait for a slow reader of a log, at about 600 bytes each.
    pub queued_lines: usize,
}

impl ProcessSize {
    /// Of `serve`: as many threads as processors, and 10 MiB of lines at most.
    pub const SERVE: Self = Self {
        workers: NonZeroUsize::MAX,
        queued_lines: 16_384,
    };

    /// Of `anchor`: two processors carry more than the SSH server beside it, and a node may have many, with an anchor in each
    /// of its pods. It writes 100 access lines a second at the most.
    pub const ANCHOR: Self = Self {
        workers: NonZeroUsize::MIN.saturating_add(1),
        queued_lines: 1024,
    };
}
