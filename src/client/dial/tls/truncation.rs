//! Detects truncation under TLS: rustls reports an end of stream within a record as one between two records.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::client::dial::transport::Stream;
use crate::net::tls_records::Records;

/// The socket under a TLS session. Its end within a record is an error; bytes pass unchanged.
pub(in crate::client) struct TruncationDetector {
    stream: Stream,
    /// The position in the records that were read.
    records: Records,
    /// The first bytes that were read.
    first: Vec<u8>,
}

impl From<Stream> for TruncationDetector {
    fn from(stream: Stream) -> Self {
        Self {
            stream,
            records: Records::default(),
            first: Vec::new(),
        }
    }
}

impl TruncationDetector {
    /// What the peer speaks if it is not TLS, by its first bytes.
    pub(in crate::client) fn first(&self) -> &[u8] {
        &self.first
    }
}

impl AsyncRead for TruncationDetector {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let received = buffer.filled().get(before..).unwrap_or_default();
        if received.is_empty() && buffer.remaining() > 0 && self.records.is_inside() {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "it ended in the middle of a TLS record",
            )));
        }
        self.records.advance(received);
        let wanted = MOST_FIRST.saturating_sub(self.first.len()).min(received.len());
        self.first.extend_from_slice(received.get(..wanted).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TruncationDetector {
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

/// The longest first bytes that are kept.
const MOST_FIRST: usize = 8;
