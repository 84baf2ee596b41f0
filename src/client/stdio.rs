//! The process's stdout as an output whose shutdown closes it.

use std::fs::File;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use crate::platform;

/// Returns the process's output, and puts one in its place that discards everything.
///
/// ssh sees the end of its ProxyCommand's output only when the last copy of the pipe is closed. No other part of the
/// process can print into the SSH stream from then on.
///
/// # Errors
///
/// What the system says.
pub(super) fn take_stdout() -> io::Result<ClosableOutput> {
    platform::take_stdout().map(ClosableOutput::from)
}

/// A pipe, file or terminal whose `shutdown` closes the descriptor.
///
/// Unlike tokio's `Stdout` it has no line buffer: SSH's bytes are not lines.
#[derive(Debug)]
pub(super) struct ClosableOutput {
    file: Option<tokio::fs::File>,
}

impl From<File> for ClosableOutput {
    fn from(file: File) -> Self {
        Self {
            file: Some(tokio::fs::File::from_std(file)),
        }
    }
}

impl ClosableOutput {
    /// Whether its reader has closed it, as far as the platform tells.
    pub(super) fn is_abandoned(&self) -> bool {
        self.file.as_ref().is_none_or(platform::has_no_reader)
    }

    fn open(&mut self) -> io::Result<Pin<&mut tokio::fs::File>> {
        let file = self.file.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Pin::new(file))
    }
}

impl AsyncWrite for ClosableOutput {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.open()?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.open()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A write in flight on another thread holds the descriptor too, and has to end first.
        ready!(self.open()?.poll_flush(context))?;
        self.file = None;
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
