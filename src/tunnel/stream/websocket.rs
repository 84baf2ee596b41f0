//! A WebSocket connection as the transport of a tunnel, over another transport.
//!
//! A direction ends with a close frame: WebSocket has no half-close, but each end reads until the other's (RFC 6455 section
//! 5.5.1). A transport that ends without one counts as a reset.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem::take;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use crate::net::transport::{BulkMode, Reader, Transport, Writer};
use crate::protocol::websocket::{CloseFrame, Codec, Role};

/// The server's end of a connection whose handshake is over.
#[derive(Debug)]
pub struct WebSocket<T> {
    transport: T,
    codec: Codec,
    opened: Instant,
}

impl<T: Transport> WebSocket<T> {
    /// Creates the server's end. `read` was read after the client's request.
    pub fn server(transport: T, read: Vec<u8>) -> Self {
        Self {
            transport,
            codec: Codec::new(Role::Server, read),
            opened: Instant::now(),
        }
    }

    /// Sets the status and the reason of the close frame, unless they are set: the first ones count.
    pub(crate) fn set_close_frame(&mut self, code: u16, reason: &str) {
        self.codec.sender.set_close_frame(CloseFrame::new(code, reason));
    }

    /// Sends the close frame, within bounds of time. Returns whether it was sent.
    async fn close(&mut self) -> bool {
        let (_, mut writer) = self.split();
        let closed = poll_fn(|context| writer.poll_close(context));
        matches!(timeout(CLOSE_TIMEOUT, closed).await, Ok(Ok(())))
    }

    /// Returns whether the client has sent its close frame, and ours is queued, or never will be.
    fn is_over(&self) -> bool {
        self.codec.sender.is_closed() && self.codec.receiver.close_frame().is_some()
    }
}

impl<T: Transport> Transport for WebSocket<T> {
    type Reader<'a>
        = WebSocketReader<'a, T::Reader<'a>, T::Writer<'a>>
    where
        T: 'a;
    type Writer<'a>
        = WebSocketWriter<'a, T::Writer<'a>>
    where
        T: 'a;

    /// It lends no memory, but may share its task.
    fn bulk_mode(&self) -> BulkMode {
        match self.transport.bulk_mode() {
            BulkMode::Lend => BulkMode::Lend,
            BulkMode::Splice | BulkMode::Chunks => BulkMode::Chunks,
        }
    }

    fn split(&mut self) -> (Self::Reader<'_>, Self::Writer<'_>) {
        let (reader, writer) = self.transport.split();
        let codec = &mut self.codec;
        let shared = Arc::new(Mutex::new(Outgoing { writer, codec }));
        let writer = WebSocketWriter(Arc::clone(&shared));
        (
            WebSocketReader {
                reader,
                shared,
                opened: self.opened,
                has_read_nothing: false,
            },
            writer,
        )
    }

    fn keep_unsent_below(&mut self, unsent: usize) {
        self.transport.keep_unsent_below(unsent);
    }

    /// A client that has closed is not reset: it would lose the answer to its close.
    fn reset_on_drop(&mut self) {
        if !self.is_over() {
            self.transport.reset_on_drop();
        }
    }

    /// Sends a close frame with another status than that of a normal closure: a reset may be lost on the way.
    async fn abort(&mut self) {
        self.set_close_frame(INTERNAL_ERROR, "the stream is incomplete");
        self.close().await;
        self.transport.abort().await;
    }

    /// Ends the transport's stream after the close frame, which may not have been taken yet.
    async fn sent(&mut self) {
        if self.close().await {
            let (_, mut writer) = self.transport.split();
            let shutdown = poll_fn(|context| writer.poll_shutdown(context));
            timeout(CLOSE_TIMEOUT, shutdown).await.ok();
        }
        self.transport.sent().await;
    }

    async fn shutdown_gracefully(&mut self) {
        self.close().await;
        self.transport.shutdown_gracefully().await;
    }
}

/// The encoder, and the transport that it writes to. The reader needs both, to answer pings. Both directions of a tunnel
/// run in one task, so the lock is never contended.
#[derive(Debug)]
struct Outgoing<'a, W> {
    writer: W,
    codec: &'a mut Codec,
}

impl<W: Writer> Outgoing<'_, W> {
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { writer, codec } = self;
        let write = |pieces: &[IoSlice<'_>]| writer.poll_write_vectored(context, pieces);
        ready!(codec.sender.poll_flush(write))?;
        writer.poll_flush(context)
    }
}

/// The half that decodes what the client sends.
#[derive(Debug)]
pub struct WebSocketReader<'a, R, W> {
    reader: R,
    shared: Arc<Mutex<Outgoing<'a, W>>>,
    opened: Instant,
    /// True if the last read had no payload.
    has_read_nothing: bool,
}

impl<R: Reader, W: Writer> WebSocketReader<'_, R, W> {
    fn has_ended(&self) -> bool {
        self.shared.lock().codec.receiver.close_frame().is_some()
    }

    /// Decodes the bytes of one read into `buffer`. The length is `None` at the end of the transport's stream.
    fn poll_decode(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<Option<usize>>> {
        let mut shared = self.shared.lock();
        let decoded = match shared.codec.decode_unread(buffer) {
            Some(decoded) => decoded.map(Some),
            None => {
                let start = buffer.as_ptr();
                let read = ready!(self.reader.poll_read(context, buffer))?;
                // Those of an HTTP/2 stream are in memory of its own.
                let elsewhere = (!ptr::eq(read.as_ptr(), start)).then(|| read.to_vec());
                let length = read.len();
                let read = buffer.get_mut(..length).unwrap_or_default();
                if let Some(elsewhere) = elsewhere {
                    read.copy_from_slice(&elsewhere);
                }
                (!read.is_empty()).then(|| shared.codec.decode(read)).transpose()
            }
        };
        let decoded = decoded.and_then(|length| {
            let checked = shared.codec.check_budget(self.opened.elapsed());
            checked.map(|()| length)
        });
        // Sends a pong at once, if the client takes it: else the next write does. If it fails, the next write reports it, after
        // the payload has been passed on.
        let _is_sent = shared.poll_flush(context);
        Poll::Ready(decoded)
    }
}

impl<R: Reader, W: Writer> Reader for WebSocketReader<'_, R, W> {
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Without a pause a flood of pings and empty frames would keep this worker, until it has used its budget up.
        if take(&mut self.has_read_nothing) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut shared = self.shared.lock();
        // A pong that the client has not taken yet.
        let _is_sent = shared.poll_flush(context);
        if shared.codec.has_unread() || shared.codec.receiver.close_frame().is_some() {
            return Poll::Ready(Ok(()));
        }
        self.reader.poll_readable(context)
    }

    /// The length of a read is that of `buffer` at most, so that all of it is decoded at once.
    fn poll_read<'a>(&'a mut self, context: &mut Context<'_>, buffer: &'a mut [u8]) -> Poll<io::Result<&'a [u8]>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(&[]));
        }
        let mut shared = self.shared.lock();
        match shared.codec.receiver.close_frame().map(CloseFrame::is_normal) {
            Some(true) => return Poll::Ready(Ok(&[])),
            Some(false) => {
                // The relay resets both sides next: this is the answer to the client's close.
                shared.codec.sender.close();
                let _is_sent = shared.poll_flush(context);
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            None => drop(shared),
        }
        match ready!(self.poll_decode(context, buffer))? {
            Some(0) => {
                self.has_read_nothing = true;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Some(decoded) => Poll::Ready(Ok(buffer.get(..decoded).unwrap_or_default())),
            // Many clients close at once when they have read the close frame.
            None if self.shared.lock().codec.sender.is_closed() => Poll::Ready(Ok(&[])),
            None => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
    }

    async fn failed(&mut self) -> io::Error {
        self.reader.failed().await
    }

    /// Waits for the end of the transport's stream: a close frame that is not read yet precedes it.
    async fn ended(&mut self) -> io::Result<()> {
        if self.has_ended() {
            return Ok(());
        }
        self.reader.ended().await
    }
}

/// The half that encodes what the client is sent.
#[derive(Debug)]
pub struct WebSocketWriter<'a, W>(Arc<Mutex<Outgoing<'a, W>>>);

impl<W: Writer> WebSocketWriter<'_, W> {
    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut shared = self.0.lock();
        shared.codec.sender.close();
        shared.writer.mark_end();
        shared.poll_flush(context)
    }
}

impl<W: Writer> Writer for WebSocketWriter<'_, W> {
    fn tolerate_closed_window(&self, is_tolerated: bool) {
        self.0.lock().writer.tolerate_closed_window(is_tolerated);
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut shared = self.0.lock();
        let Outgoing { writer, codec } = &mut *shared;
        codec
            .sender
            .poll_write(bytes, |pieces| writer.poll_write_vectored(context, pieces))
    }

    fn poll_sendable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().writer.poll_sendable(context)
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().poll_flush(context)
    }

    /// Sends the close frame only: the client may have more to send.
    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_close(context)
    }

    fn poll_end_sent(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.0.lock().writer.poll_end_sent(context)
    }
}

/// How long a close frame, or the end of the transport's stream, may take to be sent.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The status 1011 of a close frame.
const INTERNAL_ERROR: u16 = 1011;

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};

    #[tokio::test]
    async fn a_flood_of_pings_pauses_after_each_read() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut websocket = WebSocket::server(listener.accept().await.unwrap().0, Vec::new());
        client.write_all(&[PING, PING].concat()).await.unwrap();
        let (mut reader, _writer) = websocket.split();
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            poll_fn(|context| reader.poll_readable(context)).await.unwrap();
            assert!(reader.poll_read(&mut context, &mut [0; PING.len()]).is_pending());
            assert!(reader.poll_readable(&mut context).is_pending());
        }
    }

    /// Its mask is of zeros.
    const PING: [u8; 6] = [0x89, 0x80, 0, 0, 0, 0];
}
