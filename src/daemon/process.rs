//! The process of a program that serves: its threads and memory, and its signals.

use std::hint::black_box;
use std::io;
use std::num::NonZeroUsize;

use nix::sys::signal::{SigSet, Signal};

/// The size of a program's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessSize {
    /// The most threads that tunnels or sessions run on.
    pub workers: NonZeroUsize,
    /// The most lines that wait for a slow reader of a log, at about 600 bytes each.
    pub queued_lines: usize,
    /// The block, in bytes, that `keep_freed_memory` frees; 0 for glibc's defaults, which keep 128 KiB.
    pub largest_block: usize,
}

impl ProcessSize {
    /// The size of `serve`: as many threads as processors, and 10 MiB of lines at most.
    pub const SERVE: Self = Self {
        workers: NonZeroUsize::MAX,
        queued_lines: 16_384,
        largest_block: 8 << 20,
    };

    /// The size of `anchor`: two threads carry more than the SSH server beside it. A thread for each processor would be
    /// too many on a large node, where each pod may have an anchor. An anchor writes at most 100 access lines a second.
    pub const ANCHOR: Self = Self {
        workers: NonZeroUsize::MIN.saturating_add(1),
        queued_lines: 1024,
        largest_block: 0,
    };

    /// Makes glibc keep up to twice the largest block free in each arena for the next burst, instead of returning it to the
    /// kernel: its thresholds follow the largest block that was ever freed (mallopt(3), `M_MMAP_THRESHOLD`).
    pub fn keep_freed_memory(self) {
        let mut block = Vec::<u8>::new();
        // Never written: it takes no memory. Without the address space for it nothing changes.
        block.try_reserve_exact(self.largest_block).ok();
        drop(black_box(block));
    }
}

/// Unblocks the signals that the process handles, for this thread and those that it starts. The process inherits the
/// signal mask of its supervisor, which may block them.
///
/// # Errors
/// The error of sigprocmask(2).
pub fn unblock_signals() -> io::Result<()> {
    let handled = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGCHLD];
    Ok(SigSet::from_iter(handled).thread_unblock()?)
}
