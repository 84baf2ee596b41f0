//! Systems on which a pipe cannot be opened once more: threads read and write it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// There is none.
#[derive(Debug)]
pub(crate) enum PipeInput {}

impl PipeInput {
    /// Fails.
    ///
    /// # Errors
    /// Always.
    pub(crate) fn open<T>(_input: &T) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl AsyncRead for PipeInput {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match *self {}
    }
}

/// There is none.
#[derive(Debug)]
pub(crate) enum PipeOutput {}

impl PipeOutput {
    /// Fails.
    ///
    /// # Errors
    /// Always.
    pub(crate) fn open<T>(_output: &T) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn has_no_reader(&self) -> bool {
        match *self {}
    }
}

impl AsyncWrite for PipeOutput {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        match *self {}
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match *self {}
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match *self {}
    }
}
