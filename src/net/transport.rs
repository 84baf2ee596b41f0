//! A transport: one end of a tunnel, with a reader and a writer.

use std::future::{Future, poll_fn, ready};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{self, Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::socket;

/// One end of a tunnel: a socket, a TLS stream, a stream of an HTTP/2 connection, a WebSocket over one of them, or a channel of
/// an SSH connection.
pub trait Transport: Send {
    /// The half that reads.
    type Reader<'a>: Reader
    where
        Self: 'a;
    /// The half that writes.
    type Writer<'a>: Writer
    where
        Self: 'a;

    /// Returns how a relay moves bulk between this transport as the downstream and a socket as the upstream.
    fn bulk_mode(&self) -> BulkMode;

    /// Returns both halves. What must outlast them, such as decrypted bytes, stays in the transport.
    fn split(&mut self) -> (Self::Reader<'_>, Self::Writer<'_>);

    /// Limits the unsent bytes in the kernel, so that bytes written later leave soon. The limit costs CPU time.
    fn keep_unsent_below(&mut self, _unsent: usize) {}

    /// Makes the drop send a reset, and discard what is not sent yet.
    fn reset_on_drop(&mut self);

    /// Sends what was written, within bounds of time, and a reset after it, so that a truncated stream cannot look
    /// complete.
    ///
    /// The caller drops the transport next.
    fn abort(&mut self) -> impl Future<Output = ()> + Send;

    /// Completes when all that was written, and the end of stream after it, has been handed to the kernel, or is
    /// abandoned. A transport that queues nothing above the kernel does not wait.
    fn sent(&mut self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// Sends the end of stream after all that was written, then waits for the peer's, within bounds of time and bytes.
    ///
    /// The caller drops the transport next.
    fn shutdown_gracefully(&mut self) -> impl Future<Output = ()> + Send;
}

/// The cancellation of a stream by a peer that needs no more of the stream. Not a failure if the peer has finished, or
/// has received the end of stream.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the peer needs no more of the stream")]
pub struct StreamCancelled;

impl StreamCancelled {
    /// Returns whether an error is a cancellation.
    pub fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|cause| cause.is::<Self>())
    }
}

/// Callers that do not check for a cancellation see a reset.
impl From<StreamCancelled> for io::Error {
    fn from(cancelled: StreamCancelled) -> Self {
        Self::new(io::ErrorKind::ConnectionReset, cancelled)
    }
}

/// How a relay moves bulk between a transport and a socket. Small messages are copied, unless the transport lends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkMode {
    /// By splice(2), in the kernel: both have a [`socket`](Reader::socket) whose bytes are the tunnel's.
    Splice,
    /// By copies in large pieces, through memory of the worker thread.
    Chunks,
    /// The download by reads into memory that the [writer lends](Writer::lender), the upload by copies. A transport of
    /// this mode shares its task with many others.
    Lend,
}

impl BulkMode {
    /// Returns how bulk moves between a downstream of this mode and an upstream of the mode `upstream`: the kernel
    /// splices between two sockets only.
    pub(crate) fn with_upstream(self, upstream: Self) -> Self {
        match (self, upstream) {
            (Self::Splice, Self::Chunks | Self::Lend) => Self::Chunks,
            (mode, _) => mode,
        }
    }
}

/// The half of a transport that reads. No byte is lost when a poll of it is not repeated.
pub trait Reader: Send + Sync {
    /// Completes when a read will probably find something: bytes, the end of stream, or an error.
    ///
    /// # Errors
    /// The reason why nothing will ever be read.
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Reads at most as many bytes as `buffer` has, and none at the end of stream, however often it is polled.
    ///
    /// The bytes are in `buffer` or, if that spares a copy, in memory of the reader. The next read returns the bytes
    /// after them. A read, or a wait for one, confirms that the earlier bytes were passed on: a window lets the peer
    /// send as many more.
    ///
    /// # Errors
    /// A reset is `ConnectionReset` in any transport, and an end where there cannot be one is `UnexpectedEof`. A record
    /// that cannot be decrypted is `InvalidData`: the caller closes gracefully, which sends the alert.
    fn poll_read<'a>(&'a mut self, context: &mut Context<'_>, buffer: &'a mut [u8]) -> Poll<io::Result<&'a [u8]>>;

    /// Completes when the peer resets or times out, without reading.
    fn failed(&mut self) -> impl Future<Output = io::Error> + Send
    where
        Self: Sized;

    /// Completes when the peer's end of stream has come, without reading: bytes before it may be unread.
    ///
    /// # Errors
    /// As [`failed`](Self::failed).
    fn ended(&mut self) -> impl Future<Output = io::Result<()>> + Send
    where
        Self: Sized;

    /// Returns the socket, if its bytes are the tunnel's as they are.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }
}

/// The half of a transport that writes.
pub trait Writer: Send + Sync {
    /// Takes at least one of the bytes. The writer may hold back a bounded number of bytes, which a flush sends.
    ///
    /// # Errors
    /// A reset is `ConnectionReset` or `BrokenPipe` in any transport.
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Takes some bytes of these pieces, as if they were one.
    ///
    /// # Errors
    /// As a write.
    fn poll_write_vectored(&mut self, context: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let first = pieces.iter().find(|piece| !piece.is_empty());
        self.poll_write(context, first.map_or(&[], |piece| piece))
    }

    /// Completes when the kernel has few unsent bytes, by its [limit](Transport::keep_unsent_below).
    ///
    /// # Errors
    /// The reason why nothing will ever be sent.
    fn poll_sendable(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Completes when all that the writer holds back is sent.
    ///
    /// # Errors
    /// As a write.
    fn poll_flush(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Sends what the writer holds back, then the end of stream: once, however often it is polled.
    ///
    /// # Errors
    /// As a write.
    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Sets whether the kernel waits for a peer that keeps its receive window closed, or times it out. Does nothing for
    /// an HTTP/2 stream, whose connection is shared.
    fn tolerate_closed_window(&self, _is_tolerated: bool) {}

    /// Notes that the next write is the end of a protocol over this one, which [`poll_end_sent`](Self::poll_end_sent) is then
    /// about. The stream goes on.
    fn mark_end(&mut self) {}

    /// Completes when the end of stream, and all before it, has been handed to the kernel, or never will be. To be
    /// polled after a shutdown only, or after the end that is [marked](Self::mark_end).
    fn poll_end_sent(&mut self, _context: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Returns the socket, if the tunnel's bytes go into it as they are.
    fn socket(&self) -> Option<&TcpStream> {
        None
    }

    /// Returns the writer itself, if it lends memory.
    fn lender(&mut self) -> Option<&mut dyn BufferLender> {
        None
    }
}

/// A writer with memory of its own: what is read into it need not be copied to be sent.
pub trait BufferLender {
    /// Completes when the writer can [lend](Self::lend), which the caller must call at once.
    ///
    /// # Errors
    /// As a write.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Returns at most `max` bytes of its memory; `None` if it has none after all.
    fn lend(&mut self, max: usize) -> Option<&mut [u8]>;

    /// Sends the first `bytes` of the lent memory, and takes the rest back.
    ///
    /// # Errors
    /// As a write.
    fn keep(&mut self, bytes: usize) -> io::Result<()>;
}

/// Writes all of these bytes, and flushes them.
///
/// # Errors
/// As a write.
pub fn send_all(transport: &mut impl Transport, mut bytes: &[u8]) -> impl Future<Output = io::Result<()>> {
    let (_, mut writer) = transport.split();
    poll_fn(move |context| {
        while !bytes.is_empty() {
            let written = task::ready!(writer.poll_write(context, bytes))?;
            bytes = bytes.get(written..).unwrap_or_default();
        }
        writer.poll_flush(context)
    })
}

/// Appends at most `max` bytes of one read, and at most [`CHUNK`], to `read`, and returns how many there were.
///
/// # Errors
/// As a read.
pub fn read_more(reader: &mut impl Reader, max: usize, read: &mut Vec<u8>) -> impl Future<Output = io::Result<usize>> {
    poll_fn(move |context| {
        // On the stack: a buffer in the future would take memory while a slow client is waited for.
        let mut chunk = [0; CHUNK];
        let room = chunk.get_mut(..max.min(CHUNK)).unwrap_or_default();
        let bytes = task::ready!(reader.poll_read(context, room))?;
        read.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    })
}

/// The bytes of one read: most heads, and most ClientHellos, fit.
const CHUNK: usize = 2048;

impl Transport for TcpStream {
    type Reader<'a> = ReadHalf<'a>;
    type Writer<'a> = WriteHalf<'a>;

    fn bulk_mode(&self) -> BulkMode {
        BulkMode::Splice
    }

    fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        Self::split(self)
    }

    fn keep_unsent_below(&mut self, unsent: usize) {
        socket::keep_unsent_below(self, unsent);
    }

    fn reset_on_drop(&mut self) {
        socket::reset_on_drop(self);
    }

    async fn abort(&mut self) {
        socket::cut_off(self).await;
    }

    async fn shutdown_gracefully(&mut self) {
        socket::close_gently(self).await;
    }
}

impl Reader for ReadHalf<'_> {
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.as_ref().poll_read_ready(context)
    }

    /// Uses tokio's `poll_read`, which spares a second read(2) that would only return EAGAIN.
    fn poll_read<'a>(&'a mut self, context: &mut Context<'_>, buffer: &'a mut [u8]) -> Poll<io::Result<&'a [u8]>> {
        let mut into = ReadBuf::new(buffer);
        task::ready!(AsyncRead::poll_read(Pin::new(self), context, &mut into))?;
        let read = into.filled().len();
        Poll::Ready(Ok(buffer.get(..read).unwrap_or_default()))
    }

    async fn failed(&mut self) -> io::Error {
        socket::failed(self.as_ref()).await
    }

    async fn ended(&mut self) -> io::Result<()> {
        socket::ended(self.as_ref()).await
    }

    fn socket(&self) -> Option<&TcpStream> {
        Some(self.as_ref())
    }
}

impl Writer for WriteHalf<'_> {
    fn tolerate_closed_window(&self, is_tolerated: bool) {
        socket::tolerate_closed_window(self.as_ref(), is_tolerated);
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(self), context, bytes)
    }

    fn poll_write_vectored(&mut self, context: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write_vectored(Pin::new(self), context, pieces)
    }

    fn poll_sendable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        socket::poll_sendable(self.as_ref(), context)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(self), context)
    }

    fn socket(&self) -> Option<&TcpStream> {
        Some(self.as_ref())
    }
}
