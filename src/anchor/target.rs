//! The connection of a session to the SSH server: its two streams, counted, and the ways to end it.

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

/// The connection to the target, as the handshake has made it.
#[derive(Debug)]
pub(super) struct TargetConnection {
    /// Where it leads.
    pub(super) address: SocketAddr,
    pub(super) stream: TcpStream,
    /// Bytes that were read from it.
    pub(super) early: Vec<u8>,
    /// The stream has ended after that.
    pub(super) has_ended: bool,
    /// The read that came after that has failed.
    pub(super) has_reset: bool,
}

/// The target as the program of a session. An error of a read is a reset. It takes all bytes, also when it is gone: the reads
/// say that it is.
#[derive(Debug)]
pub(super) struct Target {
    /// `None` once it is closed.
    stream: Option<TcpStream>,
    /// Bytes that it sent before the session began.
    early: Vec<u8>,
    key_exchange: KeyExchange,
    bytes: SessionBytes,
    /// The bytes that were passed on.
    pub(super) passed: Both<u64>,
    has_reset: bool,
    /// The client's end of stream has been passed on.
    has_finished: bool,
    /// The target's end of stream has been read, and was not noted yet.
    pub(super) has_just_ended: bool,
    /// SSH's key exchange has ended, and that was not noted yet.
    pub(super) has_just_exchanged_keys: bool,
}

impl Target {
    /// From now on a drop resets the connection, unless its end is orderly: it must not look complete to the target when
    /// this process panics.
    pub(super) fn new(dialled: TargetConnection, bytes: SessionBytes) -> Self {
        socket::reset_on_drop(&dialled.stream);
        Self {
            stream: Some(dialled.stream),
            early: dialled.early,
            key_exchange: KeyExchange::default(),
            bytes,
            passed: Both::default(),
            has_reset: dialled.has_reset,
            has_finished: false,
            has_just_ended: false,
            has_just_exchanged_keys: false,
        }
    }

    /// Returns the close of the connection, within bounds of time; `None` if it was returned before. `is_orderly`: both
    /// streams have ended. Otherwise the client's may not be complete, and must not look like it.
    pub(super) fn close(&mut self, is_orderly: bool) -> Option<impl Future<Output = ()> + Send + use<>> {
        let stream = self.stream.take()?;
        self.early = Vec::new();
        // Where all that the client has sent was passed on, there is nothing to hide.
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

    /// Counts what was written. Returns how much of `all` is done with.
    fn wrote(&mut self, written: io::Result<usize>, all: usize) -> usize {
        match written {
            Ok(count) => {
                self.passed.upload += count as u64;
                self.bytes.upload.inc_by(count as u64);
                count
            }
            // EPIPE is not the error of a reset, but of a target that had ended its stream before, in order: what comes then
            // is of no use to it, and the client learns of the end by that of the other stream.
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
            // A write has taken the error of the socket, and the read says that this was the end.
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

    /// A socket takes what it is given at once, from where it is.
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
                // Without an end of stream a target may wait for ever: its session must not.
                Err(error) if socket::is_refusal_of_an_end(&error) => return Poll::Ready(Err(error)),
                Ok(()) | Err(_) => self.has_finished = true,
            }
        }
        Poll::Ready(Ok(()))
    }
}
