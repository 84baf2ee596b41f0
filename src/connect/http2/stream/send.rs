//! The half of a stream that sends: the download.

use parking_lot::Mutex;
use std::convert::Infallible;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::{Reason, SendStream};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::timeout;
use tokio_util::sync::PollSemaphore;

use super::super::frames::EarnedCredit;
use super::super::payload::Payload;
use super::super::send_buffer::{BUFFER_BYTES, Class, SendBuffer, SendBuffers};
use super::{broken, lock};
use crate::net::transport::Writer;

/// What h2 is given to send.
#[derive(Debug)]
pub(super) struct SendHalf {
    stream: SendStream<Payload>,
    buffers: SendBuffers,
    ended: bool,
    /// Once it has ended: completes when all of it has left.
    left: Option<oneshot::Receiver<Infallible>>,
}

impl SendHalf {
    pub(super) fn new(stream: SendStream<Payload>, buffers: SendBuffers) -> Self {
        Self {
            stream,
            buffers,
            ended: false,
            left: None,
        }
    }

    /// Completes when the windows let some bytes through, at most so many, which are reserved then.
    fn poll_capacity(&mut self, context: &mut Context<'_>, most: usize) -> Poll<io::Result<()>> {
        let stream = &mut self.stream;
        stream.reserve_capacity(most);
        while stream.capacity() == 0 {
            match ready!(stream.poll_capacity(context)) {
                Some(capacity) => _ = capacity.map_err(broken)?,
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// What is reserved and not used would be kept from the others: the connection has one window for all.
    fn give_back(&mut self) {
        self.stream.reserve_capacity(0);
    }

    /// Completes when the client has reset the stream.
    pub(super) fn poll_reset(&mut self, context: &mut Context<'_>) -> Poll<Result<Reason, h2::Error>> {
        self.stream.poll_reset(context)
    }

    /// Resets the stream, and throws away what has not left yet.
    pub(super) fn reset(&mut self, reason: Reason) {
        self.stream.send_reset(reason);
    }

    /// Waits until its end has left, at most so long, and once.
    pub(super) async fn left(&mut self, longest: Duration) {
        if let Some(left) = self.left.take() {
            timeout(longest, left).await.ok();
        }
    }

    /// Ends it, behind these bytes, once.
    pub(super) fn end(&mut self, last: Vec<u8>) {
        if !self.ended {
            self.ended = true;
            let (last, left) = Payload::last(last, &self.buffers);
            self.left = Some(left);
            // It fails for a stream that has been reset, which whoever reads learns.
            self.stream.send_data(last, true).ok();
        }
    }
}

/// Where the download is written.
#[derive(Debug)]
pub struct StreamWriter<'a> {
    send: &'a Mutex<SendHalf>,
    class: Class,
    turns: PollSemaphore,
    /// It has its turn.
    permits: Option<OwnedSemaphorePermit>,
    /// It is being read into.
    room: Option<SendBuffer>,
    buffers: &'a SendBuffers,
    earned: &'a EarnedCredit,
}

impl<'a> StreamWriter<'a> {
    pub(super) fn new(send: &'a Mutex<SendHalf>, (buffers, earned): &'a (SendBuffers, EarnedCredit)) -> Self {
        Self {
            send,
            class: Class::Interactive,
            turns: buffers.permits(Class::Interactive),
            permits: None,
            room: None,
            buffers,
            earned,
        }
    }
}

impl Writer for StreamWriter<'_> {
    /// The window before the turn: whoever has a turn can send. But nobody waits for one with the other. A client may
    /// take windows back (RFC 9113 section 6.9.2), of bytes that have had their turn: these need the connection's window
    /// again, which must not be with those who wait for the turn.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut send = lock(self.send);
        let Poll::Ready(window) = send.poll_capacity(context, self.class.most()) else {
            (self.permits, self.turns) = (None, self.buffers.permits(self.class));
            return Poll::Pending;
        };
        window?;
        if self.permits.is_none() {
            let Poll::Ready(permits) = self.turns.poll_acquire_many(context, self.class.permits()) else {
                send.give_back();
                return Poll::Pending;
            };
            self.permits = permits;
        }
        Poll::Ready(Ok(()))
    }

    fn shares_task(&self) -> bool {
        true
    }

    fn most_lent(&self) -> usize {
        BUFFER_BYTES
    }

    fn lend(&mut self, most: usize) -> Option<&mut [u8]> {
        let permits = self.permits.take()?;
        let most = most.min(self.class.most()).min(lock(self.send).stream.capacity());
        // Nothing can be read into nothing: that would look like an end.
        if most == 0 {
            return None;
        }
        self.room.insert(SendBuffer::new(permits)).memory().get_mut(..most)
    }

    fn keep(&mut self, bytes: usize) -> io::Result<()> {
        let Some(room) = self.room.take() else {
            return Ok(());
        };
        let mut send = lock(self.send);
        let sent = if bytes == 0 {
            Ok(())
        } else {
            let chunk = if bytes < COPIED_BELOW {
                let (bytes, permits) = room.copy(bytes);
                Payload::of(bytes, permits, self.earned)
            } else {
                Payload::read(room.slice(bytes), self.buffers, self.earned)
            };
            send.stream.send_data(chunk, false).map_err(broken)
        };
        send.give_back();
        let class = Class::after(bytes);
        if class != self.class {
            self.class = class;
            self.turns = self.buffers.permits(class);
        }
        sent
    }

    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut send = lock(self.send);
        ready!(send.poll_capacity(context, bytes.len()))?;
        let now = bytes.get(..send.stream.capacity()).unwrap_or(bytes).to_vec();
        let length = now.len();
        let chunk = Payload::of(now, None, self.earned);
        let sent = send.stream.send_data(chunk, false).map_err(broken);
        send.give_back();
        Poll::Ready(sent.map(|()| length))
    }

    fn poll_shutdown(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(self.send).end(Vec::new());
        Poll::Ready(Ok(()))
    }
}

/// A read of less is copied: it need not hold all the room that it might have filled.
const COPIED_BELOW: usize = 32 * 1024;
