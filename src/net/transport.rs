//! What a relay has at its two ends: a source and a sink of bytes each, whatever carries them.

use std::future::{Future, ready};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{self, Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::socket;

/// One end of a tunnel: a socket, a TLS session on one, or a stream of an HTTP/2 connection.
pub trait Transport: Send {
    /// Where its bytes are read.
    type Reader<'a>: Reader
    where
        Self: 'a;
    /// Where bytes for it are written.
    type Writer<'a>: Writer
    where
        Self: 'a;

    /// Both, for as long as they are used: what must last, such as bytes that were decrypted, stays in the end.
    fn split(&mut self) -> (Self::Reader<'_>, Self::Writer<'_>);

    /// Has the kernel take little more than it can send: what is written next leaves soon. It costs processor time.
    fn keep_unsent_short(&mut self) {}

    /// Makes its drop send a reset, and throw away what is not sent yet.
    fn reset_on_drop(&mut self);

    /// Completes when the end of stream has left behind all that was written, where it is not for the kernel to send that.
    ///
    /// Within a bound of time: as long as the kernel would try.
    fn sent(&mut self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// Sends the end of stream behind all that was written, then waits for the peer's, within bounds of time and bytes.
    ///
    /// The caller drops the end next.
    fn close_gently(&mut self) -> impl Future<Output = ()> + Send;
}

/// Where one direction of a relay reads. Nothing of it may be lost when a poll of it is not repeated.
pub trait Reader: Send {
    /// Completes when a read will probably find something: bytes, the end of stream, or a fault.
    ///
    /// # Errors
    /// Why nothing will ever be read.
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Reads at most as many bytes as `room` has, and none at the end of stream, however often it is asked.
    ///
    /// They stand in `room`, or, where that spares a copy, in memory of the source's own. From then on they are the
    /// caller's: the next read finds those behind them.
    ///
    /// # Errors
    /// A reset is `ConnectionReset`, whatever carries it, and an end where there cannot be one is `UnexpectedEof`.
    fn poll_read<'a>(&'a mut self, context: &mut Context<'_>, room: &'a mut [u8]) -> Poll<io::Result<&'a [u8]>>;

    /// So many bytes that were read have been written to the other end: a peer that waits for that may send as many.
    fn passed_on(&mut self, _bytes: usize) {}

    /// Completes when the peer resets or is given up, without reading.
    fn failed(&mut self) -> impl Future<Output = io::Error> + Send;

    /// Whether it is one of many that run in one task, which lets other tasks run by itself.
    fn shares_task(&self) -> bool {
        false
    }

    /// The socket, if its bytes are the tunnel's as they are: the kernel may move them.
    fn plain(&self) -> Option<&TcpStream> {
        None
    }
}

/// Where one direction of a relay writes.
pub trait Writer: Send {
    /// Takes some of the bytes, at least one. What it holds back of them is bounded, and sent by a flush.
    ///
    /// # Errors
    /// A reset is `ConnectionReset` or `BrokenPipe`, whatever carries it.
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Takes some of the bytes of these pieces, as of one.
    ///
    /// # Errors
    /// As a write.
    fn poll_write_vectored(&mut self, context: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let first = pieces.iter().find(|piece| !piece.is_empty());
        self.poll_write(context, first.map_or(&[], |piece| piece))
    }

    /// Completes when it may be asked to [lend](Self::lend), which has to happen at once.
    ///
    /// # Errors
    /// As a write.
    fn poll_room(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// The most that it lends; 0 if it has no memory of its own.
    fn most_lent(&self) -> usize {
        0
    }

    /// Memory of its own for at most so many bytes, to be read into: what stands there need not be copied to be sent.
    /// `None` if it has none, and takes bytes by a write.
    fn lend(&mut self, _most: usize) -> Option<&mut [u8]> {
        None
    }

    /// Takes the first bytes of what it has lent, and the rest of it back.
    ///
    /// # Errors
    /// As a write.
    fn keep(&mut self, _bytes: usize) -> io::Result<()> {
        Ok(())
    }

    /// Whether it has taken bytes that only a flush will send.
    fn holds_back(&self) -> bool {
        false
    }

    /// Sends what it holds back, and completes when that is nothing.
    ///
    /// # Errors
    /// As a write.
    fn poll_flush(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Sends what it holds back, and the end of stream behind it, once, however often it is asked.
    ///
    /// # Errors
    /// As a write.
    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Whether it is one of many that run in one task, which lets other tasks run by itself.
    fn shares_task(&self) -> bool {
        false
    }

    /// The socket, if the tunnel's bytes go into it as they are: the kernel may move them.
    fn plain(&self) -> Option<&TcpStream> {
        None
    }
}

impl Transport for TcpStream {
    type Reader<'a> = ReadHalf<'a>;
    type Writer<'a> = WriteHalf<'a>;

    fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        Self::split(self)
    }

    fn keep_unsent_short(&mut self) {
        socket::keep_unsent_short(self);
    }

    fn reset_on_drop(&mut self) {
        socket::reset_on_drop(self);
    }

    async fn close_gently(&mut self) {
        socket::close_gently(self).await;
    }
}

impl Reader for ReadHalf<'_> {
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.as_ref().poll_read_ready(context)
    }

    /// With tokio's `poll_read`, which spares the second read(2) that would only say EAGAIN.
    fn poll_read<'a>(&'a mut self, context: &mut Context<'_>, room: &'a mut [u8]) -> Poll<io::Result<&'a [u8]>> {
        let mut buffer = ReadBuf::new(room);
        task::ready!(AsyncRead::poll_read(Pin::new(self), context, &mut buffer))?;
        let read = buffer.filled().len();
        Poll::Ready(Ok(room.get(..read).unwrap_or_default()))
    }

    async fn failed(&mut self) -> io::Error {
        socket::failed(self.as_ref()).await
    }

    fn plain(&self) -> Option<&TcpStream> {
        Some(self.as_ref())
    }
}

impl Writer for WriteHalf<'_> {
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(self), context, bytes)
    }

    fn poll_write_vectored(&mut self, context: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write_vectored(Pin::new(self), context, pieces)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(self), context)
    }

    fn plain(&self) -> Option<&TcpStream> {
        Some(self.as_ref())
    }
}
