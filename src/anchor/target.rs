//! The connection of a session to the SSH server: its two streams, counted, and the ways to end it.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;

use super::key_exchange::KeyExchange;
use super::metrics::SessionBytes;
use crate::net::socket;
use crate::protocol::resume::driver::Program;

/// The target as the program of a session.
pub(super) type Target = Program<Source, Sink>;

/// What the target sends. An error is a reset.
#[derive(Debug)]
pub(super) struct Source {
    half: Option<ReadHalf<TcpStream>>,
    /// What it has sent before the session began.
    early: Vec<u8>,
    key_exchange: KeyExchange,
    shared: Arc<Streams>,
}

/// What is sent to the target. It takes all bytes, also those of a target that is gone: [`Source`] says that it is.
#[derive(Debug)]
pub(super) struct Sink {
    half: Option<WriteHalf<TcpStream>>,
    shared: Arc<Streams>,
}

/// What both streams of a target have in common.
#[derive(Debug)]
pub(super) struct Streams {
    bytes: SessionBytes,
    /// From the target.
    pub(super) sent: AtomicU64,
    /// To the target.
    pub(super) received: AtomicU64,
    has_reset: AtomicBool,
    /// The client's end of stream has been passed on.
    has_finished: AtomicBool,
    /// The target's end of stream has been read, and was not noted yet.
    pub(super) has_just_ended: AtomicBool,
    /// SSH's key exchange has ended, and that was not noted yet.
    pub(super) has_just_exchanged_keys: AtomicBool,
}

/// The connection to the target, as the exchange has made it.
#[derive(Debug)]
pub(super) struct Dialled {
    /// Where it leads.
    pub(super) address: SocketAddr,
    pub(super) stream: TcpStream,
    /// What was read from it.
    pub(super) early: Vec<u8>,
    /// The read that came behind that has failed.
    pub(super) has_reset: bool,
}

/// The target as the program of a session. From now on a drop resets it, unless its end is orderly: it must not look
/// complete to the target when this process panics.
pub(super) fn open(dialled: Dialled, bytes: SessionBytes) -> Target {
    let Dialled {
        stream,
        early,
        has_reset,
        address: _,
    } = dialled;
    socket::reset_on_drop(&stream);
    let shared = Arc::new(Streams {
        bytes,
        sent: AtomicU64::new(0),
        received: AtomicU64::new(0),
        has_reset: AtomicBool::new(has_reset),
        has_finished: AtomicBool::new(false),
        has_just_ended: AtomicBool::new(false),
        has_just_exchanged_keys: AtomicBool::new(false),
    });
    let (read, write) = split(stream);
    Program {
        source: Source {
            half: Some(read),
            early,
            key_exchange: KeyExchange::default(),
            shared: Arc::clone(&shared),
        },
        sink: Sink {
            half: Some(write),
            shared,
        },
    }
}

/// The way to end the connection to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseMode {
    /// Both streams have ended.
    Orderly,
    /// The client's stream may not be complete, and must not look like it.
    CutOff,
}

/// Takes the connection out of its streams, if it is still there. They are empty from now on.
pub(super) fn take(target: &mut Target) -> Option<Leaving> {
    let (read, write) = target.source.half.take().zip(target.sink.half.take())?;
    target.source.early = Vec::new();
    Some(Leaving {
        stream: read.unsplit(write),
        has_finished: target.sink.shared.has_finished.load(Ordering::Relaxed),
    })
}

/// The connection to a target that is to be closed.
#[derive(Debug)]
pub(super) struct Leaving {
    stream: TcpStream,
    has_finished: bool,
}

impl Leaving {
    /// Closes it, within bounds of time.
    pub(super) async fn close(self, mode: CloseMode) {
        match mode {
            CloseMode::Orderly => {
                socket::finish_on_drop(&self.stream);
                socket::close_gently(&self.stream).await;
            }
            // All that the client has sent was passed on: there is nothing to hide.
            CloseMode::CutOff if self.has_finished => {
                socket::finish_on_drop(&self.stream);
                socket::close_gently(&self.stream).await;
            }
            CloseMode::CutOff => socket::cut_off(&self.stream).await,
        }
    }
}

impl Source {
    /// What is known of both streams.
    pub(super) fn streams(&self) -> &Arc<Streams> {
        &self.shared
    }

    fn note_sent(&mut self, bytes: &[u8]) {
        self.shared.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.shared.bytes.download.inc_by(bytes.len() as u64);
        if self.key_exchange.completes_with(bytes) {
            self.shared.has_just_exchanged_keys.store(true, Ordering::Relaxed);
        }
    }
}

impl AsyncRead for Source {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.early.is_empty() {
            let count = this.early.len().min(buffer.remaining());
            let early: Vec<u8> = this.early.drain(..count).collect();
            buffer.put_slice(&early);
            if this.early.is_empty() {
                this.early = Vec::new();
            }
            this.note_sent(&early);
            return Poll::Ready(Ok(()));
        }
        let Some(half) = &mut this.half else {
            return Poll::Pending;
        };
        let before = buffer.filled().len();
        let result = ready!(Pin::new(half).poll_read(context, buffer));
        match result {
            Ok(()) if buffer.filled().len() > before => {
                this.note_sent(buffer.filled().get(before..).unwrap_or_default())
            }
            // A write has taken the error of the socket, and the read says that this was the end.
            Ok(()) if this.shared.has_reset.load(Ordering::Relaxed) => {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            Ok(()) => this.shared.has_just_ended.store(true, Ordering::Relaxed),
            Err(error) => return Poll::Ready(Err(error)),
        }
        Poll::Ready(Ok(()))
    }
}

impl Sink {
    /// Counts what was written. Returns how much of `all` is done with.
    fn wrote(&mut self, written: io::Result<usize>, all: usize) -> usize {
        match written {
            Ok(count) => {
                self.shared.received.fetch_add(count as u64, Ordering::Relaxed);
                self.shared.bytes.upload.inc_by(count as u64);
                count
            }
            Err(error) => {
                self.failed(&error);
                all
            }
        }
    }

    /// Notes the error of a write. EPIPE is not that of a reset, but of a target that had ended its stream before, in order:
    /// what comes then is of no use to it, and the client learns of the end by that of the other stream.
    fn failed(&mut self, error: &io::Error) {
        if error.kind() != io::ErrorKind::BrokenPipe {
            self.shared.has_reset.store(true, Ordering::Relaxed);
        }
    }
}

impl AsyncWrite for Sink {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Some(half) = &mut self.half else {
            return Poll::Ready(Ok(bytes.len()));
        };
        let written = ready!(Pin::new(half).poll_write(context, bytes));
        Poll::Ready(Ok(self.wrote(written, bytes.len())))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all = pieces.iter().map(|piece| piece.len()).sum();
        let Some(half) = &mut self.half else {
            return Poll::Ready(Ok(all));
        };
        let written = ready!(Pin::new(half).poll_write_vectored(context, pieces));
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
        if let Some(half) = &mut self.half {
            match ready!(Pin::new(half).poll_shutdown(context)) {
                // Without an end of stream a target may wait for ever: its session must not.
                Err(error) if socket::is_refusal_of_an_end(&error) => return Poll::Ready(Err(error)),
                Ok(()) | Err(_) => self.shared.has_finished.store(true, Ordering::Relaxed),
            }
        }
        Poll::Ready(Ok(()))
    }
}
