//! The byte stream under an HTTP/2 connection: queues h2's writes to send them together, and charges received frames.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::frame_budget::{Credit, FrameBudget};
use super::outgoing::Outgoing;
use super::read_buffer::ReadBuffer;
use super::recv_queue::OpenStreams;
use super::write_queue::{FIRST_SHARE, Pace, WriteQueue};
use crate::net::transport::{Reader, Transport, Writer};
use crate::tunnel::outcome::RefusalReason;

/// A connection as h2 reads and writes it. The clones share it: h2 has one clone, the task that drives h2 another.
///
/// h2 writes and flushes each frame of 16 KiB separately. On a socket that is four system calls for a read of 64 KiB
/// from the target; over TLS two records per frame, as 16 KiB and nine bytes exceed one. So a flush by h2 does nothing,
/// and the driver [flushes](Self::poll_flush) when h2 and its streams have nothing more to write: a third less CPU time
/// per GiB.
#[derive(Debug)]
pub struct Connection<D>(Arc<Mutex<State<D>>>);

#[derive(Debug)]
struct State<D> {
    transport: D,
    received: ReadBuffer,
    budget: FrameBudget,
    outgoing: Outgoing,
    queue: WriteQueue,
    pace: Pace,
    /// The number of the peer's SETTINGS that h2 has acknowledged.
    acknowledged: u32,
    /// The number of streams that the peer may have open at once.
    streams: u32,
    offers_websockets: bool,
    /// The bytes that are still read, and dropped, after the end of stream has been sent.
    discards: usize,
    /// The end of the wait for the peer's end of stream; `None` before the close.
    close_deadline: Option<Pin<Box<Sleep>>>,
}

impl<D> Clone for Connection<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<D: Transport> Connection<D> {
    /// Creates the connection of a client, whose first bytes, `early`, were read already.
    pub fn new(transport: D, early: Vec<u8>) -> Self {
        Self::with_budget(transport, early, FrameBudget::of_client)
    }

    /// Allows the peer `streams` streams at once, and any number of frames, because many clients cause its frames.
    pub fn trusting(self, streams: u32) -> Self {
        let mut state = self.0.lock();
        state.streams = streams;
        state.budget.trust();
        drop(state);
        self
    }

    /// Returns the number of streams that the peer may have open at once.
    pub(super) fn streams(&self) -> u32 {
        self.0.lock().streams
    }

    /// Sets whether the peer is offered WebSockets (RFC 8441 section 3).
    pub fn offering_websockets(self, are_offered: bool) -> Self {
        self.0.lock().offers_websockets = are_offered;
        self
    }

    /// Returns whether the peer is offered WebSockets.
    pub(super) fn offers_websockets(&self) -> bool {
        self.0.lock().offers_websockets
    }

    /// Creates the connection to a server, whose first bytes, `early`, were read already.
    pub(super) fn to_server(transport: D, early: Vec<u8>) -> Self {
        Self::with_budget(transport, early, FrameBudget::of_server)
    }

    fn with_budget(mut transport: D, early: Vec<u8>, budget: fn(Credit) -> FrameBudget) -> Self {
        transport.keep_unsent_below(2 * FIRST_SHARE);
        let credit = Credit::default();
        Self(Arc::new(Mutex::new(State {
            transport,
            received: ReadBuffer::with(early),
            budget: budget(credit.clone()),
            outgoing: Outgoing::new(credit),
            queue: WriteQueue::default(),
            pace: Pace::new(),
            acknowledged: 0,
            streams: MAX_STREAMS,
            offers_websockets: false,
            discards: LINGER_BYTES,
            close_deadline: None,
        })))
    }

    /// Sends the write queue, and completes when the transport has taken all of it.
    pub(super) fn poll_flush(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().poll_flush(context)
    }

    /// Returns the send state that the connection and its streams share.
    pub(super) fn outgoing(&self) -> Outgoing {
        self.0.lock().outgoing.clone()
    }

    /// Returns whether the peer has exceeded its frame budget: the connection has to end.
    pub(super) fn is_flooded(&self) -> bool {
        self.0.lock().budget.exhausted
    }

    /// Returns the streams in use.
    pub(super) fn open_streams(&self) -> OpenStreams {
        self.0.lock().budget.streams.clone()
    }

    /// Returns the time at which the peer was last heard.
    pub(super) fn last_read(&self) -> Instant {
        self.0.lock().received.last_read
    }

    /// Lets the streams take over the small frames that wait in h2, once there are many.
    pub(super) fn hand_over_small_frames(&self) {
        self.0.lock().budget.hand_over_small_frames();
    }

    /// Returns whether the peer has sent SETTINGS.
    pub(super) fn has_settings(&self) -> bool {
        self.0.lock().budget.settings > 0
    }

    /// Ends a connection that h2 has abandoned. After an invalid TLS record, the transport's close sends the alert;
    /// [`poll_shutdown`](AsyncWrite::poll_shutdown) would read further records, which is no longer possible.
    pub(super) async fn end(self, refusal: RefusalReason) {
        if refusal == RefusalReason::TlsRecord
            && let Some(state) = Arc::into_inner(self.0)
        {
            state.into_inner().transport.shutdown_gracefully().await;
        }
    }
}

impl<D: Transport> State<D> {
    fn poll_read(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (mut reader, _) = self.transport.split();
        loop {
            if !self.budget.has_head {
                ready!(self.received.poll_fill(context, &mut reader))?;
            }
            let (next, room) = (self.received.peek(), buffer.remaining());
            // With a head to pass on, nothing was read: no bytes are not the end.
            let is_end = next.is_empty() && !self.budget.has_head;
            let taken = self.budget.pass(next, buffer);
            self.received.consume(taken);
            if is_end || buffer.remaining() < room {
                return Poll::Ready(Ok(()));
            }
            if self.budget.is_blocked() {
                // The driver relieves the budget next, or ends the connection.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    fn poll_queue(&mut self, context: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        // h2 must write although the transport takes nothing: it reads nothing before it has acknowledged a PING. The
        // permits bound the tunnels' bytes.
        if self.queue.len() >= MAX_QUEUED && self.poll_flush(context)?.is_pending() && self.queue.len() >= HARD_LIMIT {
            return Poll::Pending;
        }
        for piece in pieces {
            match self.outgoing.zero_copy().claim(piece) {
                Some(slice) => self.queue.push(slice),
                None => {
                    self.note_acknowledgements(piece);
                    self.queue.push_copy(piece);
                }
            }
        }
        self.outgoing.zero_copy().clear();
        Poll::Ready(Ok(pieces.iter().map(|piece| piece.len()).sum()))
    }

    /// Renews the permits once h2 has acknowledged SETTINGS, and so applied them. Before that, the new
    /// permits could go to streams whose windows the SETTINGS then shrink.
    fn note_acknowledgements(&mut self, piece: &[u8]) {
        if self.acknowledged >= self.budget.settings {
            return;
        }
        for _ in piece
            .windows(ACKNOWLEDGEMENT.len())
            .filter(|bytes| *bytes == ACKNOWLEDGEMENT)
        {
            self.acknowledged = self.acknowledged.saturating_add(1);
            // The first SETTINGS begin the connection.
            if self.acknowledged > 1 {
                self.outgoing.renew_permits();
            }
        }
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let before = self.queue.len();
        let is_slow = self.pace.share < FIRST_SHARE;
        let has_sent = {
            let (_, mut writer) = self.transport.split();
            self.queue.poll_write(context, &mut writer, is_slow)?.is_ready() && writer.poll_flush(context)?.is_ready()
        };
        if before > 0 && self.pace.note(before - self.queue.len(), has_sent) {
            self.outgoing.set_share(self.pace.share);
            self.transport.keep_unsent_below(MAX_UNSENT.min(2 * self.pace.share));
        }
        if !has_sent {
            return Poll::Pending;
        }
        self.outgoing.flushed();
        Poll::Ready(Ok(()))
    }

    /// Sends the queue and the end of stream, then waits for the peer's, at most [`CLOSE_TIMEOUT`]. A close with unread input
    /// makes the kernel send a reset, on which the peer's kernel drops a GOAWAY that the peer has not read (RFC 9112
    /// section 9.6).
    fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(context))?;
        let deadline = self
            .close_deadline
            .get_or_insert_with(|| Box::pin(sleep(CLOSE_TIMEOUT)));
        if deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        let (mut reader, mut writer) = self.transport.split();
        ready!(writer.poll_shutdown(context))?;
        while self.discards > 0 {
            let mut scratch = [0; 4096];
            match ready!(reader.poll_read(context, &mut scratch))?.len() {
                0 => break,
                read => self.discards = self.discards.saturating_sub(read),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<D: Transport> AsyncRead for Connection<D> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.lock().poll_read(context, buffer)
    }
}

impl<D: Transport> AsyncWrite for Connection<D> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.lock().poll_queue(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.lock().poll_queue(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing: the driver flushes.
    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().poll_close(context)
    }
}

/// The least that RFC 9113 section 6.5.2 recommends. The caps of a client count streams as tunnels.
const MAX_STREAMS: u32 = 100;
/// The bytes to queue before they are sent: enough for efficient system calls and TLS records.
const MAX_QUEUED: usize = 256 * 1024;
/// The queued bytes for which h2 has to wait: more than all permits allow, so only frames without data reach it.
const HARD_LIMIT: usize = 1024 * 1024;
/// The most that the kernel may hold unsent, in bytes: 10 ms at 100 Mbit/s. docs/decisions/11-http2-keystrokes.md has what
/// it costs.
const MAX_UNSENT: usize = 128 * 1024;
/// Bytes that a client may send after its last request and still read the end of the connection.
const LINGER_BYTES: usize = 64 * 1024;
/// The time in which a connection has to close: without it, an anchor that stays would hold a drain.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);
/// A SETTINGS frame with the flag ACK (RFC 9113 section 6.5). h2 writes a frame's head in one piece.
const ACKNOWLEDGEMENT: [u8; 9] = [0, 0, 0, 4, 1, 0, 0, 0, 0];

#[cfg(test)]
mod tests {
    use bytes::Buf;
    use std::iter::from_fn;
    use std::task::Waker;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::OwnedSemaphorePermit;
    use tokio_util::io::poll_write_buf;

    use super::super::frame_budget::MAX_SMALL;
    use super::super::payload::Payload;
    use super::super::send_buffer::{BUFFER_BYTES, Class, SendBuffer};
    use super::*;

    /// The head is read with what precedes it, and nothing follows yet.
    #[tokio::test]
    async fn a_head_that_waits_for_the_budget_is_not_the_end() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut connection = Connection::new(listener.accept().await.unwrap().0, Vec::new());
        let head = [0, 0, 1, 0, 0, 0, 0, 0, 1];
        let mut sent = [[0; 24].to_vec(), [&head[..], &[7]].concat().repeat(MAX_SMALL - 1)].concat();
        sent.extend(head);
        peer.write_all(&sent).await.unwrap();
        let (mut bytes, mut received) = ([0; 1024], 0);
        while received < sent.len() - head.len() {
            let read = connection.read(&mut bytes).await.unwrap();
            assert!(read > 0, "an end after {received} bytes");
            received += read;
        }
        let mut context = Context::from_waker(Waker::noop());
        let mut buffer = ReadBuf::new(&mut bytes);
        assert!(
            Pin::new(&mut connection)
                .poll_read(&mut context, &mut buffer)
                .is_pending()
        );
        connection.hand_over_small_frames();
        assert_eq!(connection.read(&mut [0; 1024]).await.unwrap(), head.len());
    }

    fn acquire(outgoing: &Outgoing) -> Option<OwnedSemaphorePermit> {
        let mut context = Context::from_waker(Waker::noop());
        let mut semaphore = outgoing.semaphore(Class::Bulk);
        match semaphore.poll_acquire_many(&mut context, Class::Bulk.permits()) {
            Poll::Ready(permits) => permits,
            Poll::Pending => None,
        }
    }

    fn free_buffers(outgoing: &Outgoing) -> usize {
        let free: Vec<_> = from_fn(|| acquire(outgoing)).collect();
        free.len()
    }

    /// As h2 would: it reads nothing while a PING of its peer waits to be acknowledged.
    #[tokio::test]
    async fn a_peer_that_reads_nothing_does_not_stop_frames_without_data() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let connection = Connection::new(stream, Vec::new());
        let mut context = Context::from_waker(Waker::noop());
        let mut write = |bytes| {
            Pin::new(&mut connection.clone())
                .poll_write(&mut context, bytes)
                .is_ready()
        };
        // The kernel is full, and both send buffers are queued.
        while connection.0.lock().queue.len() < 2 * BUFFER_BYTES {
            assert!(write(&[0; 16 * 1024]));
        }
        assert!(write(&[7; 17]), "a PING is not queued");
        while connection.0.lock().queue.len() < HARD_LIMIT {
            assert!(write(&[0; 16 * 1024]));
        }
        assert!(!write(&[7; 17]), "the queue has no bound");
    }

    #[tokio::test]
    async fn a_frame_is_sent_from_its_send_buffer_and_a_small_one_is_copied_out_of_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let connection = Connection::new(stream, Vec::new());
        let outgoing = connection.outgoing();
        let mut context = Context::from_waker(Waker::noop());
        for (in_place, free) in [(true, 1), (false, 2)] {
            let buffer = SendBuffer::new(acquire(&outgoing).unwrap());
            let mut payload = Payload::buffered(buffer.slice(BUFFER_BYTES), &outgoing);
            // As h2 writes a frame, and one that is so small that h2 has copied it after its head.
            let mut head = &[7; 265][..];
            let written = if in_place {
                poll_write_buf(
                    Pin::new(&mut connection.clone()),
                    &mut context,
                    &mut (&mut head).chain((&mut payload).take(16_384)),
                )
            } else {
                payload.chunk();
                poll_write_buf(Pin::new(&mut connection.clone()), &mut context, &mut head)
            };
            assert!(written.is_ready());
            drop(payload);
            assert_eq!(free_buffers(&outgoing), free);
            assert!(connection.poll_flush(&mut context).is_ready());
            assert_eq!(free_buffers(&outgoing), 2);
        }
    }
}
