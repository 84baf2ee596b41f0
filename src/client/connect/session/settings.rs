//! The settings of a session.

use std::time::Duration;

use super::report::Remarks;
use super::sleep_detector::Clocks;
use crate::protocol::resume::{self, Timing};

/// The settings of a session.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The bytes of each stream that are kept until they are acknowledged, 4 KiB to 64 MiB.
    pub window: u32,
    /// How the path is watched.
    pub timing: Timing,
    /// How long a connection may be silent, while an answer is awaited, before others are begun beside it.
    pub patience: Duration,
    /// How long the session waits for a connection.
    pub grace: Duration,
    /// What a sleep of the host is noticed by.
    pub clocks: Clocks,
    /// Where the user is told of a connection that is lost for longer than a moment.
    pub remarks: Remarks,
}

impl Default for Settings {
    fn default() -> Self {
        let resume::Options { window, timing, .. } = resume::Options::default();
        Self {
            window,
            timing,
            patience: PATIENCE,
            grace: GRACE,
            clocks: Clocks::default(),
            remarks: Remarks::default(),
        }
    }
}

/// A shorter cut is over by the means of TCP: docs/resume.md has the reasons.
const PATIENCE: Duration = Duration::from_secs(3);
/// As long as an anchor keeps a session: 24 hours.
const GRACE: Duration = Duration::from_secs(24 * 3600);
