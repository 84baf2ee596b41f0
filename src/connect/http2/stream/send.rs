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

use super::super::chunk::Chunk;
use super::super::frames::Earned;
use super::super::room::{Lane, Outbox, Room};
use super::{broken, lock};
use crate::net::transport::{Lender, Writer};

/// What h2 is given to send.
#[derive(Debug)]
pub(super) struct Send {
    stream: SendStream<Chunk>,
    outbox: Outbox,
    ended: bool,
    /// Once it has ended: completes when all of it has left.
    left: Option<oneshot::Receiver<Infallible>>,
}

impl Send {
    pub(super) fn new(stream: SendStream<Chunk>, outbox: Outbox) -> Self {
        Self {
            stream,
            outbox,
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
            let (last, left) = Chunk::last(last, &self.outbox);
            self.left = Some(left);
            // It fails for a stream that has been reset, which whoever reads learns.
            self.stream.send_data(last, true).ok();
        }
    }
}

/// Where the download is written.
#[derive(Debug)]
pub struct To<'a> {
    send: &'a Mutex<Send>,
    lane: Lane,
    turns: PollSemaphore,
    /// It has its turn.
    units: Option<OwnedSemaphorePermit>,
    /// It is being read into.
    room: Option<Room>,
    outbox: &'a Outbox,
    earned: &'a Earned,
}

impl<'a> To<'a> {
    pub(super) fn new(send: &'a Mutex<Send>, (outbox, earned): &'a (Outbox, Earned)) -> Self {
        Self {
            send,
            lane: Lane::Few,
            turns: outbox.turns(Lane::Few),
            units: None,
            room: None,
            outbox,
            earned,
        }
    }
}

impl Lender for To<'_> {
    /// The window before the turn: whoever has a turn can send. But nobody waits for one with the other. A client may
    /// take windows back (RFC 9113 section 6.9.2), of bytes that have had their turn: these need the connection's window
    /// again, which must not be with those who wait for the turn.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut send = lock(self.send);
        let Poll::Ready(window) = send.poll_capacity(context, self.lane.most()) else {
            (self.units, self.turns) = (None, self.outbox.turns(self.lane));
            return Poll::Pending;
        };
        window?;
        if self.units.is_none() {
            let Poll::Ready(units) = self.turns.poll_acquire_many(context, self.lane.units()) else {
                send.give_back();
                return Poll::Pending;
            };
            self.units = units;
        }
        Poll::Ready(Ok(()))
    }

    fn lend(&mut self, most: usize) -> Option<&mut [u8]> {
        let units = self.units.take()?;
        let most = most.min(self.lane.most()).min(lock(self.send).stream.capacity());
        // Nothing can be read into nothing: that would look like an end.
        if most == 0 {
            return None;
        }
        self.room.insert(Room::new(units)).memory().get_mut(..most)
    }

    fn keep(&mut self, bytes: usize) -> io::Result<()> {
        let Some(room) = self.room.take() else {
            return Ok(());
        };
        let mut send = lock(self.send);
        let sent = if bytes == 0 {
            Ok(())
        } else {
            let chunk = if bytes < FEW {
                let (bytes, units) = room.copy(bytes);
                Chunk::of(bytes, units, self.earned)
            } else {
                Chunk::read(room.slice(bytes), self.outbox, self.earned)
            };
            send.stream.send_data(chunk, false).map_err(broken)
        };
        send.give_back();
        let lane = Lane::after(bytes);
        if lane != self.lane {
            self.lane = lane;
            self.turns = self.outbox.turns(lane);
        }
        sent
    }
}

impl Writer for To<'_> {
    fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut send = lock(self.send);
        ready!(send.poll_capacity(context, bytes.len()))?;
        let now = bytes.get(..send.stream.capacity()).unwrap_or(bytes).to_vec();
        let length = now.len();
        let chunk = Chunk::of(now, None, self.earned);
        let sent = send.stream.send_data(chunk, false).map_err(broken);
        send.give_back();
        Poll::Ready(sent.map(|()| length))
    }

    fn poll_shutdown(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(self.send).end(Vec::new());
        Poll::Ready(Ok(()))
    }

    fn lender(&mut self) -> Option<&mut dyn Lender> {
        Some(self)
    }
}

/// A read of less is copied: it need not hold all the room that it might have filled.
const FEW: usize = 32 * 1024;
