//! The connection to a proxy that was dialled, as the transport of HTTP/2.

use std::future::{Future, pending};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, sleep_until, timeout};

use crate::net::socket;
use crate::net::transport::{BulkMode, Reader, Transport, Writer};
use crate::uplink::dial::io::{BoxedIo, socket as socket_of};

/// The connection. It carries frames, never a tunnel's bytes as they are, so nothing waits for its readiness.
pub(super) struct ProxyTransport {
    /// Both halves run in one task, so the lock is never contended.
    stream: Mutex<BoxedIo>,
    heard: LastHeard,
}

/// When bytes of the proxy last arrived.
#[derive(Clone, Debug)]
pub(super) struct LastHeard(Arc<Mutex<Instant>>);

impl ProxyTransport {
    pub(super) fn new(stream: BoxedIo) -> (Self, LastHeard) {
        let heard = LastHeard(Arc::new(Mutex::new(Instant::now())));
        let transport = Self {
            stream: Mutex::new(stream),
            heard: heard.clone(),
        };
        (transport, heard)
    }
}

impl LastHeard {
    /// Completes when the proxy, which sends a PING every 5 s, has sent nothing for [`MAX_SILENCE`].
    pub(super) async fn silence(&self) {
        loop {
            let until = *self.0.lock() + MAX_SILENCE;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }
}

impl Transport for ProxyTransport {
    type Reader<'a> = &'a Self;
    type Writer<'a> = &'a Self;

    fn bulk_mode(&self) -> BulkMode {
        BulkMode::Chunks
    }

    fn split(&mut self) -> (&Self, &Self) {
        (self, self)
    }

    fn keep_unsent_below(&mut self, unsent: usize) {
        if let Some(socket) = socket_of(&**self.stream.get_mut()) {
            socket::keep_unsent_below(socket, unsent);
        }
    }

    /// Does nothing: an HTTP/2 connection ends with its GOAWAY.
    fn reset_on_drop(&mut self) {}

    async fn abort(&mut self) {}

    async fn shutdown_gracefully(&mut self) {
        timeout(CLOSE_TIMEOUT, self.stream.get_mut().shutdown()).await.ok();
    }
}

impl Reader for &ProxyTransport {
    fn poll_readable(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_read<'a>(&'a mut self, context: &mut Context<'_>, buffer: &'a mut [u8]) -> Poll<io::Result<&'a [u8]>> {
        let mut into = ReadBuf::new(buffer);
        ready!(Pin::new(&mut *self.stream.lock()).poll_read(context, &mut into))?;
        let read = into.filled().len();
        *self.heard.0.lock() = Instant::now();
        Poll::Ready(Ok(buffer.get(..read).unwrap_or_default()))
    }

    fn failed(&mut self) -> impl Future<Output = io::Error> + Send {
        pending()
    }

    fn ended(&mut self) -> impl Future<Output = io::Result<()>> + Send {
        pending()
    }
}

impl Writer for &ProxyTransport {
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream.lock()).poll_write(context, bytes)
    }

    fn poll_write_vectored(&mut self, context: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream.lock()).poll_write_vectored(context, pieces)
    }

    fn poll_sendable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.stream.lock();
        socket_of(&**stream).map_or(Poll::Ready(Ok(())), |socket| socket::poll_sendable(socket, context))
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.lock()).poll_flush(context)
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.lock()).poll_shutdown(context)
    }
}

/// The silence after which the path counts as dead.
const MAX_SILENCE: Duration = Duration::from_secs(15);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
