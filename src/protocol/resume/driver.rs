//! Moves the bytes of one side of a session between that side's program and the session's current connection.
//!
//! [`Session`] decides what is sent and what is passed on; the driver reads and writes the streams for it. A connection
//! comes and goes; the program, and what was read from it, stays.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use self::writer::Writer;
use super::handshake::client_handshake::{ClientHandshake, HandshakeError, ResumptionSecrets};
use super::reason::{DetachReason, EndReason};
use super::session::{AttachmentId, AttachmentState, Session};

mod receive;
mod writer;

/// Evaluates to true if a step has moved something. If the step has an event, the enclosing function returns it.
macro_rules! moved {
    ($step:expr) => {
        match $step {
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(event)) => return Poll::Ready(event),
            Poll::Pending => false,
        }
    };
}

/// The side of the session that a driver runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side next to ssh. It ends the session once both streams are complete.
    Client,
    /// The side next to sshd.
    Anchor,
}

/// A connection that carries the session.
#[derive(Debug)]
pub struct Attachment<S> {
    /// Its stream.
    pub stream: S,
    /// Its id.
    pub attachment: AttachmentId,
}

/// The result of the handshake of a connection.
#[derive(Debug, Default)]
pub struct HandshakeOutput<'a> {
    /// This side's answer, which is sent before the first frame. Its offset must be [`Session::received`], read without
    /// an await before [`Driver::attach`].
    pub answer: Vec<u8>,
    /// The offset that the other side expects.
    pub received: u64,
    /// The first frames of the other side, after the handshake.
    pub rest: &'a [u8],
}

/// An event that the caller has to decide on.
#[derive(Debug)]
pub enum Event {
    /// The connection no longer carries the session, and is detached. The caller has to drop it.
    Detached(DetachCause),
    /// The anchor has answered the hello of a new session: it can be resumed from now on.
    Confirmed(ResumptionSecrets),
    /// The program's bytes cannot be read. The session goes on until the caller ends it.
    SourceFailed(io::Error),
    /// The program takes no more bytes. The session goes on until the caller ends it.
    SinkFailed(io::Error),
    /// The session is over for both sides, and all that was received has been passed on. The end is that of the other
    /// side, or this side's if the other side broke the protocol.
    Over(EndReason),
}

/// The reason why a connection no longer carries a session.
#[derive(Debug)]
pub enum DetachCause {
    /// The other side has closed the connection.
    Closed,
    /// The connection has failed.
    Failed(io::Error),
    /// Nothing has arrived, or been written, for too long.
    Silent,
    /// The other side has announced that it drops the connection.
    ByPeer(DetachReason),
    /// The handshake of a new session has failed.
    Refused(HandshakeError),
}

/// One side of a session, with the bytes that are under way between its streams.
#[derive(Debug)]
pub struct Driver {
    session: Session,
    side: Side,
    /// The rest of the handshake of a new session, after the client's proof.
    handshake: Option<Box<ClientHandshake>>,
    writer: Writer,
    has_source_ended: bool,
    sink: Sink,
    timer: Option<Pin<Box<Sleep>>>,
    /// The deadline for writing the last frames; `None` until the session is over.
    final_frames_deadline: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sink {
    Open,
    Unflushed,
    Ended,
}

impl Driver {
    /// Creates a driver without a connection.
    pub fn new(session: Session, side: Side) -> Self {
        Self {
            session,
            side,
            handshake: None,
            writer: Writer::default(),
            has_source_ended: false,
            sink: Sink::Open,
            timer: None,
            final_frames_deadline: None,
        }
    }

    /// Returns the session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the session, to end it or to change its windows.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Attaches a connection after its handshake, and displaces an older one.
    ///
    /// If the other side expects bytes that are not kept, it is sent an END, and the session is [over](Event::Over).
    pub fn attach<S>(&mut self, stream: S, output: HandshakeOutput<'_>) -> Attachment<S> {
        let now = Instant::now().into_std();
        self.handshake = None;
        self.writer = Writer::new(output.answer);
        let attachment = self.session.attach(output.received, now);
        self.session.receive(attachment, output.rest, now);
        Attachment { stream, attachment }
    }

    /// Attaches the connection of a new session after the client's [proof](ClientHandshake::is_proved). Frames are sent
    /// before the anchor's answer, because the anchor first connects to its target. The caller limits the time until
    /// [`Event::Confirmed`].
    pub fn attach_early<S>(&mut self, stream: S, mut handshake: Box<ClientHandshake>) -> Attachment<S> {
        let output = HandshakeOutput {
            answer: handshake.take_output(),
            ..HandshakeOutput::default()
        };
        let attachment = self.attach(stream, output);
        self.handshake = Some(handshake);
        attachment
    }

    /// Detaches the connection, and returns the unwritten frames, of which the first may be incomplete. `None` if a
    /// frame's bytes are not kept, so that the other side could not parse the rest.
    pub fn detach(&mut self) -> Option<Vec<u8>> {
        let rest = std::mem::take(&mut self.writer).rest(&self.session);
        if let Some(attachment) = self.session.attachment() {
            self.session.detach(attachment);
        }
        self.handshake = None;
        rest
    }

    /// Returns the buffers' capacity in bytes: for unacknowledged, undelivered and unwritten bytes.
    pub fn memory(&self) -> usize {
        self.session.memory() + self.writer.memory()
    }

    /// Moves bytes until the caller has to decide. Also without a connection, the program is read up to the window, and
    /// gets the bytes received before.
    ///
    /// Is cancel-safe: no byte is lost.
    ///
    /// The program is ssh's stdin and stdout, or a TCP connection to sshd. Its bytes and its EOF go into the session;
    /// the session's bytes are written to it, and it is shut down after the last one.
    pub async fn run<S, P>(&mut self, mut attachment: Option<&mut Attachment<S>>, program: &mut P) -> Event
    where
        S: AsyncRead + AsyncWrite + Unpin,
        P: AsyncRead + AsyncWrite + Unpin,
    {
        loop {
            let event = poll_fn(|context| self.poll(context, attachment.as_deref_mut(), program)).await;
            // The session is over: a lost connection no longer matters; go on passing received bytes to the program.
            if !(matches!(event, Event::Detached(_)) && self.session.is_over()) {
                return event;
            }
        }
    }

    fn poll<S, P>(
        &mut self,
        context: &mut Context<'_>,
        mut attachment: Option<&mut Attachment<S>>,
        program: &mut P,
    ) -> Poll<Event>
    where
        S: AsyncRead + AsyncWrite + Unpin,
        P: AsyncRead + AsyncWrite + Unpin,
    {
        // Tokio's cooperative budget ends this loop.
        loop {
            let mut attached = attachment
                .as_deref_mut()
                .filter(|attached| self.session.attachment() == Some(attached.attachment));
            let mut has_moved = false;
            if let Some(attached) = &mut attached {
                has_moved |= moved!(self.poll_receive(context, attached, program));
                // Before the next read or write: the other side closes next, and they would only report the close.
                if let Some(event) = self.detach_if_peer_leaves(attached.attachment) {
                    return Poll::Ready(event);
                }
            }
            has_moved |= moved!(self.poll_sink(context, program));
            has_moved |= moved!(self.poll_source(context, program));
            if self.side == Side::Client && self.session.is_complete() {
                self.session.end(EndReason::Completed);
            }
            if let Some(attached) = &mut attached {
                has_moved |= moved!(self.poll_transmit(context, attached));
            }
            if let Some(end) = self.over() {
                return Poll::Ready(Event::Over(end));
            }
            if has_moved {
                continue;
            }
            if let Some(event) = attached.and_then(|attached| self.detach_if_dead(attached.attachment)) {
                return Poll::Ready(event);
            }
            if self.poll_deadline(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Writes the session's bytes to the program.
    fn poll_sink<W>(&mut self, context: &mut Context<'_>, sink: &mut W) -> Poll<Result<(), Event>>
    where
        W: AsyncWrite + Unpin,
    {
        if self.sink == Sink::Ended {
            return Poll::Pending;
        }
        let result = ready!(self.poll_pass(context, Pin::new(sink)));
        Poll::Ready(result.map_err(|error| {
            self.sink = Sink::Ended;
            Event::SinkFailed(error)
        }))
    }

    fn poll_pass(&mut self, context: &mut Context<'_>, sink: Pin<&mut impl AsyncWrite>) -> Poll<io::Result<()>> {
        let bytes = self.session.readable();
        if !bytes.is_empty() {
            let written = ready!(sink.poll_write(context, bytes))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.session.consume(written, Instant::now().into_std());
            self.sink = Sink::Unflushed;
        } else if self.session.is_at_fin() {
            ready!(sink.poll_shutdown(context))?;
            self.session.consume_fin(Instant::now().into_std());
            self.sink = Sink::Ended;
        } else if self.sink == Sink::Unflushed {
            ready!(sink.poll_flush(context))?;
            self.sink = Sink::Open;
        } else {
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads from the program into the session, up to what one write carries. Larger writes are less work for
    /// everything on the path, including a proxy.
    fn poll_source<R>(&mut self, context: &mut Context<'_>, source: &mut R) -> Poll<Result<(), Event>>
    where
        R: AsyncRead + Unpin,
    {
        let mut gathered = 0;
        while gathered < MAX_GATHERED && !self.has_source_ended && self.session.free() > 0 {
            match poll_take(context, source, &mut self.session) {
                Poll::Pending => break,
                Poll::Ready(Err(error)) => {
                    self.has_source_ended = true;
                    return Poll::Ready(Err(Event::SourceFailed(error)));
                }
                Poll::Ready(Ok(0)) => {
                    self.has_source_ended = true;
                    self.session.finish();
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Ok(taken)) => gathered += taken,
            }
        }
        if gathered > 0 {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// Writes the session's frames to the connection.
    fn poll_transmit<S>(&mut self, context: &mut Context<'_>, attachment: &mut Attachment<S>) -> Poll<Result<(), Event>>
    where
        S: AsyncWrite + Unpin,
    {
        let stream = (&mut attachment.stream, attachment.attachment);
        let result = ready!(self.writer.poll(context, stream, &mut self.session));
        Poll::Ready(result.map_err(|error| {
            self.detach();
            Event::Detached(DetachCause::Failed(error))
        }))
    }

    /// Returns why the session has ended, once all bytes are passed on, and the last frames are written or late.
    fn over(&mut self) -> Option<EndReason> {
        if !self.session.is_over() {
            return None;
        }
        let has_said = self.session.attachment().is_none() || self.writer.is_written();
        let final_frames_deadline = *self
            .final_frames_deadline
            .get_or_insert_with(|| Instant::now() + FINAL_FRAMES_TIMEOUT);
        let is_over = self.is_passed_on() && (has_said || final_frames_deadline <= Instant::now());
        let end = self.session.ended().or(self.session.ending());
        end.filter(|_| is_over)
    }

    /// Returns whether the program has taken all that was received.
    fn is_passed_on(&self) -> bool {
        match self.sink {
            Sink::Ended => true,
            Sink::Unflushed => false,
            Sink::Open => self.session.readable().is_empty() && !self.session.is_at_fin(),
        }
    }

    /// Detaches the connection if the other side has announced that it drops it.
    fn detach_if_peer_leaves(&mut self, attachment: AttachmentId) -> Option<Event> {
        let now = Instant::now().into_std();
        let AttachmentState::Going(going) = self.session.link_state(attachment, now) else {
            return None;
        };
        self.detach();
        Some(Event::Detached(DetachCause::ByPeer(going)))
    }

    /// Detaches the connection if nothing has arrived on it, or been written to it, for too long.
    fn detach_if_dead(&mut self, attachment: AttachmentId) -> Option<Event> {
        let now = Instant::now().into_std();
        let is_stuck = !self.writer.is_written() && self.session.stuck_at().is_some_and(|at| at <= now);
        let unlinked = match self.session.link_state(attachment, now) {
            // The anchor may still be connecting to the target.
            _ if self.handshake.is_some() => return None,
            AttachmentState::Dead => DetachCause::Silent,
            AttachmentState::Alive if is_stuck => DetachCause::Silent,
            AttachmentState::Going(_) | AttachmentState::Alive | AttachmentState::Detached => return None,
        };
        self.detach();
        Some(Event::Detached(unlinked))
    }

    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let of_session = match &self.handshake {
            Some(_) => None,
            None if self.writer.is_written() => self.session.deadline(),
            None => self.session.stuck_at(),
        };
        let of_session = of_session.map(Instant::from_std);
        // Until the program has taken all bytes, no deadline ends the session.
        let final_frames = self.final_frames_deadline.filter(|_| self.is_passed_on());
        let Some(deadline) = of_session.into_iter().chain(final_frames).min() else {
            return Poll::Pending;
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        timer.as_mut().poll(context)
    }
}

/// The number of the program's bytes that are gathered before a write: a quarter of the default window, half of the
/// bytes after which the other side acknowledges at once.
const MAX_GATHERED: usize = 512 * 1024;
/// The timeout for writing the last frames: a side that has ended the session may no longer read.
const FINAL_FRAMES_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads from the program into the session, up to the free space. Returns the number of bytes; 0 is the EOF.
fn poll_take<R>(context: &mut Context<'_>, source: &mut R, session: &mut Session) -> Poll<io::Result<usize>>
where
    R: AsyncRead + Unpin,
{
    if let Some(spare) = session.spare(MAX_READ) {
        let mut read = ReadBuf::new(spare);
        let result = ready!(Pin::new(source).poll_read(context, &mut read));
        let count = read.filled().len();
        session.fill(count);
        return Poll::Ready(result.map(|()| count));
    }
    let mut scratch = [MaybeUninit::uninit(); MAX_FIRST_READ];
    let free = session.free().min(MAX_FIRST_READ);
    let mut read = ReadBuf::uninit(scratch.get_mut(..free).unwrap_or_default());
    let result = ready!(Pin::new(source).poll_read(context, &mut read));
    Poll::Ready(result.map(|()| session.write(read.filled())))
}

/// The maximum number of bytes of a read in bulk.
const MAX_READ: usize = 128 * 1024;
/// The maximum number of bytes of a read while nothing is kept: the capacity of a pipe.
const MAX_FIRST_READ: usize = 64 * 1024;

#[cfg(test)]
mod tests;
