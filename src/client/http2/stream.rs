//! A stream of an HTTP/2 connection as something to read and to write.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::SendStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::inbox::Inbox;

/// A stream whose answer has come. Its connection has to be driven by somebody else.
pub(super) struct Stream {
    inbox: Inbox,
    send: SendStream<Bytes>,
}

impl Stream {
    pub(super) fn new(inbox: Inbox, send: SendStream<Bytes>) -> Self {
        Self { inbox, send }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.inbox.poll_read(context, room)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let send = &mut self.get_mut().send;
        send.reserve_capacity(bytes.len());
        while send.capacity() == 0 {
            match ready!(send.poll_capacity(context)) {
                Some(capacity) => _ = capacity.map_err(broken)?,
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
        let now = bytes.get(..send.capacity()).unwrap_or(bytes);
        send.send_data(Bytes::copy_from_slice(now), false).map_err(broken)?;
        Poll::Ready(Ok(now.len()))
    }

    /// The connection sends what it has as soon as it can.
    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// END_STREAM: the FIN of a stream.
    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.get_mut().send.send_data(Bytes::new(), true).map_err(broken))
    }
}

/// A stream's error as a socket would have it. It is never an `UnexpectedEof`, which under TLS passes for an end: an
/// HTTP/2 stream ends with END_STREAM or not at all.
pub(super) fn broken(error: h2::Error) -> io::Error {
    if error.is_io() {
        io::Error::new(
            io::ErrorKind::ConnectionAborted,
            "the proxy closed it before the tunnel's end",
        )
    } else {
        io::Error::new(io::ErrorKind::ConnectionReset, error)
    }
}
