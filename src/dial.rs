//! Connects to one of a target's addresses, before a deadline.

use std::time::Duration;

/// How long a dial may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// One address.
    pub dial_try: Duration,
    /// All of them together.
    pub dial: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dial_try: Duration::from_secs(3),
            dial: Duration::from_secs(10),
        }
    }
}
