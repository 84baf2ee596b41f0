//! Lines for the user on stderr. A stderr that is full, as its reader has stalled, or a terminal that is stopped by Ctrl-S, must stop
//! neither a session nor the end of the process: a line for which there is no room is dropped. Windows does not tell
//! whether there is room.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::base::platform::poll_writable;
use crate::base::text::printable;
pub(super) use crate::uplink::dial::head::MAX_LINE;

/// Where lines for the user go.
#[derive(Clone)]
pub struct UserOutput(pub Arc<dyn Fn(&str) + Send + Sync>);

/// To stderr.
impl Default for UserOutput {
    fn default() -> Self {
        Self(Arc::new(line))
    }
}

impl fmt::Debug for UserOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Remarks")
    }
}

/// Writes a line, without a wait for its reader.
pub(super) fn line(line: &str) {
    write(line, Duration::ZERO);
}

/// Writes a line that says why the process ends, for which its reader has a second.
pub(super) fn last_line(line: &str) {
    write(line, Duration::from_secs(1));
}

fn write(line: &str, timeout: Duration) {
    let stderr = io::stderr();
    if poll_writable(&stderr, timeout) {
        // With stderr closed the session goes on, and the exit status remains.
        let line = format!("switchboard: {}\n", printable(line, MAX_CHARS));
        stderr.lock().write_all(line.as_bytes()).ok();
    }
}

/// Characters of a line: fewer than the 4 KiB that a pipe with room takes at once (pipe(7)).
const MAX_CHARS: usize = 500;
