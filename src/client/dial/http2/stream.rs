//! The client's stream of an HTTP/2 connection as something to read and to write.

use std::io;
use std::mem::take;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::protocol::http2::frames::Credit;
use crate::protocol::http2::inbox::{Inbox, StreamFailure};

/// A stream whose response head has been received. Its connection has to be driven beside it.
pub(in crate::client) struct Stream {
    inbox: SharedInbox,
    /// The bytes of the last read, which the window does not allow the proxy to replace yet.
    unreleased: usize,
    send: SendStream<Bytes>,
    /// The credit of the proxy for frames that answer what is sent.
    earned: Credit,
}

/// The inbox of a stream. The connection's driver fills it also while nothing is read: h2 ends a connection that lets
/// many small frames wait, and a suspended ssh does.
pub(super) type SharedInbox = Arc<Mutex<Inbox>>;

impl Stream {
    pub(super) fn new(receive: RecvStream, send: SendStream<Bytes>, earned: Credit) -> Self {
        Self {
            inbox: Arc::new(Mutex::new(Inbox::new(receive))),
            unreleased: 0,
            send,
            earned,
        }
    }

    pub(super) fn inbox(&self) -> SharedInbox {
        Arc::clone(&self.inbox)
    }
}

impl AsyncRead for Stream {
    /// Bytes come before a failure. A read releases what the read before it returned, which has been written to stdout
    /// since: so a stdout that is not read stops the proxy.
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut inbox = this.inbox.lock();
        inbox.release(take(&mut this.unreleased));
        inbox.receive_all(context);
        while buffer.remaining() > 0 {
            let next = inbox.next(buffer.remaining());
            if next.is_empty() {
                break;
            }
            buffer.put_slice(&next);
            this.unreleased += next.len();
        }
        if this.unreleased > 0 || inbox.has_finished() {
            return Poll::Ready(Ok(()));
        }
        match inbox.take_failure() {
            Some(StreamFailure::Broken(error)) => Poll::Ready(Err(stream_error(error))),
            Some(StreamFailure::Trailers) => Poll::Ready(Err(stream_error(Reason::PROTOCOL_ERROR.into()))),
            None => Poll::Pending,
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { send, earned, .. } = self.get_mut();
        send.reserve_capacity(bytes.len());
        while send.capacity() == 0 {
            match ready!(send.poll_capacity(context)) {
                Some(capacity) => _ = capacity.map_err(stream_error)?,
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
        let now = bytes.get(..send.capacity()).unwrap_or(bytes);
        send.send_data(Bytes::copy_from_slice(now), false)
            .map_err(stream_error)?;
        earned.data_sent(now.len());
        Poll::Ready(Ok(now.len()))
    }

    /// Does nothing: the connection sends what it has as soon as it can.
    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Sends END_STREAM, a stream's FIN.
    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.get_mut().send.send_data(Bytes::new(), true).map_err(stream_error))
    }
}

/// An error of the stream as a socket would report it, with h2's error inside.
///
/// It is never an `UnexpectedEof`, which under TLS passes for an end: only END_STREAM ends a stream of HTTP/2 in order.
pub(super) fn stream_error(error: h2::Error) -> io::Error {
    if error.is_io() {
        io::Error::new(
            io::ErrorKind::ConnectionAborted,
            "the proxy closed it before the tunnel's end",
        )
    } else {
        io::Error::new(io::ErrorKind::ConnectionReset, error)
    }
}
