//! The process's stdin, and its stdout as an output whose shutdown closes it.
//!
//! ssh's pipes are waited for by the runtime where the system can; files, terminals and sockets are read and written by
//! threads. A thread costs two context switches and a copy of each piece.

use std::fs::File;
use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, Stdin};

use crate::base::platform::{self, PipeInput, PipeOutput};

/// Returns the process's output, and puts one in its place that discards everything.
///
/// ssh sees the end of its ProxyCommand's output only when the last copy of the pipe is closed. No other part of the
/// process can print into the SSH stream from then on.
///
/// # Errors
///
/// What the system says.
pub(in crate::client) fn take_stdout() -> io::Result<ClosableOutput> {
    platform::take_stdout().map(ClosableOutput::from)
}

/// The user's side of the tunnel.
#[derive(Debug)]
pub(in crate::client) struct Local<R, W> {
    /// The bytes for the target. Its end becomes a FIN.
    pub(in crate::client) stdin: R,
    /// The bytes from the target. Its `shutdown` is called at their end, and must be an end of stream to its reader.
    pub(in crate::client) stdout: W,
    /// Whether `stdin` is a terminal, which stays open when `stdout` ends: the proxy's end then ends the tunnel.
    pub(in crate::client) interactive: bool,
    /// Looks whether the reader of `stdout` has left, which ends a login that the user no longer waits for: ssh that is
    /// killed sends its ProxyCommand no signal. `None` cannot tell.
    pub(in crate::client) is_abandoned: Option<fn(&W) -> bool>,
}

/// The process's input.
#[derive(Debug, Default)]
pub(in crate::client) enum Input {
    /// Not read yet, perhaps for want of a runtime.
    #[default]
    Unopened,
    Pipe(PipeInput),
    Threads(Stdin),
}

impl AsyncRead for Input {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            *self = match &mut *self {
                Self::Unopened => {
                    PipeInput::open(&io::stdin()).map_or_else(|_| Self::Threads(tokio::io::stdin()), Self::Pipe)
                }
                Self::Pipe(pipe) => return Pin::new(pipe).poll_read(context, buffer),
                Self::Threads(stdin) => return Pin::new(stdin).poll_read(context, buffer),
            };
        }
    }
}

/// A pipe, file or terminal whose `shutdown` closes the descriptor.
///
/// Unlike tokio's `Stdout` it has no line buffer: SSH's bytes are not lines.
#[derive(Debug)]
pub(in crate::client) enum ClosableOutput {
    /// Not written yet, perhaps for want of a runtime.
    Unopened(File),
    Pipe(PipeOutput),
    Threads(tokio::fs::File),
    Closed,
}

impl From<File> for ClosableOutput {
    fn from(file: File) -> Self {
        Self::Unopened(file)
    }
}

impl ClosableOutput {
    /// Whether its reader has closed it, as far as the platform tells.
    pub(in crate::client) fn is_abandoned(&self) -> bool {
        match self {
            Self::Unopened(file) => platform::has_no_reader(file),
            Self::Pipe(pipe) => pipe.has_no_reader(),
            Self::Threads(file) => platform::has_no_reader(file),
            // By its shutdown: its reader has been told the end, and the other stream goes on.
            Self::Closed => false,
        }
    }

    fn open(&mut self) -> io::Result<Pin<&mut dyn AsyncWrite>> {
        *self = match mem::replace(self, Self::Closed) {
            Self::Unopened(file) => match PipeOutput::open(&file) {
                Ok(pipe) => Self::Pipe(pipe),
                Err(_) => {
                    platform::outlive_the_limit_of_a_file();
                    Self::Threads(tokio::fs::File::from_std(file))
                }
            },
            opened @ (Self::Pipe(_) | Self::Threads(_) | Self::Closed) => opened,
        };
        match self {
            Self::Pipe(pipe) => {
                let pipe: Pin<&mut PipeOutput> = Pin::new(pipe);
                Ok(pipe)
            }
            Self::Threads(file) => {
                let file: Pin<&mut tokio::fs::File> = Pin::new(file);
                Ok(file)
            }
            Self::Unopened(_) | Self::Closed => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl AsyncWrite for ClosableOutput {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.open()?.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.open()?.poll_write_vectored(context, pieces)
    }

    /// A pipe takes what it is given at once, from where it is.
    fn is_write_vectored(&self) -> bool {
        matches!(self, Self::Pipe(_))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.open()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A write in flight on another thread holds the descriptor too, and has to end first.
        ready!(self.open()?.poll_flush(context))?;
        *self = Self::Closed;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn an_output_without_a_reader_is_abandoned() {
        let (reader, writer) = io::pipe().unwrap();
        let output = ClosableOutput::from(File::from(OwnedFd::from(writer)));
        assert!(!output.is_abandoned());
        drop(reader);
        assert!(output.is_abandoned());
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let output = ClosableOutput::from(File::from(OwnedFd::from(ours)));
        assert!(!output.is_abandoned());
        drop(theirs);
        assert!(output.is_abandoned());
        let file = tempfile::tempfile().unwrap();
        assert!(!ClosableOutput::from(file).is_abandoned());
        let (_reader, writer) = io::pipe().unwrap();
        let mut output = ClosableOutput::from(File::from(OwnedFd::from(writer)));
        output.shutdown().await.unwrap();
        assert!(!output.is_abandoned());
    }

    #[tokio::test]
    async fn a_shutdown_ends_the_output_behind_its_last_byte_while_the_process_runs() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut output = ClosableOutput::from(File::from(OwnedFd::from(writer)));
        let reading = tokio::task::spawn_blocking(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).map(|_| all)
        });
        output.write_all(&[7; 300_000]).await.unwrap();
        output.shutdown().await.unwrap();
        let all = tokio::time::timeout(std::time::Duration::from_secs(10), reading).await;
        assert_eq!(all.unwrap().unwrap().unwrap(), [7; 300_000]);
        assert_eq!(
            output.write_all(b"x").await.unwrap_err().kind(),
            io::ErrorKind::BrokenPipe
        );
    }
}
