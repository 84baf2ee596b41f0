//! Lines for the user on stderr. They must block neither a session nor the exit, so a line is dropped if there is no
//! room for it: the reader of stderr has stalled, or the terminal is stopped by Ctrl-S. Windows does not report whether
//! there is room.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::base::platform::poll_writable;
use crate::base::text::printable;
pub(super) use crate::uplink::dial::head::MAX_LINE;

/// The output for lines to the user.
#[derive(Clone)]
pub struct UserOutput(pub Arc<dyn Fn(&str) + Send + Sync>);

/// Writes to stderr.
impl Default for UserOutput {
    fn default() -> Self {
        Self(Arc::new(line))
    }
}

impl fmt::Debug for UserOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserOutput")
    }
}

/// Writes a line without waiting for its reader.
pub(super) fn line(line: &str) {
    write(line, Duration::ZERO);
}

/// Writes the reason why the process ends, and waits at most a second for its reader.
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

/// The maximum number of characters of a line: fewer than the 4 KiB that a pipe with room takes at once (pipe(7)).
const MAX_CHARS: usize = 500;
