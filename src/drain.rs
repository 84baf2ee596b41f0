//! The way down: stop taking connections, let tunnels end, close the rest gently.

use std::time::Duration;

/// How long each step of a drain takes. All of it together is at most `delay + timeout + spread`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Not ready, but still accepting: the time that a load balancer needs to notice.
    pub delay: Duration,
    /// How long tunnels may run on after that.
    pub timeout: Duration,
    /// How long closing the rest is spread over, idle tunnels first.
    pub spread: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            delay: Duration::from_secs(5),
            timeout: Duration::from_secs(3600),
            spread: Duration::from_secs(300),
        }
    }
}
