//! Relays bytes both ways between two sockets until they end.

use std::time::Duration;

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
