//! The settings of one side of a session, and the times that both sides have to agree on.

use std::time::Duration;

use super::liveness::Timing;
use crate::base::units::{Size, UnitError};

/// The settings of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The maximum number of bytes that are held of each stream: sent ones until they are acknowledged, received ones
    /// until they are passed on. At least [`MIN_WINDOW`], at most [`MAX_WINDOW`].
    pub window: u32,
    /// The times by which the path is watched.
    pub timing: Timing,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            window: 2 * 1024 * 1024,
            timing: Timing::default(),
        }
    }
}

pub(super) fn bounded(window: u32) -> usize {
    let window = window.clamp(MIN_WINDOW, MAX_WINDOW);
    usize::try_from(window).unwrap_or(usize::MAX)
}

/// The timeout of a handshake, counted from the start of its connection.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an unconfirmed session lasts: the client stops its attempts, and the anchor drops a session that has no
/// connection and no acknowledgement.
pub(crate) const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(60);
/// The smallest window of a stream in bytes.
pub const MIN_WINDOW: u32 = 4 * 1024;
/// The largest window of a stream in bytes: 5 Gbit/s at 100 ms.
pub const MAX_WINDOW: u32 = 64 * 1024 * 1024;

/// Parses the size of a window, such as `1MiB`.
///
/// # Errors
/// The text is not a size, or not between the smallest and the largest window.
pub fn window(text: &str) -> Result<u32, String> {
    let size: Size = text.parse().map_err(|error: UnitError| error.to_string())?;
    let window = u32::try_from(size.get()).ok();
    let window = window.filter(|window| (MIN_WINDOW..=MAX_WINDOW).contains(window));
    window.ok_or_else(|| "a window has 4KiB to 64MiB".to_owned())
}
