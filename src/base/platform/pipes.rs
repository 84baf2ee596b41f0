//! Pipes of this process that the runtime waits for by itself, without a thread.
//!
//! A pipe is opened once more (proc_pid_fd(5)): O_NONBLOCK belongs to the open file description (open(2)), which the pipe's
//! own descriptor may share with other processes.

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe::{OpenOptions, Receiver, Sender};

/// A pipe that is read.
///
/// Not by `poll_read` of tokio, which waits for the next write where a read has not filled its buffer. In packet mode (O_DIRECT
/// in pipe(2)) a read ends with a packet, though more may be in the pipe, and the writer of a full one writes no more.
#[derive(Debug)]
pub(crate) struct PipeInput {
    pipe: Receiver,
    /// Whether it has the size for bulk, or cannot have it.
    is_large: bool,
}

impl PipeInput {
    /// Opens the pipe behind a descriptor. Needs a runtime.
    ///
    /// # Errors
    /// It is no pipe, it is another user's, or there is no `/proc`.
    pub(crate) fn open(input: &impl AsFd) -> io::Result<Self> {
        let pipe = OpenOptions::new().open_receiver(path(input))?;
        Ok(Self { pipe, is_large: false })
    }
}

impl AsyncRead for PipeInput {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = loop {
            ready!(self.pipe.poll_read_ready(context))?;
            let free = buffer.initialize_unfilled();
            let (pipe, most, mut read) = (&self.pipe, free.len(), None);
            let tried = pipe.try_io(|| {
                let length = rustix::io::read(pipe, free)?;
                read = Some(length);
                // No packet has so much, so the pipe is empty: of bulk, this spares the read that says EAGAIN.
                let is_empty = length < most && length > LARGEST_PACKET;
                if is_empty {
                    Err(ErrorKind::WouldBlock.into())
                } else {
                    Ok(())
                }
            });
            match (read, tried) {
                (Some(length), _) => break length,
                (None, Err(error)) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    return Poll::Ready(Err(error));
                }
                (None, _) => {}
            }
        };
        buffer.advance(length);
        if !self.is_large && length >= BULK {
            self.is_large = true;
            enlarge(&self.pipe);
        }
        Poll::Ready(Ok(()))
    }
}

/// Lets a pipe hold more, unless it does, or its user has as much memory in pipes as it may have (pipe(7)).
fn enlarge(pipe: &impl AsFd) {
    // A small pipe is slower, and a pipe.
    if fcntl_getpipe_size(pipe).is_ok_and(|size| size < LARGE) && fcntl_setpipe_size(pipe, LARGE).is_ok() {
        // Linux 5.8 to 6.6 wakes those that wait for a full pipe before it has more in it for them (bug 212295 of
        // kernel.org), and no read of a pipe that is not full wakes them later. The same size again wakes them once it has.
        fcntl_setpipe_size(pipe, LARGE).ok();
    }
}

/// A pipe that is written. It has no buffer: what was written is in the pipe.
#[derive(Debug)]
pub(crate) struct PipeOutput {
    pipe: Sender,
    /// Whether it has the size for bulk, or cannot have it.
    is_large: bool,
}

impl PipeOutput {
    /// Opens the pipe behind a descriptor. Needs a runtime.
    ///
    /// # Errors
    /// It is no pipe, it is another user's, or there is no `/proc`.
    pub(crate) fn open(output: &impl AsFd) -> io::Result<Self> {
        let pipe = OpenOptions::new().open_sender(path(output))?;
        Ok(Self { pipe, is_large: false })
    }

    /// Whether its reader has closed it.
    pub(crate) fn has_no_reader(&self) -> bool {
        super::unix::has_no_reader(&self.pipe)
    }

    fn wrote(&mut self, bytes: usize) {
        if !self.is_large && bytes >= BULK {
            self.is_large = true;
            enlarge(&self.pipe);
        }
    }
}

impl AsyncWrite for PipeOutput {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.pipe).poll_write(context, bytes))?;
        self.wrote(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.pipe).poll_write_vectored(context, pieces))?;
        self.wrote(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn path(of: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", of.as_fd().as_raw_fd())
}

/// A page, in bytes: elsewhere the kernel may have larger ones than 4 KiB.
const LARGEST_PACKET: usize = if cfg!(target_arch = "x86_64") {
    4 << 10
} else {
    64 << 10
};
/// A read or a write of so many bytes is of bulk: half of what a pipe holds.
const BULK: usize = 32 * 1024;
/// The bytes that a pipe of bulk holds, four times as many as at first: its writer and its reader wake each other a quarter as
/// often. A user has 64 MiB for all pipes (fs.pipe-user-pages-soft), beyond which new ones are tiny.
const LARGE: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use rustix::fs::{OFlags, fcntl_getfl};
    use rustix::pipe::PipeFlags;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// More than a pipe holds.
    const LENGTH: usize = 3 << 20;

    fn pattern() -> Vec<u8> {
        (0..=250).cycle().take(LENGTH).collect()
    }

    #[tokio::test]
    async fn a_pipe_is_read_to_its_end_and_stays_a_blocking_one_for_others() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut input = PipeInput::open(&reader).unwrap();
        assert!(!fcntl_getfl(&reader).unwrap().contains(OFlags::NONBLOCK));
        let writing = tokio::task::spawn_blocking(move || writer.write_all(&pattern()));
        let mut all = Vec::new();
        input.read_to_end(&mut all).await.unwrap();
        writing.await.unwrap().unwrap();
        assert!(all == pattern());
    }

    #[tokio::test]
    async fn a_full_pipe_of_packets_is_read_to_its_last_one() {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::DIRECT | PipeFlags::NONBLOCK).unwrap();
        let mut input = PipeInput::open(&reader).unwrap();
        for packet in [vec![7; 1], vec![7; 4 << 10]] {
            let mut written = 0;
            while let Ok(length) = rustix::io::write(&writer, &packet) {
                written += length;
            }
            assert!(written > packet.len());
            let mut read = 0;
            let mut chunk = [0; 2 * BULK];
            while read < written {
                read += input.read(&mut chunk).await.unwrap();
            }
        }
        drop(writer);
        assert_eq!(input.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn bulk_gets_a_larger_pipe_and_keystrokes_do_not() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut input = PipeInput::open(&reader).unwrap();
        let size = fcntl_getpipe_size(&reader).unwrap();
        let mut chunk = [0; BULK];
        for keys in [1, 1024, BULK - 1] {
            writer.write_all(chunk.get(..keys).unwrap()).unwrap();
            assert_eq!(input.read(&mut chunk).await.unwrap(), keys);
        }
        assert_eq!(fcntl_getpipe_size(&reader).unwrap(), size);
        writer.write_all(&chunk).unwrap();
        assert_eq!(input.read(&mut chunk).await.unwrap(), BULK);
        assert_eq!(fcntl_getpipe_size(&reader).unwrap(), LARGE);
    }

    #[tokio::test]
    async fn bulk_out_gets_a_larger_pipe_and_the_echoes_of_keystrokes_do_not() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut output = PipeOutput::open(&writer).unwrap();
        let size = fcntl_getpipe_size(&reader).unwrap();
        let chunk = [0; BULK];
        for (bytes, larger) in [(1, size), (BULK - 1, size), (BULK, LARGE)] {
            let (first, second) = chunk.get(..bytes).unwrap().split_at(bytes / 2);
            let pieces = [IoSlice::new(first), IoSlice::new(second)];
            assert_eq!(output.write_vectored(&pieces).await.unwrap(), bytes);
            assert_eq!(fcntl_getpipe_size(&reader).unwrap(), larger);
            reader.read_exact(&mut vec![0; bytes]).unwrap();
        }
        let (_reader, writer) = io::pipe().unwrap();
        let mut output = PipeOutput::open(&writer).unwrap();
        assert_eq!(output.write(&chunk).await.unwrap(), BULK);
        assert_eq!(fcntl_getpipe_size(&writer).unwrap(), LARGE);
    }

    #[tokio::test]
    async fn a_pipe_that_is_larger_keeps_its_size() {
        let (reader, mut writer) = io::pipe().unwrap();
        let size = fcntl_setpipe_size(&reader, 2 * LARGE).unwrap();
        let mut input = PipeInput::open(&reader).unwrap();
        let mut chunk = [0; BULK];
        writer.write_all(&chunk).unwrap();
        assert_eq!(input.read(&mut chunk).await.unwrap(), BULK);
        assert_eq!(fcntl_getpipe_size(&reader).unwrap(), size);
    }

    #[tokio::test]
    async fn a_pipe_is_written_at_its_readers_pace_and_ends_with_its_last_descriptor() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut output = PipeOutput::open(&writer).unwrap();
        assert!(!fcntl_getfl(&writer).unwrap().contains(OFlags::NONBLOCK));
        drop(writer);
        let reading = tokio::task::spawn_blocking(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).map(|_| all)
        });
        assert!(!output.has_no_reader());
        output.write_all(&pattern()).await.unwrap();
        drop(output);
        assert!(reading.await.unwrap().unwrap() == pattern());
    }

    #[tokio::test]
    async fn a_pipe_without_a_reader_says_so() {
        let (reader, writer) = io::pipe().unwrap();
        let mut output = PipeOutput::open(&writer).unwrap();
        drop(reader);
        assert!(output.has_no_reader());
        assert_eq!(output.write_all(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn what_is_no_pipe_is_left_to_threads() {
        let (socket, _other) = UnixStream::pair().unwrap();
        assert!(PipeInput::open(&socket).is_err() && PipeOutput::open(&socket).is_err());
        let file = tempfile::tempfile().unwrap();
        assert!(PipeInput::open(&file).is_err() && PipeOutput::open(&file).is_err());
    }
}
