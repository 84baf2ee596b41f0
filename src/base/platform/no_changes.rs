//! Systems that tell of no changes of addresses and routes by a safe call: attempts are timed alone.

use std::future::pending;
use std::io;

/// Nothing.
#[derive(Debug)]
pub(crate) struct Changes;

impl Changes {
    /// Fails.
    ///
    /// # Errors
    /// Always.
    pub(crate) fn open() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Never completes.
    pub(crate) async fn next(&mut self) {
        pending().await
    }
}
