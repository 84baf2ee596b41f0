//! One channel of an SSH connection as the transport of a tunnel (RFC 4254 section 5).

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::gate::Inbox;
use crate::net::transport::{self, BulkMode, Transport};

/// A channel. The connection's task closes it after the tunnel: without an end of stream before, that is an abort.
#[derive(Debug)]
pub struct Channel {
    inbox: Arc<Inbox>,
    /// The payload that the last read returned.
    current: Bytes,
    download: Download,
}

/// The download, to the SSH session.
struct Download {
    outlet: Outlet,
    /// The bytes that wait for the client's window, then for the session.
    sending: Option<Sending>,
    has_finished: bool,
}

/// Hands bytes, or with `None` the end of stream, to the SSH session.
pub(super) type Outlet = Box<dyn Fn(Option<Bytes>) -> Sending + Send + Sync>;

/// Completes when the session has taken them; false if it is over.
pub(super) type Sending = Pin<Box<dyn Future<Output = bool> + Send + Sync>>;

impl fmt::Debug for Download {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Download")
            .field("has_finished", &self.has_finished)
            .finish_non_exhaustive()
    }
}

impl Channel {
    /// The upload in `inbox`, and the download to `outlet`.
    pub(super) fn new(inbox: Arc<Inbox>, outlet: Outlet) -> Self {
        Self {
            inbox,
            current: Bytes::new(),
            download: Download {
                outlet,
                sending: None,
                has_finished: false,
            },
        }
    }

    /// Completes when the client has closed the channel or the connection.
    pub(super) async fn ended(&self) {
        poll_fn(|context| self.inbox.poll_end(context)).await;
    }

    /// Returns whether the client has closed the channel or the connection.
    pub(super) fn has_ended(&self) -> bool {
        self.inbox.is_over()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.inbox.abandon();
    }
}

impl Transport for Channel {
    type Reader<'a> = Reader<'a>;
    type Writer<'a> = Writer<'a>;

    fn bulk_mode(&self) -> BulkMode {
        BulkMode::Chunks
    }

    fn split(&mut self) -> (Reader<'_>, Writer<'_>) {
        let (inbox, current) = (&*self.inbox, &mut self.current);
        let download = &mut self.download;
        (Reader { inbox, current }, Writer { inbox, download })
    }

    /// Nothing is sent: the close of the channel without an end of stream is the reset.
    fn reset_on_drop(&mut self) {}

    /// The session has all that was written, and sends it before the close.
    async fn abort(&mut self) {}

    /// Waits at most [`FLUSH_TIMEOUT`]: the close would overtake bytes that wait for the client's window.
    async fn sent(&mut self) {
        let (_, mut writer) = self.split();
        let sent = poll_fn(|context| transport::Writer::poll_end_sent(&mut writer, context));
        timeout(FLUSH_TIMEOUT, sent).await.ok();
    }

    /// As [`abort`](Self::abort): a client that gets an end of stream first leaves before it reads why the tunnel ends.
    async fn shutdown_gracefully(&mut self) {}
}

/// The reader of the upload.
#[derive(Debug)]
pub struct Reader<'a> {
    inbox: &'a Inbox,
    current: &'a mut Bytes,
}

impl transport::Reader for Reader<'_> {
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inbox.poll_readable(context)
    }

    fn poll_read<'a>(&'a mut self, context: &mut Context<'_>, buffer: &'a mut [u8]) -> Poll<io::Result<&'a [u8]>> {
        ready!(self.inbox.poll_readable(context))?;
        *self.current = self.inbox.take(buffer.len()).unwrap_or_default();
        Poll::Ready(Ok(self.current))
    }

    async fn failed(&mut self) -> io::Error {
        poll_fn(|context| self.inbox.poll_failed(context)).await.into()
    }

    async fn ended(&mut self) -> io::Result<()> {
        poll_fn(|context| match self.inbox.poll_end(context) {
            Poll::Ready(end) => Poll::Ready(Err(end.into())),
            Poll::Pending if self.inbox.has_finished() => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        })
        .await
    }
}

/// The writer of the download.
#[derive(Debug)]
pub struct Writer<'a> {
    inbox: &'a Inbox,
    download: &'a mut Download,
}

impl transport::Writer for Writer<'_> {
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        ready!(self.poll_flush(context))?;
        ready!(self.inbox.gate().poll_room(context));
        let piece = self.inbox.gate().piece(bytes);
        let length = piece.len();
        self.download.sending = Some((self.download.outlet)(Some(piece)));
        // As far as it goes: the flush that follows reports a failure.
        let _is_sent = self.poll_flush(context);
        Poll::Ready(Ok(length))
    }

    /// Fails at once in a channel that has ended: its window never opens again.
    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Poll::Ready(end) = self.inbox.poll_end(context) {
            return Poll::Ready(Err(end.into()));
        }
        let Some(sending) = &mut self.download.sending else {
            return Poll::Ready(Ok(()));
        };
        let is_sent = ready!(sending.as_mut().poll(context));
        self.download.sending = None;
        Poll::Ready(is_sent.then_some(()).ok_or(io::ErrorKind::BrokenPipe.into()))
    }

    fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.download.has_finished {
            ready!(self.poll_flush(context))?;
            self.download.has_finished = true;
            self.download.sending = Some((self.download.outlet)(None));
        }
        self.poll_flush(context)
    }

    fn poll_end_sent(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if ready!(self.poll_flush(context)).is_err() {
            return Poll::Ready(());
        }
        self.inbox.gate().poll_sent(context)
    }
}

/// The time that a client has to take the end of its download, as over HTTP/2.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::task::Waker;

    use parking_lot::Mutex;

    use super::*;
    use crate::net::transport::Writer as _;
    use crate::tunnel::ssh::jump::gate::{ChannelEnd, Gate};

    type Session = Arc<Mutex<Vec<Option<Bytes>>>>;

    /// A channel to a session that keeps what it gets.
    fn channel() -> (Channel, Session, Arc<Gate>) {
        let (session, gate) = (Session::default(), Arc::default());
        let kept = Arc::clone(&session);
        let outlet: Outlet = Box::new(move |bytes| {
            kept.lock().push(bytes);
            Box::pin(ready(true))
        });
        (Channel::new(Inbox::new(Arc::clone(&gate)), outlet), session, gate)
    }

    async fn write(channel: &mut Channel, bytes: &[u8]) -> io::Result<usize> {
        let (_, mut writer) = channel.split();
        poll_fn(|context| writer.poll_write(context, bytes)).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_ends_once_its_client_has_taken_the_download() {
        let (mut channel, session, gate) = channel();
        assert_eq!(write(&mut channel, b"last").await.unwrap(), 4);
        let (_, mut writer) = channel.split();
        poll_fn(|context| writer.poll_shutdown(context)).await.unwrap();
        assert!(
            writer
                .poll_end_sent(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        assert_eq!(*session.lock(), [Some(Bytes::from_static(b"last")), None]);
        timeout(Duration::from_secs(60), channel.sent()).await.unwrap_err();
        session.lock().clear();
        gate.flushed();
        timeout(Duration::from_secs(1), channel.sent()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_session_gets_a_bounded_part_of_a_large_read() {
        let (mut channel, session, _) = channel();
        let large = vec![7; 512 * 1024];
        let mut taken = 0;
        while let Ok(written) = timeout(Duration::from_secs(1), write(&mut channel, &large)).await {
            taken += written.unwrap();
        }
        assert_eq!(taken, 256 * 1024);
        assert!(session.lock().iter().flatten().all(|piece| piece.len() == 32 * 1024));
    }

    #[tokio::test]
    async fn a_closed_window_holds_up_nothing_once_the_channel_has_ended() {
        let inbox = Inbox::new(Arc::default());
        let mut channel = Channel::new(Arc::clone(&inbox), Box::new(|_| Box::pin(pending())));
        assert_eq!(write(&mut channel, b"kept").await.unwrap(), 4);
        let (_, mut writer) = channel.split();
        assert!(writer.poll_flush(&mut Context::from_waker(Waker::noop())).is_pending());
        inbox.fail(ChannelEnd::Lost);
        poll_fn(|context| writer.poll_flush(context)).await.unwrap_err();
        channel.sent().await;
    }
}
