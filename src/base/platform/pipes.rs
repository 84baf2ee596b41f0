//! Pipes of this process that the runtime waits for by itself, without a thread.
//!
//! A pipe is opened once more (proc_pid_fd(5)), because O_NONBLOCK belongs to the open file description (open(2)). The
//! pipe's own descriptor may share that description with other processes.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::unix::pipe::OpenOptions;

/// Opens the pipe behind a descriptor for reads. Needs a runtime.
///
/// # Errors
/// The descriptor is of no pipe or of another user's, or there is no `/proc`.
pub(crate) fn pipe_input(input: &impl AsFd) -> io::Result<Box<dyn AsyncRead + Send + Unpin>> {
    Ok(Box::new(OpenOptions::new().open_receiver(path(input))?))
}

/// Opens the pipe behind a descriptor for writes, without a buffer in this process. Needs a runtime.
///
/// # Errors
/// The descriptor is of no pipe or of another user's, or there is no `/proc`.
pub(crate) fn pipe_output(output: &impl AsFd) -> io::Result<Box<dyn AsyncWrite + Send + Unpin>> {
    Ok(Box::new(OpenOptions::new().open_sender(path(output))?))
}

/// The size of a pipe, which grows once, at the first bulk that is moved through it.
#[derive(Debug, Default)]
pub(crate) struct PipeSize {
    /// True after the attempt to enlarge the pipe, also a failed one.
    is_large: bool,
}

impl PipeSize {
    /// Enlarges the pipe at the first read or write of [`BULK`] bytes or more.
    pub(crate) fn moved(&mut self, bytes: usize, pipe: &impl AsFd) {
        if bytes >= BULK && !self.is_large {
            self.is_large = true;
            enlarge(pipe);
        }
    }
}

/// Enlarges a pipe, unless it is large, or its user's pipes are at their limit of memory (pipe(7)).
fn enlarge(pipe: &impl AsFd) {
    // A pipe that stays small is only slower.
    if fcntl_getpipe_size(pipe).is_ok_and(|size| size < LARGE) && fcntl_setpipe_size(pipe, LARGE).is_ok() {
        // Linux 5.8 to 6.6 wakes the writers of a full pipe before the added room counts (bug 212295 of kernel.org).
        // They wait again, and a read wakes them only if the pipe is full. Setting the same size again wakes them.
        fcntl_setpipe_size(pipe, LARGE).ok();
    }
}

fn path(of: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", of.as_fd().as_raw_fd())
}

/// The least bytes of a read or a write in bulk: half of what a pipe holds at first.
const BULK: usize = 32 * 1024;
/// The bytes that a large pipe holds, four times as many as at first: its writer and its reader wake each other a quarter as
/// often. A user has 64 MiB for all pipes (fs.pipe-user-pages-soft), beyond which new ones are tiny.
const LARGE: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use rustix::fs::{OFlags, fcntl_getfl};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// More than a pipe holds.
    const LENGTH: usize = 3 << 20;

    fn pattern() -> Vec<u8> {
        (0..=250).cycle().take(LENGTH).collect()
    }

    #[tokio::test]
    async fn a_pipe_is_read_to_its_end_and_stays_a_blocking_one_for_others() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut input = pipe_input(&reader).unwrap();
        assert!(!fcntl_getfl(&reader).unwrap().contains(OFlags::NONBLOCK));
        let writing = tokio::task::spawn_blocking(move || writer.write_all(&pattern()));
        let mut all = Vec::new();
        input.read_to_end(&mut all).await.unwrap();
        writing.await.unwrap().unwrap();
        assert!(all == pattern());
    }

    #[test]
    fn bulk_gets_a_larger_pipe_and_keystrokes_do_not() {
        let (reader, writer) = io::pipe().unwrap();
        let small = fcntl_getpipe_size(&reader).unwrap();
        let (mut read, mut written) = (PipeSize::default(), PipeSize::default());
        for keys in [1, 1024, BULK - 1] {
            read.moved(keys, &reader);
            written.moved(keys, &writer);
        }
        assert_eq!(fcntl_getpipe_size(&reader).unwrap(), small);
        read.moved(BULK, &reader);
        assert_eq!(fcntl_getpipe_size(&reader).unwrap(), LARGE);
        let larger = fcntl_setpipe_size(&reader, 2 * LARGE).unwrap();
        written.moved(BULK, &writer);
        assert_eq!(fcntl_getpipe_size(&reader).unwrap(), larger);
    }

    #[tokio::test]
    async fn a_pipe_is_written_at_its_readers_pace_and_ends_with_its_last_descriptor() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut output = pipe_output(&writer).unwrap();
        assert!(!fcntl_getfl(&writer).unwrap().contains(OFlags::NONBLOCK));
        drop(writer);
        let reading = tokio::task::spawn_blocking(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).map(|_| all)
        });
        output.write_all(&pattern()).await.unwrap();
        drop(output);
        assert!(reading.await.unwrap().unwrap() == pattern());
    }

    #[tokio::test]
    async fn a_pipe_without_a_reader_is_broken() {
        let (reader, writer) = io::pipe().unwrap();
        let mut output = pipe_output(&writer).unwrap();
        drop(reader);
        assert_eq!(output.write_all(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn what_is_no_pipe_is_left_to_threads() {
        let (socket, _other) = UnixStream::pair().unwrap();
        assert!(pipe_input(&socket).is_err() && pipe_output(&socket).is_err());
        let file = tempfile::tempfile().unwrap();
        assert!(pipe_input(&file).is_err() && pipe_output(&file).is_err());
    }
}
