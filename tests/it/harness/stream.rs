//! The tunnel of a client that speaks HTTP/2 by the h2 crate: a stream that reads, writes and ends as a socket does.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that was asked for. Its connection has to be driven by the caller.
#[derive(Debug)]
pub(crate) struct Stream {
    send: SendStream<Bytes>,
    receive: Receive,
    /// Received bytes that were not read yet, for which the window stays closed.
    unread: Bytes,
}

#[derive(Debug)]
enum Receive {
    NotAnswered(ResponseFuture),
    Answered(u16, RecvStream),
}

impl Stream {
    /// Both halves, as the request has given them.
    pub(crate) fn new((response, send): (ResponseFuture, SendStream<Bytes>)) -> Self {
        Self {
            send,
            receive: Receive::NotAnswered(response),
            unread: Bytes::new(),
        }
    }

    /// Waits for the answer. What is read next comes behind it.
    pub(crate) async fn status(&mut self) -> io::Result<u16> {
        poll_fn(|context| Poll::Ready(Ok(ready!(self.receive.poll_body(context))?.0))).await
    }

    /// Resets it, as a client does that has failed.
    pub(crate) fn reset(&mut self) {
        self.send.send_reset(Reason::INTERNAL_ERROR);
    }
}

impl Receive {
    fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<io::Result<(u16, &mut RecvStream)>> {
        if let Self::NotAnswered(response) = self {
            let response = ready!(Pin::new(response).poll(context)).map_err(as_a_socket_says)?;
            *self = Self::Answered(response.status().as_u16(), response.into_body());
        }
        match self {
            Self::Answered(status, body) => Poll::Ready(Ok((*status, body))),
            Self::NotAnswered(_) => unreachable!("it was answered"),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { receive, unread, .. } = &mut *self;
        let (_, body) = ready!(receive.poll_body(context))?;
        while unread.is_empty() {
            match ready!(body.poll_data(context)) {
                None => return Poll::Ready(Ok(())),
                Some(Ok(bytes)) => *unread = bytes,
                // Behind an END_STREAM it would be no error: what came is not all.
                Some(Err(error)) if error.reason() == Some(Reason::NO_ERROR) => {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                }
                Some(Err(error)) => return Poll::Ready(Err(as_a_socket_says(error))),
            }
        }
        let now = unread.split_to(unread.len().min(room.remaining()));
        room.put_slice(&now);
        // It fails for a stream that is over, whose window does not matter any more.
        body.flow_control().release_capacity(now.len()).ok();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let send = &mut self.send;
        send.reserve_capacity(bytes.len());
        while send.capacity() == 0 {
            match ready!(send.poll_capacity(context)) {
                Some(capacity) => _ = capacity.map_err(as_a_socket_says)?,
                // It has been reset, which the reader gets as an error.
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
        let now = Bytes::copy_from_slice(&bytes[..send.capacity().min(bytes.len())]);
        let written = now.len();
        send.send_data(now, false).map_err(as_a_socket_says)?;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.send.send_data(Bytes::new(), true).map_err(as_a_socket_says))
    }
}

/// A target's reset has to arrive as CONNECT_ERROR (RFC 9113 section 8.5), and nothing else looks like one.
fn as_a_socket_says(error: h2::Error) -> io::Error {
    match error.reason() {
        Some(Reason::CONNECT_ERROR) if error.is_remote() => io::ErrorKind::ConnectionReset.into(),
        // The other side takes no more.
        Some(Reason::NO_ERROR) => io::ErrorKind::BrokenPipe.into(),
        _ => io::Error::other(error),
    }
}
