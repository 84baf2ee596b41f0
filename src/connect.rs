//! Reads one CONNECT and answers it.

use std::time::Duration;

/// How long a request head may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// From the accept to the end of the head.
    pub head: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
        }
    }
}
