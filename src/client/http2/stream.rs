//! A stream of an HTTP/2 connection as something to read and to write.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream whose answer has come. Its connection has to be driven by somebody else.
pub(super) struct Stream {
    receive: RecvStream,
    send: SendStream<Bytes>,
    /// What is left of the frame that came last.
    frame: Bytes,
    /// How much was read that its reader may not have passed on.
    read: usize,
}

impl Stream {
    pub(super) fn new(receive: RecvStream, send: SendStream<Bytes>) -> Self {
        Self {
            receive,
            send,
            frame: Bytes::new(),
            read: 0,
        }
    }

    /// Finds bytes that were not read yet: `false` at the end of stream.
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        while self.frame.is_empty() {
            match ready!(self.receive.poll_data(context)) {
                Some(frame) => self.frame = frame.map_err(broken)?,
                None => return Poll::Ready(Ok(false)),
            }
        }
        Poll::Ready(Ok(true))
    }
}

impl AsyncRead for Stream {
    /// Reads as many frames as there are and fit. Who reads again has passed on what was read before: only then may the
    /// proxy send as much again, so that a stdout which nobody reads stops it.
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // It fails for a stream that is gone, whose window does not matter any more.
        this.receive.flow_control().release_capacity(this.read).ok();
        this.read = 0;
        while room.remaining() > 0 {
            match this.poll_frame(context) {
                Poll::Ready(Ok(true)) => {
                    let now = this.frame.len().min(room.remaining());
                    room.put_slice(&this.frame.split_to(now));
                    this.read += now;
                }
                // Whatever it is, it is still so at the next read.
                _ if this.read > 0 => break,
                Poll::Ready(Ok(false)) => break,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
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
