//! The process's stdin, and its stdout as an output whose shutdown closes it.
//!
//! The runtime polls ssh's pipes where the system supports it; threads read and write files, terminals and sockets. A
//! thread costs two context switches and a copy for each piece.

use std::fs::File;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::base::platform::{self, PipeSize};

/// Returns the process's stdout, and replaces it by one that discards everything.
///
/// ssh sees the end of its ProxyCommand's output only when the last copy of the pipe is closed. No other part of the
/// process can print into the SSH stream from then on.
///
/// # Errors
///
/// The error of the system.
pub(in crate::client) fn take_stdout() -> io::Result<ClosableOutput> {
    platform::take_stdout().map(ClosableOutput::from)
}

/// The user's side of the tunnel.
#[derive(Debug)]
pub(in crate::client) struct Stdio<R, W> {
    /// The bytes for the target. The end of `stdin` becomes a FIN.
    pub(in crate::client) stdin: R,
    /// The bytes from the target, and then a `shutdown`, which must be the end of stream for the reader.
    pub(in crate::client) stdout: W,
    /// True if `stdin` is a terminal, which stays open when `stdout` ends: the proxy's end then ends the tunnel.
    pub(in crate::client) interactive: bool,
    /// True if the proxy's end ends the tunnel for another reason: `stdin` is a program that may stay for ever.
    pub(in crate::client) ends_with_target: bool,
    /// Returns whether the reader of `stdout` has left. Then the login ends, because an ssh that was killed sends its
    /// ProxyCommand no signal. `None` if the reader is not watched.
    pub(in crate::client) is_abandoned: Option<fn(&W) -> bool>,
}

/// The process's stdin. The first read opens it, when there is a runtime.
#[derive(Default)]
pub(in crate::client) struct Input {
    stream: Option<Box<dyn AsyncRead + Send + Unpin>>,
    size: PipeSize,
}

impl AsyncRead for Input {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (this, before) = (&mut *self, buffer.filled().len());
        let stream = this.stream.get_or_insert_with(|| {
            let pipe = platform::pipe_input(&io::stdin());
            pipe.unwrap_or_else(|_| Box::new(tokio::io::stdin()))
        });
        ready!(Pin::new(stream).poll_read(context, buffer))?;
        this.size.moved(buffer.filled().len() - before, &io::stdin());
        Poll::Ready(Ok(()))
    }
}

/// A pipe, file or terminal whose `shutdown` closes the descriptor.
///
/// Unlike tokio's `Stdout` it has no line buffer: SSH's bytes are not lines.
pub(in crate::client) struct ClosableOutput {
    /// `None` once it is shut down.
    file: Option<File>,
    /// The stream of the same descriptor, opened by the first write, when there is a runtime.
    stream: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    size: PipeSize,
}

impl From<File> for ClosableOutput {
    fn from(file: File) -> Self {
        Self {
            file: Some(file),
            stream: None,
            size: PipeSize::default(),
        }
    }
}

impl ClosableOutput {
    /// Returns whether the reader has closed the output, if the platform reports that. `false` after a shutdown: the
    /// reader has received the end, and stdin goes on.
    pub(in crate::client) fn is_abandoned(&self) -> bool {
        self.file.as_ref().is_some_and(platform::has_no_reader)
    }

    fn open(&mut self) -> io::Result<Pin<&mut Box<dyn AsyncWrite + Send + Unpin>>> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        let stream = match self.stream.take() {
            Some(stream) => stream,
            None => match platform::pipe_output(file) {
                Ok(pipe) => pipe,
                Err(_) => {
                    platform::ignore_sigxfsz();
                    Box::new(tokio::fs::File::from_std(file.try_clone()?))
                }
            },
        };
        Ok(Pin::new(self.stream.insert(stream)))
    }

    fn wrote(&mut self, written: usize) -> Poll<io::Result<usize>> {
        if let Some(file) = &self.file {
            self.size.moved(written, file);
        }
        Poll::Ready(Ok(written))
    }
}

impl AsyncWrite for ClosableOutput {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(self.open()?.poll_write(context, bytes))?;
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(self.open()?.poll_write_vectored(context, pieces))?;
        self.wrote(written)
    }

    /// A pipe takes all slices at once, without a copy.
    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.is_write_vectored())
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.open()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A write in flight on another thread holds the descriptor too, and has to end first.
        ready!(self.open()?.poll_flush(context))?;
        (self.stream, self.file) = (None, None);
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
