//! Systems on which a pipe cannot be opened once more: threads read and write it.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};

/// Fails.
///
/// # Errors
/// Always.
pub(crate) fn pipe_input<T>(_input: &T) -> io::Result<Box<dyn AsyncRead + Send + Unpin>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Fails.
///
/// # Errors
/// Always.
pub(crate) fn pipe_output<T>(_output: &T) -> io::Result<Box<dyn AsyncWrite + Send + Unpin>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The size of a pipe, which is left as it is.
#[derive(Debug, Default)]
pub(crate) struct PipeSize;

impl PipeSize {
    pub(crate) fn moved<T>(&mut self, _bytes: usize, _pipe: &T) {}
}
