//! The socket under TLS. An end in the middle of a record is an error: rustls does not tell it from one between two.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::tls::Records;

/// Bytes in both directions, as they are.
#[derive(Debug)]
pub(in crate::client) struct Uncut {
    stream: TcpStream,
    /// How far what was read goes.
    records: Records,
}

impl From<TcpStream> for Uncut {
    fn from(stream: TcpStream) -> Self {
        Self {
            stream,
            records: Records::default(),
        }
    }
}

impl AsyncRead for Uncut {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = room.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, room))?;
        let came = room.filled().get(before..).unwrap_or_default();
        if came.is_empty() && room.remaining() > 0 && self.records.is_inside() {
            // Nobody ends so: it was cut, by whoever.
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "it ended in the middle of a TLS record",
            )));
        }
        self.records.came(came);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Uncut {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
