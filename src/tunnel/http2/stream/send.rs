//! The sending half of a stream: the download.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::{Reason, SendStream};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::timeout;
use tokio_util::sync::PollSemaphore;

use crate::net::transport::{BufferLender, StreamCancelled, Writer};
use crate::tunnel::http2::outgoing::Outgoing;
use crate::tunnel::http2::payload::Payload;
use crate::tunnel::http2::send_buffer::{BUFFER_BYTES, Class, SendBuffer, split_permits};

/// The sending half: hands the download to h2.
#[derive(Debug)]
pub(super) struct SendHalf {
    stream: SendStream<Payload>,
    outgoing: Outgoing,
    class: Class,
    semaphore: PollSemaphore,
    /// The permits for the next read or write, once they are acquired.
    permits: Option<OwnedSemaphorePermit>,
    /// True if only a part of the last write was taken: the rest is of the same class.
    has_rest: bool,
    finished: bool,
    /// True if what is written ends a protocol over this one.
    is_ending: bool,
    /// Completes when END_STREAM, the mark or the end has been flushed; `None` before one is sent, and after the wait.
    flushed: Option<oneshot::Receiver<Infallible>>,
}

impl SendHalf {
    pub(super) fn new(stream: SendStream<Payload>, outgoing: Outgoing) -> Self {
        let class = Class::Beginning;
        Self {
            stream,
            class,
            semaphore: outgoing.semaphore(class),
            permits: None,
            has_rest: false,
            outgoing,
            finished: false,
            is_ending: false,
            flushed: None,
        }
    }

    /// Completes when the windows of stream and connection have space for some bytes, at most `max`. The space is
    /// reserved until [`release_capacity`](Self::release_capacity).
    fn poll_capacity(&mut self, context: &mut Context<'_>, max: usize) -> Poll<io::Result<()>> {
        let stream = &mut self.stream;
        stream.reserve_capacity(max);
        while stream.capacity() == 0 {
            match ready!(stream.poll_capacity(context)) {
                Some(capacity) => _ = capacity.map_err(stream_error)?,
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Acquires window space, then permits, so that a stream with permits can send. Holds neither while it waits for
    /// the other. When a client shrinks windows (RFC 9113 section 6.9.2), payloads that hold permits wait for space in
    /// the connection's window. Streams that wait for permits must not hold that space.
    fn poll_permits(&mut self, context: &mut Context<'_>, max: usize) -> Poll<io::Result<()>> {
        let Poll::Ready(capacity) = self.poll_capacity(context, max) else {
            self.leave_queue();
            return Poll::Pending;
        };
        capacity?;
        while self.permits.is_none() {
            let Poll::Ready(permits) = self.semaphore.poll_acquire_many(context, self.class.permits()) else {
                self.release_capacity();
                return Poll::Pending;
            };
            if permits.is_none() {
                // Closed: they have been renewed.
                self.semaphore = self.outgoing.semaphore(self.class);
            }
            self.permits = permits;
        }
        Poll::Ready(Ok(()))
    }

    /// Gives permits back. A new semaphore handle also leaves the queue for them: in the queue, a stream that writes no more
    /// would be given permits, and keep them from others.
    fn leave_queue(&mut self) {
        (self.permits, self.semaphore) = (None, self.outgoing.semaphore(self.class));
    }

    fn set_class(&mut self, class: Class) {
        if class != self.class {
            self.class = class;
            self.leave_queue();
        }
    }

    /// Gives back what is reserved and unused: the connection has one window for all its streams.
    fn release_capacity(&mut self) {
        self.stream.reserve_capacity(0);
    }

    /// Completes when the client has reset the stream.
    pub(super) fn poll_reset(&mut self, context: &mut Context<'_>) -> Poll<Result<Reason, h2::Error>> {
        self.stream.poll_reset(context)
    }

    /// Resets the stream. Bytes that have not been written are dropped.
    pub(super) fn reset(&mut self, reason: Reason) {
        self.stream.send_reset(reason);
    }

    /// Sends an empty frame after all that was sent, to learn when that has been [flushed](Self::flushed).
    pub(super) fn mark(&mut self) {
        if !self.finished {
            self.leave_queue();
            let (empty, flushed) = Payload::last(Vec::new(), &self.outgoing);
            let sent = self.stream.send_data(empty, false);
            self.flushed = sent.is_ok().then_some(flushed);
        }
    }

    /// Waits until END_STREAM, or the [mark](Self::mark), has been flushed, or the client has reset the stream, at most
    /// `max`. A second call does not wait.
    pub(super) async fn flushed(&mut self, max: Duration) {
        let flushed = poll_fn(|context| match self.poll_flushed(context) {
            Poll::Pending => self.poll_reset(context).map(|_| ()),
            flushed @ Poll::Ready(()) => flushed,
        });
        timeout(max, flushed).await.ok();
        self.flushed = None;
    }

    /// Completes when END_STREAM, the mark or the end has been flushed, or at once if there is none.
    fn poll_flushed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(flushed) = &mut self.flushed {
            // An error is the drop of the sender, at the flush.
            let (Ok(_) | Err(_)) = ready!(Pin::new(flushed).poll(context));
            self.flushed = None;
        }
        Poll::Ready(())
    }

    /// Sends these bytes and END_STREAM, once.
    pub(super) fn finish(&mut self, last: Vec<u8>) {
        if !self.finished {
            self.finished = true;
            self.leave_queue();
            let (last, flushed) = Payload::last(last, &self.outgoing);
            // It fails for a stream that has been reset, which the reader reports: nothing of it is flushed any more.
            let sent = self.stream.send_data(last, true);
            self.flushed = sent.is_ok().then_some(flushed);
        }
    }
}

/// The writer of the download.
#[derive(Debug)]
pub struct StreamWriter<'a> {
    send: &'a Mutex<SendHalf>,
    /// The send buffer that is lent, and the bytes that its permits are for.
    lent: Option<(SendBuffer, usize)>,
    outgoing: &'a Outgoing,
}

impl<'a> StreamWriter<'a> {
    pub(super) fn new(send: &'a Mutex<SendHalf>, outgoing: &'a Outgoing) -> Self {
        Self {
            send,
            lent: None,
            outgoing,
        }
    }
}

impl BufferLender for StreamWriter<'_> {
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut send = self.send.lock();
        let longest = send.class.longest_read(self.outgoing.share());
        send.poll_permits(context, longest)
    }

    fn lend(&mut self, max: usize) -> Option<&mut [u8]> {
        let mut send = self.send.lock();
        let permits = send.permits.take()?;
        let longest = send.class.longest_read(self.outgoing.share());
        let max = max.min(longest).min(send.stream.capacity());
        // A read into an empty buffer returns 0, which would look like the end of stream.
        if max == 0 {
            return None;
        }
        let (buffer, _) = self.lent.insert((SendBuffer::new(permits), longest));
        buffer.memory().get_mut(..max)
    }

    fn keep(&mut self, bytes: usize) -> io::Result<()> {
        let Some((buffer, longest)) = self.lent.take() else {
            return Ok(());
        };
        let mut send = self.send.lock();
        let sent = if bytes == 0 {
            Ok(())
        } else {
            let payload = if bytes < COPIED_BELOW {
                let (bytes, permits) = buffer.copy(bytes, longest);
                Payload::copied(bytes, permits, self.outgoing)
            } else {
                Payload::buffered(buffer.slice(bytes), self.outgoing)
            };
            send.stream.send_data(payload, false).map_err(stream_error)
        };
        send.release_capacity();
        send.set_class(Class::after_read(bytes, longest));
        sent
    }
}

impl Writer for StreamWriter<'_> {
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    /// The header of a WebSocket's frame is no DATA frame of its own.
    fn poll_write_vectored(&mut self, context: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let offered = pieces.iter().map(|piece| piece.len()).sum();
        let mut send = self.send.lock();
        if !send.has_rest {
            send.set_class(Class::after_read(offered, BUFFER_BYTES));
        }
        let longest = send.class.longest_read(self.outgoing.share());
        ready!(send.poll_permits(context, longest.min(offered)))?;
        let length = offered.min(longest).min(send.stream.capacity());
        send.has_rest = length < offered;
        let mut permits = send.permits.take();
        let permits = permits.as_mut().and_then(|all| split_permits(all, length, longest));
        let mut now = Vec::with_capacity(length);
        for piece in pieces {
            now.extend_from_slice(piece.get(..length - now.len()).unwrap_or(piece));
        }
        let payload = if send.is_ending {
            let (last, flushed) = Payload::last(now, self.outgoing);
            send.flushed = Some(flushed);
            last
        } else {
            Payload::copied(now, permits, self.outgoing)
        };
        let sent = send.stream.send_data(payload, false).map_err(stream_error);
        send.release_capacity();
        Poll::Ready(sent.map(|()| length))
    }

    fn poll_shutdown(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send.lock().finish(Vec::new());
        Poll::Ready(Ok(()))
    }

    fn mark_end(&mut self) {
        self.send.lock().is_ending = true;
    }

    fn poll_end_sent(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.send.lock().poll_flushed(context)
    }

    fn lender(&mut self) -> Option<&mut dyn BufferLender> {
        Some(self)
    }
}

/// Returns an error of the stream as a socket would report it.
pub(in crate::tunnel::http2) fn stream_error(error: h2::Error) -> io::Error {
    match error.reason() {
        Some(reason) if error.is_reset() && error.is_remote() => reset_error(reason),
        Some(_) => io::ErrorKind::ConnectionReset.into(),
        None => error.into_io().unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()),
    }
}

/// Returns the error of a stream that the client has reset. "The endpoint uses CANCEL to indicate that the stream is no
/// longer needed" (RFC 9113 section 7); NO_ERROR means that there is no error.
pub(super) fn reset_error(reason: Reason) -> io::Error {
    match reason {
        Reason::CANCEL | Reason::NO_ERROR => StreamCancelled.into(),
        _ => io::ErrorKind::ConnectionReset.into(),
    }
}

/// A read of fewer bytes is copied out of its send buffer, which is free again at once.
const COPIED_BELOW: usize = 32 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::http2::frame_budget::Credit;
    use std::future::pending;
    use std::task::Waker;

    use bytes::Bytes;
    use futures_util::FutureExt as _;
    use h2::server;
    use http::{Request, Response};
    use tokio::io::{DuplexStream, duplex};

    /// Answered streams of one connection, whose peer reads nothing of them.
    async fn streams(count: usize, outgoing: &Outgoing) -> (server::Connection<DuplexStream, Payload>, Vec<SendHalf>) {
        let (ours, theirs) = duplex(64 * 1024);
        let (requests, connection) = h2::client::Builder::new()
            .initial_window_size(1 << 20)
            .initial_connection_window_size(1 << 20)
            .handshake::<_, Bytes>(theirs)
            .await
            .unwrap();
        tokio::spawn(connection);
        let mut h2 = server::Builder::new().handshake(ours).await.unwrap();
        let mut halves = Vec::new();
        while halves.len() < count {
            let mut requests = requests.clone().ready().await.unwrap();
            let request = Request::connect("a:1").body(()).unwrap();
            let opened = requests.send_request(request, false).unwrap();
            let (_, mut respond) = h2.accept().await.unwrap().unwrap();
            let stream = respond.send_response(Response::new(()), false).unwrap();
            halves.push(SendHalf::new(stream, outgoing.clone()));
            tokio::spawn(async move { (opened, pending::<()>().await) });
        }
        (h2, halves)
    }

    #[tokio::test]
    async fn a_stream_that_writes_no_more_leaves_the_permits_to_others() {
        let outgoing = Outgoing::new(Credit::default());
        let (_h2, mut halves) = Box::pin(streams(4, &outgoing)).await;
        let mut halves = halves.drain(..).map(Mutex::new);
        let [first, aborted, finished, last] = std::array::from_fn(|_| halves.next().unwrap());
        let write = |half: &Mutex<SendHalf>| {
            let mut context = Context::from_waker(Waker::noop());
            StreamWriter::new(half, &outgoing).poll_write(&mut context, &[0; 64 * 1024])
        };
        while write(&first).is_ready() {}
        for half in [&aborted, &finished, &last] {
            assert!(write(half).is_pending());
        }
        aborted.lock().mark();
        finished.lock().finish(Vec::new());
        first.lock().reset(Reason::CANCEL);
        drop(first);
        assert!(write(&last).is_pending(), "the bytes are not flushed");
        outgoing.flushed();
        assert!(write(&last).is_ready());
    }

    #[tokio::test]
    async fn no_end_of_a_stream_that_was_reset_is_waited_for() {
        let outgoing = Outgoing::new(Credit::default());
        let (_h2, mut halves) = Box::pin(streams(2, &outgoing)).await;
        for half in &mut halves {
            half.reset(Reason::CANCEL);
        }
        halves[0].finish(Vec::new());
        halves[1].mark();
        for half in &mut halves {
            assert!(half.flushed(Duration::MAX).now_or_never().is_some());
        }
    }
}
