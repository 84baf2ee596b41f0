//! One stream of an HTTP/2 connection as the client's end of a tunnel (RFC 9113 section 8.5).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::timeout;
use tokio_util::sync::PollSemaphore;

use super::chunk::Chunk;
use super::frames::Earned;
use super::room::{Lane, Outbox, ROOM, Room};
use crate::end::{End, Sink, Source};

/// A stream whose client has its answer.
#[derive(Debug)]
pub struct Stream {
    receive: Receive,
    /// Behind a lock, as both directions need it: to send, and to learn of a reset. They run in one task.
    send: Mutex<Send>,
    outgoing: (Outbox, Earned),
    reset: bool,
}

impl Stream {
    pub(super) fn new(receive: RecvStream, send: SendStream<Chunk>, outgoing: (Outbox, Earned)) -> Self {
        Self {
            receive: Receive {
                stream: receive,
                ahead: VecDeque::new(),
                small: BytesMut::new(),
                current: Bytes::new(),
                ended: false,
            },
            send: Mutex::new(Send {
                stream: send,
                left: None,
            }),
            outgoing,
            reset: false,
        }
    }

    /// The same, when it has nothing to say but this.
    pub(super) fn ending_with(self, last: Vec<u8>) -> Self {
        lock(&self.send).end(last);
        self
    }
}

impl End for Stream {
    type Source<'a> = From<'a>;
    type Sink<'a> = To<'a>;

    fn split(&mut self) -> (From<'_>, To<'_>) {
        let source = From {
            receive: &mut self.receive,
            send: &self.send,
        };
        let (outbox, earned) = &self.outgoing;
        let sink = To {
            send: &self.send,
            lane: Lane::Few,
            turns: outbox.turns(Lane::Few),
            units: None,
            room: None,
            outbox,
            earned,
        };
        (source, sink)
    }

    fn reset_on_drop(&mut self) {
        self.reset = true;
    }

    /// Waits until the client has taken the rest, within a bound. It need not finish: the drop tells it not to go on.
    async fn close_gently(&mut self) {
        let send = self.send.get_mut().unwrap_or_else(PoisonError::into_inner);
        send.end(Vec::new());
        if let Some(left) = &mut send.left {
            timeout(LINGER, left).await.ok();
        }
    }
}

impl Drop for Stream {
    /// What is queued behind a stream that both sides have ended is still sent. Any other is reset, and not left to h2:
    /// that would keep it, and its place among the streams, for as long as its client takes nothing.
    fn drop(&mut self) {
        let send = &mut lock(&self.send).stream;
        if self.reset {
            // "A proxy treats any error in the TCP connection [...] as a stream error of type CONNECT_ERROR."
            send.send_reset(Reason::CONNECT_ERROR);
        } else if !self.receive.ended {
            send.send_reset(Reason::NO_ERROR);
        }
    }
}

/// The half that receives.
#[derive(Debug)]
struct Receive {
    stream: RecvStream,
    /// What came while nothing of it could be passed on.
    ahead: VecDeque<Bytes>,
    /// Behind that, the payload of small frames in one piece: alone each would keep a whole buffer of h2's.
    small: BytesMut,
    /// What was read last.
    current: Bytes,
    ended: bool,
}

impl Receive {
    /// Takes the next frame, if there is one: `None` at the end of stream.
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<()>>> {
        if self.ended {
            return Poll::Ready(Ok(None));
        }
        match ready!(self.stream.poll_data(context)) {
            Some(Ok(bytes)) => {
                self.keep(bytes);
                Poll::Ready(Ok(Some(())))
            }
            Some(Err(error)) => Poll::Ready(Err(broken(error))),
            None => {
                let trailers = ready!(self.stream.poll_trailers(context)).map_err(broken)?;
                if trailers.is_some() {
                    // No frame but DATA may follow on a connected stream (RFC 9113 section 8.5).
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
                self.ended = true;
                Poll::Ready(Ok(None))
            }
        }
    }

    /// Takes all frames that there are: the window bounds them.
    fn take_in(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        loop {
            match self.poll_frame(context) {
                Poll::Ready(Ok(Some(()))) => {}
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Ready(Ok(None)) | Poll::Pending => return Ok(()),
            }
        }
    }

    fn keep(&mut self, bytes: Bytes) {
        if bytes.len() < SMALL && self.has_some() {
            self.small.extend_from_slice(&bytes);
        } else if !bytes.is_empty() {
            self.settle();
            self.ahead.push_back(bytes);
        }
    }

    fn has_some(&self) -> bool {
        !self.ahead.is_empty() || !self.small.is_empty()
    }

    fn settle(&mut self) {
        if !self.small.is_empty() {
            self.ahead.push_back(std::mem::take(&mut self.small).freeze());
        }
    }

    /// One frame as it stands, or as many as there is room for: a write for each would cost more than to copy them.
    fn take<'a>(&'a mut self, room: &'a mut [u8]) -> &'a [u8] {
        self.settle();
        if self.ahead.len() == 1 || self.ahead.front().is_some_and(|first| first.len() >= room.len()) {
            self.current = self.next(room.len());
            return &self.current;
        }
        let mut length = 0;
        while let Some(rest) = room.get_mut(length..).filter(|rest| !rest.is_empty()) {
            let next = self.next(rest.len());
            if next.is_empty() {
                break;
            }
            rest.get_mut(..next.len()).unwrap_or_default().copy_from_slice(&next);
            length += next.len();
        }
        room.get(..length).unwrap_or_default()
    }

    fn next(&mut self, most: usize) -> Bytes {
        match self.ahead.front_mut() {
            Some(first) if first.len() > most => first.split_to(most),
            Some(_) => self.ahead.pop_front().unwrap_or_default(),
            None => Bytes::new(),
        }
    }
}

/// The half that sends.
#[derive(Debug)]
struct Send {
    stream: SendStream<Chunk>,
    /// `None` until it has ended; then this completes when all of it has left.
    left: Option<oneshot::Receiver<Infallible>>,
}

impl Send {
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

    fn end(&mut self, last: Vec<u8>) {
        if self.left.is_none() {
            let (last, left) = Chunk::last(last);
            self.left = Some(left);
            // It fails for a stream that has been reset, which whoever reads learns.
            self.stream.send_data(last, true).ok();
        }
    }
}

/// Where the upload is read.
#[derive(Debug)]
pub struct From<'a> {
    receive: &'a mut Receive,
    send: &'a Mutex<Send>,
}

impl Source for From<'_> {
    fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.receive.has_some() {
            if ready!(self.receive.poll_frame(context))?.is_none() {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_read<'a>(&'a mut self, context: &mut Context<'_>, room: &'a mut [u8]) -> Poll<io::Result<&'a [u8]>> {
        ready!(self.poll_readable(context))?;
        self.receive.take_in(context)?;
        Poll::Ready(Ok(self.receive.take(room)))
    }

    fn passed_on(&mut self, bytes: usize) {
        self.receive.current = Bytes::new();
        // It fails for a stream that is gone, whose window does not matter any more.
        self.receive.stream.flow_control().release_capacity(bytes).ok();
    }

    /// Frames that come meanwhile are kept: the window bounds them, as none of them is passed on.
    async fn failed(&mut self) -> io::Error {
        poll_fn(|context| {
            if let Err(error) = self.receive.take_in(context) {
                return Poll::Ready(error);
            }
            lock(self.send).stream.poll_reset(context).map(|reset| match reset {
                Ok(_) => io::ErrorKind::ConnectionReset.into(),
                Err(error) => broken(error),
            })
        })
        .await
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

impl Sink for To<'_> {
    /// The window before the turn: whoever has a turn can send. But nobody waits for one with the other. A client may
    /// take windows back (RFC 9113 section 6.9.2), of bytes that have had their turn: these need the connection's window
    /// again, which must not be with those who wait for the turn.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
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

    fn most_lent(&self) -> usize {
        ROOM
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
}

fn lock(send: &Mutex<Send>) -> MutexGuard<'_, Send> {
    send.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream's error as a socket would have it.
fn broken(error: h2::Error) -> io::Error {
    if error.is_io() {
        error.into_io().unwrap_or_else(|| io::ErrorKind::ConnectionReset.into())
    } else {
        io::ErrorKind::ConnectionReset.into()
    }
}

/// Smaller frames than this are copied together when they have to wait.
const SMALL: usize = 4096;
/// A read of less is copied: it need not hold all the room that it might have filled.
const FEW: usize = 32 * 1024;
/// How long a client may take for what it is sent last.
const LINGER: Duration = Duration::from_secs(1);
