//! The memory of all sessions together: the more of it is used, the smaller is the window that a session gets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::protocol::resume::MIN_WINDOW;

/// The bytes that all sessions buffer, and their limit.
///
/// Counts the capacity of the buffers of both streams and of the outbox. Not counted: the target's early bytes, those
/// of its key exchange, queued resumptions, the unwritten frames of a displaced connection (about 64 KiB), the
/// registry, tasks and plain relays.
#[derive(Debug)]
pub(super) struct MemoryPool {
    used: AtomicUsize,
    max: usize,
    /// An eighth of the maximum number of sessions. With all memory free, a window is at most the memory divided by
    /// this. It shrinks with the square of the free memory: if all sessions fill one stream, about a ninth of the
    /// memory is left.
    part: usize,
}

impl MemoryPool {
    /// Creates a pool of `max` bytes for at most `sessions` sessions.
    pub(super) fn new(max: usize, sessions: u32) -> Self {
        Self {
            used: AtomicUsize::new(0),
            max,
            part: usize::try_from(sessions / 8).unwrap_or(usize::MAX).max(1),
        }
    }

    /// Returns the bytes in use.
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns whether the limit is exceeded.
    pub(super) fn is_short(&self) -> bool {
        self.used() > self.max
    }

    /// Returns the next window of a session, from its `current` window and the `widest` allowed.
    ///
    /// It is `widest` if that fits, else a power of two, at least [`MIN_WINDOW`]. It shrinks only if it is a third too
    /// wide, so that it changes rarely: each change costs an ACK.
    pub(super) fn window(&self, current: u32, widest: u32) -> u32 {
        let left = self.max.saturating_sub(self.used()) as u128;
        let part = left * left / (self.max as u128 * self.part as u128);
        let part = u32::try_from(part).unwrap_or(u32::MAX);
        let fitting = match part {
            part if part >= widest => widest,
            0 => MIN_WINDOW,
            part => (1 << part.ilog2()).max(MIN_WINDOW),
        };
        let is_much_too_wide = part < current / 4 * 3;
        if fitting > current || is_much_too_wide {
            fitting.min(widest)
        } else {
            current
        }
    }
}

/// The memory that one session uses. Dropping it returns the memory to the pool.
#[derive(Debug)]
pub(super) struct MemoryShare {
    pool: Arc<MemoryPool>,
    held: usize,
}

impl MemoryShare {
    /// Creates an empty share.
    pub(super) fn new(memory: &Arc<MemoryPool>) -> Self {
        Self {
            pool: Arc::clone(memory),
            held: 0,
        }
    }

    /// Sets the share to `held` bytes. Returns whether it has changed.
    pub(super) fn set(&mut self, held: usize) -> bool {
        if held > self.held {
            self.pool.used.fetch_add(held - self.held, Ordering::Relaxed);
        } else {
            self.pool.used.fetch_sub(self.held - held, Ordering::Relaxed);
        }
        std::mem::replace(&mut self.held, held) != held
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u32 = 1 << 20;

    #[test]
    fn a_thousand_sessions_that_fill_a_stream_each_fit() {
        let memory = Arc::new(MemoryPool::new(256 << 20, 1000));
        let shares: Vec<_> = (0..1000)
            .map(|_| {
                let mut share = MemoryShare::new(&memory);
                share.set(memory.window(2 * MIB, 2 * MIB) as usize);
                share
            })
            .collect();
        assert!(!memory.is_short(), "{}", memory.used());
        assert!(memory.window(MIB, MIB) >= 2 * MIN_WINDOW);
        drop(shares);
        assert_eq!((memory.used(), memory.window(MIN_WINDOW, 2 * MIB)), (0, 2 * MIB));
    }

    #[test]
    fn a_window_changes_only_for_much() {
        let memory = Arc::new(MemoryPool::new(64 << 20, 256));
        let mut share = MemoryShare::new(&memory);
        assert_eq!(memory.window(MIB, MIB), MIB);
        share.set(10 << 20);
        assert_eq!(memory.window(MIB, MIB), MIB);
        share.set(30 << 20);
        assert_eq!(memory.window(MIB, MIB), MIB / 2);
        share.set(20 << 20);
        assert_eq!(memory.window(MIB / 2, MIB), MIB / 2);
        share.set(65 << 20);
        assert!(memory.is_short());
        assert_eq!(memory.window(MIB, MIB), MIN_WINDOW);
    }
}
