//! The socket of an SSH connection, with the bytes that were read before, behind its gate.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::net::socket;
use crate::tunnel::ssh::jump::gate::Gate;

/// A socket that is read only while the gate is open, and fails once the gate is closed.
pub(super) struct Line {
    socket: Arc<TcpStream>,
    /// Bytes that were read and not passed on: the library reads each packet in two pieces.
    unread: Vec<u8>,
    gate: Arc<Gate>,
    /// Completes at a reset, which a read would find only once the gate is open.
    failed: Pin<Box<dyn Future<Output = io::Error> + Send>>,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line")
            .field("socket", &self.socket)
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}

impl Line {
    /// The line over `socket`, of which `unread` was read.
    pub(super) fn new(socket: TcpStream, unread: Vec<u8>, gate: Arc<Gate>) -> Self {
        let socket = Arc::new(socket);
        let watched = Arc::clone(&socket);
        Self {
            socket,
            unread,
            gate,
            failed: Box::pin(async move { socket::failed(&watched).await }),
        }
    }

    fn poll_socket(&self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.socket.poll_read_ready(context))?;
            match self.socket.try_read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
        }
    }

    /// Reads bytes of the peer; none at its FIN.
    fn poll_bytes(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<usize>> {
        if self.unread.is_empty() {
            if buffer.remaining() >= BUFFER {
                let read = ready!(self.poll_socket(context, buffer.initialize_unfilled()))?;
                buffer.advance(read);
                return Poll::Ready(Ok(read));
            }
            let mut bytes = [0; BUFFER];
            let read = ready!(self.poll_socket(context, &mut bytes))?;
            self.unread.extend_from_slice(bytes.get(..read).unwrap_or_default());
        }
        let now = self.unread.len().min(buffer.remaining());
        buffer.put_slice(self.unread.get(..now).unwrap_or_default());
        self.unread.drain(..now);
        Poll::Ready(Ok(now))
    }
}

impl AsyncRead for Line {
    /// A peer's packet is read in one piece after its length: a longer piece than [`MAX_PACKET`] is refused as it begins.
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() > MAX_PACKET {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        if self.gate.poll_readable(context)?.is_pending() {
            let error = ready!(self.failed.as_mut().poll(context));
            self.gate.close();
            return Poll::Ready(Err(error));
        }
        let read = ready!(self.poll_bytes(context, buffer))?;
        self.gate.read(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Line {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.gate.check_writable(context)?;
        loop {
            ready!(self.socket.poll_write_ready(context))?;
            match self.socket.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    /// The library flushes after it has written all that it has encrypted.
    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.gate.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(socket::finish(&self.socket))
    }
}

/// A keystroke fits; the library reads bulk past the buffer.
const BUFFER: usize = 2048;
/// "All implementations MUST be able to process [...] a total packet size of 35000 bytes or less" (RFC 4253 section 6.1). The
/// library would take 256 KiB.
const MAX_PACKET: usize = 35_000;
