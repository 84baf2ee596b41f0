//! Notices that the host was asleep: its connections may be dead, and no timer has run meanwhile.

use std::time::Duration;

use crate::base::platform;

/// Two clocks of the system that begin together.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// The time during which the host was awake.
    pub awake: fn() -> Duration,
    /// The time with that in which it was asleep.
    pub whole: fn() -> Duration,
}

/// Those of the platform.
impl Default for Clocks {
    fn default() -> Self {
        Self {
            awake: platform::awake,
            whole: platform::with_sleep,
        }
    }
}

/// How far one clock was ahead of the other when it was looked at last.
#[derive(Debug)]
pub(super) struct Sleeps {
    clocks: Clocks,
    ahead: Duration,
}

impl Sleeps {
    pub(super) fn new(clocks: Clocks) -> Self {
        let mut sleeps = Self {
            clocks,
            ahead: Duration::ZERO,
        };
        sleeps.has_slept();
        sleeps
    }

    /// Whether the host has slept for more than a moment since this was asked last.
    pub(super) fn has_slept(&mut self) -> bool {
        let awake = (self.clocks.awake)();
        let ahead = (self.clocks.whole)().saturating_sub(awake);
        let has_slept = ahead > self.ahead + LONGEST_NAP;
        self.ahead = ahead;
        has_slept
    }
}

/// A sleep that no connection notices.
const LONGEST_NAP: Duration = Duration::from_secs(1);
