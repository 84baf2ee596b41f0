//! One stream of an HTTP/2 connection as the transport of a tunnel (RFC 9113 section 8.5).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::{Reason, SendStream};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::receive::{ReceiveHalf, StreamReader};
pub(super) use self::send::stream_error;
use self::send::{SendHalf, StreamWriter};
use super::outgoing::Outgoing;
use super::payload::Payload;
use super::recv_queue::SharedQueue;
use crate::net::transport::{BulkMode, Reader as _, Transport, Writer as _};

mod receive;
mod send;

/// A stream whose request has been answered.
#[derive(Debug)]
pub struct Stream {
    receive: ReceiveHalf,
    /// Behind a lock, as both directions need it: one to send, the other to learn of a reset. They run in one task.
    send: Mutex<SendHalf>,
    outgoing: Outgoing,
    reset: bool,
}

impl Stream {
    pub(super) fn new(receive: SharedQueue, send: SendStream<Payload>, outgoing: Outgoing) -> Self {
        Self {
            receive: ReceiveHalf::new(receive),
            send: Mutex::new(SendHalf::new(send, outgoing.clone())),
            outgoing,
            reset: false,
        }
    }

    /// Returns the stream with these bytes and END_STREAM sent on it.
    pub fn finished_with(mut self, last: Vec<u8>) -> Self {
        self.send.get_mut().finish(last);
        self
    }
}

impl Transport for Stream {
    type Reader<'a> = StreamReader<'a>;
    type Writer<'a> = StreamWriter<'a>;

    fn bulk_mode(&self) -> BulkMode {
        BulkMode::Lend
    }

    fn split(&mut self) -> (StreamReader<'_>, StreamWriter<'_>) {
        (
            StreamReader::new(&mut self.receive, &self.send),
            StreamWriter::new(&self.send, &self.outgoing),
        )
    }

    fn reset_on_drop(&mut self) {
        self.reset = true;
    }

    /// Waits at most [`FLUSH_TIMEOUT`]: bytes in h2 and the write queue would be lost with the connection or the
    /// process.
    async fn sent(&mut self) {
        self.send.get_mut().flushed(FLUSH_TIMEOUT).await;
    }

    /// Waits until the bytes written so far have been flushed, at most [`LINGER`], then resets the stream.
    async fn abort(&mut self) {
        let send = self.send.get_mut();
        send.mark();
        send.flushed(LINGER).await;
        send.reset(Reason::CONNECT_ERROR);
        self.reset = true;
    }

    /// Sends END_STREAM, and waits until it has been flushed, at most [`LINGER`]. The client need not finish: the drop
    /// resets the stream.
    async fn shutdown_gracefully(&mut self) {
        let send = self.send.get_mut();
        send.finish(Vec::new());
        send.flushed(LINGER).await;
    }
}

/// Reads as the attachment of a session.
impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.split().0.poll_readable(context))?;
        let read = self.receive.read(buffer.initialize_unfilled());
        buffer.advance(read);
        Poll::Ready(Ok(()))
    }
}

/// Writes as the attachment of a session.
impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.split().1.poll_write(context, bytes)
    }

    /// The driver of the connection flushes.
    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.split().1.poll_shutdown(context)
    }
}

impl Drop for Stream {
    /// Resets the stream after [`reset_on_drop`](Transport::reset_on_drop), or if its client has not finished: h2 would
    /// count it as concurrent for as long as the client takes nothing. A finished stream still sends the queued bytes.
    fn drop(&mut self) {
        let (reset, has_finished) = (self.reset, self.receive.has_finished());
        let send = self.send.get_mut();
        if reset {
            // "A proxy treats any error in the TCP connection [...] as a stream error of type CONNECT_ERROR."
            send.reset(Reason::CONNECT_ERROR);
        } else if !has_finished {
            send.reset(Reason::NO_ERROR);
        }
    }
}

/// The time for the end of a download to be flushed: as long as the kernel would try for a socket (TCP_USER_TIMEOUT).
const FLUSH_TIMEOUT: Duration = Duration::from_secs(120);
/// The time for a refusal, and for the last bytes of a tunnel that the proxy ends, to be flushed.
const LINGER: Duration = Duration::from_secs(1);
