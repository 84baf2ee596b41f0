//! The settings of one side of a session, and the times that both sides have to agree on.

use std::time::Duration;

use super::MAX_WINDOW;
use super::liveness::Timing;
use crate::base::units::{Size, UnitError};

/// The settings of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The bytes of each stream that are kept until they are acknowledged, and as many that were received and could not
    /// be passed on. At least [`MIN_WINDOW`], at most [`MAX_WINDOW`].
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

pub(super) fn bounded(window: u32) -> usize {
    let window = window.clamp(MIN_WINDOW, MAX_WINDOW);
    usize::try_from(window).unwrap_or(usize::MAX)
}

/// The time for a handshake, from the connection on.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a session lasts that is not confirmed: the client gives its attempts up, and the anchor keeps a session of which
/// nothing was acknowledged no longer without a connection.
pub(crate) const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(60);
/// The smallest window of a stream in bytes.
pub const MIN_WINDOW: u32 = 4 * 1024;

/// Reads the size of a window, such as `1MiB`.
///
/// # Errors
/// It is no size, or not between the smallest and the largest window.
pub fn window(text: &str) -> Result<u32, String> {
    let size: Size = text.parse().map_err(|error: UnitError| error.to_string())?;
    let window = u32::try_from(size.get()).ok();
    let window = window.filter(|window| (MIN_WINDOW..=MAX_WINDOW).contains(window));
    window.ok_or_else(|| "a window has 4KiB to 64MiB".to_owned())
}
