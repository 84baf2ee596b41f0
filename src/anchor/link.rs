//! The transport of a client at the anchor: a socket that was accepted, or a stream on a connection to the proxy.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::net::socket;
use crate::net::transport::Transport;
use crate::tunnel::http2::Stream;

/// The connection of a client.
#[derive(Debug)]
pub(super) enum Link {
    /// A socket.
    Socket(TcpStream),
    /// A stream.
    Stream(Box<Stream>),
}

impl Link {
    /// Makes the drop send a reset.
    pub(super) fn reset_on_drop(&mut self) {
        match self {
            Self::Socket(socket) => socket::reset_on_drop(socket),
            Self::Stream(stream) => stream.reset_on_drop(),
        }
    }

    /// Sends the end of stream, then waits up to 1 s: on a socket for the client's end of stream, on a stream for the
    /// flush. The caller drops the link next.
    pub(super) async fn shutdown_gracefully(&mut self) {
        match self {
            Self::Socket(socket) => socket::close_gently(socket).await,
            Self::Stream(stream) => stream.shutdown_gracefully().await,
        }
    }

    /// Writes the last bytes within `max`, then closes gracefully, so that the bytes arrive. Only drops the link if the
    /// write fails.
    pub(super) async fn send_and_close(mut self, bytes: &[u8], max: Duration) {
        let written = timeout(max, self.write_all(bytes)).await;
        if matches!(written, Ok(Ok(()))) {
            self.shutdown_gracefully().await;
        }
    }

    /// Returns the socket or the stream.
    fn io(self: Pin<&mut Self>) -> Pin<&mut (dyn Io + Unpin)> {
        match self.get_mut() {
            Self::Socket(socket) => Pin::new(socket),
            Self::Stream(stream) => Pin::new(&mut **stream),
        }
    }
}

trait Io: AsyncRead + AsyncWrite {}
impl<S: AsyncRead + AsyncWrite> Io for S {}

impl AsyncRead for Link {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.io().poll_read(context, buffer)
    }
}

impl AsyncWrite for Link {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.io().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.io().poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        matches!(self, Self::Socket(_))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io().poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io().poll_shutdown(context)
    }
}
