//! The connection of a session to the SSH server: counts the bytes of both streams, and closes it.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use self::key_exchange::KeyExchange;
use super::metrics::SessionBytes;
use crate::net::socket;
use crate::tunnel::direction::Both;

mod key_exchange;

/// The connection to the target that the handshake has opened.
#[derive(Debug)]
pub(super) struct TargetConnection {
    /// The address of the target.
    pub(super) address: SocketAddr,
    pub(super) stream: TcpStream,
    /// Bytes that were read from it.
    pub(super) early: Vec<u8>,
    /// True if the stream has ended after `early`.
    pub(super) has_ended: bool,
    /// True if a read after `early` has failed.
    pub(super) has_reset: bool,
}

/// The target as the local I/O of a session. A read error means a reset. Writes never fail, even if the target is gone:
/// only a read reports that.
#[derive(Debug)]
pub(super) struct Target {
    /// `None` once it is closed.
    stream: Option<TcpStream>,
    /// Bytes that it sent before the session began.
    early: Vec<u8>,
    key_exchange: KeyExchange,
    bytes: SessionBytes,
    /// The bytes passed on so far.
    pub(super) passed: Both<u64>,
    has_reset: bool,
    /// True if the client's end of stream was passed on, or the connection is lost.
    has_finished: bool,
    /// True if the target's end of stream has been read, until the session's task clears it.
    pub(super) has_just_ended: bool,
    /// True if SSH's key exchange has ended, until the session's task clears it.
    pub(super) has_just_exchanged_keys: bool,
}

impl Target {
    /// Takes over the connection. From now on its drop sends a reset: after a panic here the stream must not look
    /// complete to the target.
    pub(super) fn new(target: TargetConnection, bytes: SessionBytes) -> Self {
        socket::reset_on_drop(&target.stream);
        Self {
            stream: Some(target.stream),
            early: target.early,
            key_exchange: KeyExchange::default(),
            bytes,
            passed: Both::default(),
            has_reset: target.has_reset,
            has_finished: false,
            has_just_ended: false,
            has_just_exchanged_keys: false,
        }
    }

    /// Returns a future that closes the connection within a timeout; `None` if one was returned before. A reset shows
    /// that the client's stream may be truncated, unless `is_orderly`: both streams have ended.
    pub(super) fn close(&mut self, is_orderly: bool) -> Option<impl Future<Output = ()> + Send + use<>> {
        let stream = self.stream.take()?;
        self.early = Vec::new();
        // Once its end was passed on, the client's stream is complete.
        let is_gentle = is_orderly || self.has_finished;
        Some(async move {
            if is_gentle {
                socket::finish_on_drop(&stream);
                socket::close_gently(&stream).await;
            } else {
                socket::cut_off(&stream).await;
            }
        })
    }

    fn note_sent(&mut self, bytes: &[u8]) {
        self.passed.download += bytes.len() as u64;
        self.bytes.download.inc_by(bytes.len() as u64);
        self.has_just_exchanged_keys |= self.key_exchange.completes_with(bytes);
    }

    /// Counts the bytes written. Returns how many of `all` are done with: all after an error.
    fn wrote(&mut self, written: io::Result<usize>, all: usize) -> usize {
        match written {
            Ok(count) => {
                self.passed.upload += count as u64;
                self.bytes.upload.inc_by(count as u64);
                count
            }
            // EPIPE does not mean a reset: the target had ended its stream gracefully before. It needs no more bytes,
            // and the client learns of the end by that stream.
            Err(error) => {
                self.has_reset |= error.kind() != io::ErrorKind::BrokenPipe;
                all
            }
        }
    }
}

impl AsyncRead for Target {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.early.is_empty() {
            let count = this.early.len().min(buffer.remaining());
            let rest = this.early.split_off(count);
            let early = std::mem::replace(&mut this.early, rest);
            buffer.put_slice(&early);
            this.note_sent(&early);
            return Poll::Ready(Ok(()));
        }
        let Some(stream) = &mut this.stream else {
            return Poll::Pending;
        };
        let before = buffer.filled().len();
        ready!(Pin::new(stream).poll_read(context, buffer))?;
        match buffer.filled().get(before..).unwrap_or_default() {
            // A write has consumed the socket's error, so that this read looks like the end of stream.
            [] if this.has_reset => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            [] => this.has_just_ended = true,
            sent => this.note_sent(sent),
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Target {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(Ok(bytes.len()));
        };
        let written = ready!(Pin::new(stream).poll_write(context, bytes));
        Poll::Ready(Ok(self.wrote(written, bytes.len())))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all = pieces.iter().map(|piece| piece.len()).sum();
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(Ok(all));
        };
        let written = ready!(Pin::new(stream).poll_write_vectored(context, pieces));
        Poll::Ready(Ok(self.wrote(written, all)))
    }

    /// A socket writes all pieces in one system call, without a copy.
    fn is_write_vectored(&self) -> bool {
        true
    }

    /// There is nothing to flush in a socket.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(stream) = &mut self.stream {
            match ready!(Pin::new(stream).poll_shutdown(context)) {
                // Without an end of stream the target may wait forever. The error ends the session.
                Err(error) if socket::is_refusal_of_an_end(&error) => return Poll::Ready(Err(error)),
                Ok(()) | Err(_) => self.has_finished = true,
            }
        }
        Poll::Ready(Ok(()))
    }
}
