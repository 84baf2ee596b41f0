//! A bare relay, the floor of what bulk costs a proxy: blocking threads that splice between two sockets, and nothing else.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::thread;

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

/// Relays both ways until both sides have finished or one has failed.
pub(crate) fn relay(client: &TcpStream, upstream: &TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    upstream.set_nodelay(true)?;
    let (from, to) = (client.try_clone()?, upstream.try_clone()?);
    let upload = thread::spawn(move || splice_all(&from, &to));
    splice_all(upstream, client)?;
    upload.join().map_err(|_| io::Error::other("the upload has panicked"))?
}

/// Splices until the end of stream, and passes it on.
fn splice_all(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    let pipe = Pipe::new()?;
    while pipe.splice(from, to, PIPE)? > 0 {}
    to.shutdown(Shutdown::Write)
}

/// A pipe between two sockets.
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipe {
    pub(crate) fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setpipe_size(&write, PIPE)?;
        Ok(Self { read, write })
    }

    /// Moves what there is, at most `max` bytes, and returns how many: 0 at the end of stream.
    pub(crate) fn splice(&self, from: &TcpStream, to: &TcpStream, max: usize) -> io::Result<usize> {
        let filled = splice(from, None, &self.write, None, max, SpliceFlags::MOVE)?;
        let mut left = filled;
        while left > 0 {
            left -= splice(&self.read, None, to, None, left, SpliceFlags::MOVE)?;
        }
        Ok(filled)
    }
}

/// As large as a pipe of switchboard is.
const PIPE: usize = 1024 * 1024;
