//! The numbers of connections and requests, which name them in logs and for operators.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

/// The source of tunnel ids. A random prefix for each process keeps those of replicas apart in a shared log.
#[derive(Debug)]
pub struct Ids {
    process: u32,
    next: AtomicU64,
}

impl Default for Ids {
    fn default() -> Self {
        // The standard library's only source of random numbers; any 32 bits of it will do.
        let random = RandomState::new().hash_one(0);
        Self {
            process: u32::try_from(random >> 32).unwrap_or_default(),
            next: AtomicU64::new(1),
        }
    }
}

/// The id of one connection or request: the log field `tunnel_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id {
    process: u32,
    /// Counted up from 1 in this process.
    pub number: u64,
}

impl Ids {
    /// The next id.
    pub fn next(&self) -> Id {
        Id {
            process: self.process,
            number: self.next.fetch_add(1, Ordering::Relaxed),
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{:x}", self.process, self.number)
    }
}
