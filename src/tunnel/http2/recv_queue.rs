//! The payload that a stream has received and its reader has not taken yet.

use std::collections::{HashMap, VecDeque};
use std::mem::take;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use parking_lot::Mutex;

/// The receiving half of a stream.
///
/// The stream's window bounds its bytes: the peer may send more only after as many are [released](Self::release).
#[derive(Debug)]
pub(super) struct RecvQueue {
    stream: RecvStream,
    /// Payloads of DATA frames, as h2 returned them.
    payloads: VecDeque<Bytes>,
    /// The payloads of small frames after `payloads`, joined: kept separately, each would keep one of h2's read buffers
    /// alive.
    small: BytesMut,
    end: Option<End>,
    /// The waker of the task that reads; `None` before its first poll.
    reader: Option<Waker>,
}

/// A queue that its stream and its connection fill.
pub(super) type SharedQueue = Arc<Mutex<RecvQueue>>;

/// The queues of the streams of a connection that are in use, by the streams' numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenStreams(Arc<Mutex<HashMap<u32, Weak<Mutex<RecvQueue>>>>>);

impl OpenStreams {
    /// Creates the queue of a stream, which is in use until the queue is dropped.
    pub(super) fn open(&self, stream: RecvStream) -> SharedQueue {
        let number = stream.stream_id().as_u32();
        let queue = Arc::new(Mutex::new(RecvQueue::new(stream)));
        let mut open = self.0.lock();
        if open.len() == open.capacity() {
            open.retain(|_, queue| queue.strong_count() > 0);
        }
        open.insert(number, Arc::downgrade(&queue));
        queue
    }

    /// Returns whether the stream of that number is in use.
    pub(super) fn is_open(&self, number: u32) -> bool {
        let open = self.0.lock();
        open.get(&number).is_some_and(|queue| queue.strong_count() > 0)
    }

    /// Takes over every frame that h2 holds of these streams, although their tasks may wait for something else.
    pub(super) fn receive_all(&self) {
        for queue in self.0.lock().values().filter_map(Weak::upgrade) {
            let mut queue = queue.lock();
            let reader = queue.reader.clone().unwrap_or_else(|| Waker::noop().clone());
            queue.receive_all(&mut Context::from_waker(&reader));
        }
    }
}

/// How a stream has ended, after all payloads.
#[derive(Debug)]
enum End {
    /// By END_STREAM.
    Finished,
    Failed(StreamFailure),
}

/// The end of a stream other than END_STREAM.
#[derive(Debug)]
pub(super) enum StreamFailure {
    /// The stream was reset, or its connection has ended.
    Broken(h2::Error),
    /// HEADERS after the tunnel's bytes: only DATA may follow on a connected stream (RFC 9113 section 8.5).
    Trailers,
}

impl RecvQueue {
    pub(super) fn new(stream: RecvStream) -> Self {
        Self {
            stream,
            payloads: VecDeque::new(),
            small: BytesMut::new(),
            end: None,
            reader: None,
        }
    }

    /// Completes when there are bytes, or the stream has ended.
    pub(super) fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.is_empty() && self.end.is_none() {
            ready!(self.poll_receive(context));
        }
        Poll::Ready(())
    }

    /// Takes over every frame that h2 holds of the stream. h2 ends a connection that lets many small ones wait.
    pub(super) fn receive_all(&mut self, context: &mut Context<'_>) {
        while self.end.is_none() && self.poll_receive(context).is_ready() {}
    }

    /// Returns whether END_STREAM has been received.
    pub(super) fn has_finished(&self) -> bool {
        matches!(self.end, Some(End::Finished))
    }

    /// Returns the failure that has ended the stream, once. Bytes before it may still wait.
    pub(super) fn take_failure(&mut self) -> Option<StreamFailure> {
        match self.end.take() {
            Some(End::Failed(failure)) => Some(failure),
            end @ (Some(End::Finished) | None) => {
                self.end = end;
                None
            }
        }
    }

    /// Returns the next bytes of one payload, at most `max`, without a copy; empty if nothing waits.
    pub(super) fn next(&mut self, max: usize) -> Bytes {
        if self.payloads.is_empty() {
            self.merge_small();
        }
        match self.payloads.front_mut() {
            Some(first) if first.len() > max => first.split_to(max),
            Some(_) => self.payloads.pop_front().unwrap_or_default(),
            None => Bytes::new(),
        }
    }

    /// Returns the next bytes if one payload has all that a [read](Self::read) of `max` would copy, else `None`.
    pub(super) fn next_whole(&mut self, max: usize) -> Option<Bytes> {
        self.merge_small();
        let is_whole = self.payloads.len() == 1 || self.payloads.front().is_some_and(|first| first.len() >= max);
        is_whole.then(|| self.next(max))
    }

    /// Copies the next bytes that fit, and returns their number.
    pub(super) fn read(&mut self, memory: &mut [u8]) -> usize {
        let mut length = 0;
        while let Some(rest) = memory.get_mut(length..).filter(|rest| !rest.is_empty()) {
            let next = self.next(rest.len());
            if next.is_empty() {
                break;
            }
            rest.get_mut(..next.len()).unwrap_or_default().copy_from_slice(&next);
            length += next.len();
        }
        length
    }

    /// Opens the window by `bytes`, which have been passed on.
    pub(super) fn release(&mut self, bytes: usize) {
        // It fails for a stream that is closed, whose window has no use any more.
        self.stream.flow_control().release_capacity(bytes).ok();
    }

    fn is_empty(&self) -> bool {
        self.payloads.is_empty() && self.small.is_empty()
    }

    /// Takes over one frame, or the end of the stream.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.reader = Some(context.waker().clone());
        match ready!(self.stream.poll_data(context)) {
            Some(Ok(payload)) => self.keep(payload),
            Some(Err(error)) => self.end = Some(End::Failed(StreamFailure::Broken(error))),
            None => {
                self.end = Some(match ready!(self.stream.poll_trailers(context)) {
                    Ok(None) => End::Finished,
                    Ok(Some(_)) => End::Failed(StreamFailure::Trailers),
                    Err(error) => End::Failed(StreamFailure::Broken(error)),
                });
            }
        }
        Poll::Ready(())
    }

    fn keep(&mut self, payload: Bytes) {
        if payload.len() < COPIED_BELOW && !self.is_empty() {
            self.small.extend_from_slice(&payload);
        } else if !payload.is_empty() {
            self.merge_small();
            self.payloads.push_back(payload);
        }
    }

    /// Moves the joined small payloads into the queue.
    fn merge_small(&mut self) {
        if !self.small.is_empty() {
            self.payloads.push_back(take(&mut self.small).freeze());
        }
    }
}

/// Payloads of fewer bytes are joined if others wait before them.
const COPIED_BELOW: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::task::Waker;

    use h2::SendStream;
    use http::{Request, Response};

    /// Both halves of one direction of a stream. The connection of each side runs in a task.
    async fn stream() -> (SendStream<Bytes>, RecvQueue) {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let receiving = tokio::spawn(async move {
            let mut connection = h2::server::handshake(theirs).await.unwrap();
            let (request, mut respond) = connection.accept().await.unwrap().unwrap();
            let send = respond.send_response(Response::new(()), false).unwrap();
            tokio::spawn(async move {
                let _open = send;
                while connection.accept().await.is_some() {}
            });
            request.into_body()
        });
        let (requests, connection) = h2::client::handshake(ours).await.unwrap();
        tokio::spawn(connection);
        let mut requests = requests.ready().await.unwrap();
        let (_, send) = requests
            .send_request(Request::connect("a:1").body(()).unwrap(), false)
            .unwrap();
        (send, RecvQueue::new(receiving.await.unwrap()))
    }

    async fn receive(inbox: &mut RecvQueue, bytes: usize) {
        poll_fn(|context| {
            inbox.receive_all(context);
            let held: usize = inbox.payloads.iter().map(Bytes::len).sum::<usize>() + inbox.small.len();
            if held >= bytes { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    #[tokio::test]
    async fn small_frames_that_wait_are_one_payload_and_all_bytes_are_read_in_order() {
        let (mut send, mut inbox) = stream().await;
        for (length, byte) in [(10, b'a'), (20, b'b'), (30, b'c'), (5000, b'd'), (1, b'e')] {
            send.send_data(Bytes::from(vec![byte; length]), false).unwrap();
        }
        receive(&mut inbox, 5061).await;
        assert_eq!(
            inbox.payloads.iter().map(Bytes::len).collect::<Vec<_>>(),
            [10, 50, 5000]
        );
        assert_eq!(inbox.next_whole(100), None);
        let mut memory = [0; 100];
        assert_eq!(inbox.read(&mut memory), 100);
        assert_eq!(
            memory[..],
            [&[b'a'; 10][..], &[b'b'; 20], &[b'c'; 30], &[b'd'; 40]].concat()
        );
        assert_eq!(inbox.next_whole(4960).unwrap().len(), 4960);
        assert_eq!(inbox.next(100), "e");
        assert_eq!(inbox.next(100), "");
        assert!(!inbox.has_finished());
    }

    #[tokio::test]
    async fn a_failure_is_reported_once_behind_the_bytes_that_wait() {
        let (mut send, mut inbox) = stream().await;
        send.send_data(Bytes::from_static(b"tail"), false).unwrap();
        receive(&mut inbox, 4).await;
        send.send_reset(h2::Reason::CANCEL);
        poll_fn(|context| {
            inbox.receive_all(context);
            if inbox.end.is_some() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        assert_eq!(inbox.next(100), "tail");
        assert!(matches!(inbox.take_failure(), Some(StreamFailure::Broken(error)) if error.is_remote()));
        assert!(inbox.take_failure().is_none() && !inbox.has_finished());
    }

    #[tokio::test]
    async fn trailers_are_a_failure_and_an_end_of_stream_is_none() {
        for trailers in [true, false] {
            let (mut send, mut inbox) = stream().await;
            if trailers {
                send.send_trailers(http::HeaderMap::new()).unwrap();
            } else {
                send.send_data(Bytes::new(), true).unwrap();
            }
            poll_fn(|context| inbox.poll_readable(context)).await;
            assert!(inbox.poll_readable(&mut Context::from_waker(Waker::noop())).is_ready());
            assert_eq!(inbox.has_finished(), !trailers);
            assert_eq!(matches!(inbox.take_failure(), Some(StreamFailure::Trailers)), trailers);
        }
    }
}
