//! The settings of one side of a session.

use super::LARGEST_WINDOW;
use super::liveness::Timing;

/// The settings of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The bytes of each stream that are kept until they are acknowledged, and as many that were received and could not
    /// be passed on. At least [`SMALLEST_WINDOW`], at most [`LARGEST_WINDOW`].
    pub window: u32,
    /// Of the path.
    pub timing: Timing,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            window: 1024 * 1024,
            timing: Timing::default(),
        }
    }
}

impl Options {
    pub(super) fn bounded_window(&self) -> usize {
        bounded(self.window)
    }
}

pub(super) fn bounded(window: u32) -> usize {
    let window = window.clamp(SMALLEST_WINDOW, LARGEST_WINDOW);
    usize::try_from(window).unwrap_or(usize::MAX)
}

/// The smallest window of a stream in bytes.
pub const SMALLEST_WINDOW: u32 = 4 * 1024;
