//! Writes to stdout and stderr: a reader that is gone ends no program.

use std::fmt::Display;
use std::io::{ErrorKind, Write, stderr, stdout};

use anyhow::Context as _;

/// Writes a line to stderr. A full disk or a reader that is gone changes no exit status: `eprintln!` would panic.
pub(crate) fn to_stderr(line: impl Display) {
    writeln!(stderr(), "{line}").unwrap_or_default();
}

/// Writes a text to stdout. A reader that is gone, as `head` is, has read what it wanted.
pub(crate) fn print(text: impl AsRef<[u8]>) -> anyhow::Result<()> {
    match stdout().lock().write_all(text.as_ref()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to stdout"),
    }
}

/// The exit status of invalid arguments, and of an invalid configuration.
pub(crate) const USAGE: u8 = 2;
