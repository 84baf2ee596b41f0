//! Moves the bytes of one side of a session between its program and the connection that carries it now.
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

/// Notes that a step has moved something. An event returns at once.
macro_rules! moved {
    ($step:expr) => {
        match $step {
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(event)) => return Poll::Ready(event),
            Poll::Pending => false,
        }
    };
}

/// Which side of the session it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Beside ssh. It ends the session once both streams are complete.
    Client,
    /// Beside sshd.
    Anchor,
}

/// A connection that carries the session.
#[derive(Debug)]
pub struct Attachment<S> {
    /// Its stream.
    pub stream: S,
    /// Its number.
    pub attachment: AttachmentId,
}

/// The result of the handshake of a connection.
#[derive(Debug, Default)]
pub struct HandshakeOutput<'a> {
    /// This side's answer, which is sent before the first frame. The offset in it has to be the session's
    /// [`received`](Session::received) of the same step.
    pub answer: Vec<u8>,
    /// The offset that the other side expects.
    pub received: u64,
    /// The first frames of the other side, after the handshake.
    pub rest: &'a [u8],
}

/// An event that the caller has to decide on.
#[derive(Debug)]
pub enum Event {
    /// The connection carries the session no more, and is detached. It is to be dropped.
    Detached(DetachCause),
    /// The anchor has answered the hello of a new session: it can be resumed from now on.
    Confirmed(ResumptionSecrets),
    /// The program's bytes cannot be read. The session goes on until the caller ends it.
    SourceFailed(io::Error),
    /// The program takes no more bytes. The session goes on until the caller ends it.
    SinkFailed(io::Error),
    /// Both sides have said that the session is over, and all that was received has been passed on. The end is that of
    /// the other side, or [`EndReason::Malformed`] if the other side broke the protocol.
    Over(EndReason),
}

/// Why a connection carries a session no more.
#[derive(Debug)]
pub enum DetachCause {
    /// The other side has closed it.
    Closed,
    /// It has failed.
    Failed(io::Error),
    /// Nothing came for too long.
    Silent,
    /// The other side drops it.
    ByPeer(DetachReason),
    /// The handshake of a new session has failed.
    Refused(HandshakeError),
}

/// One side of a session with what is under way between its streams.
#[derive(Debug)]
pub struct Driver {
    session: Session,
    side: Side,
    /// The rest of the handshake of a new session, after the client's proof.
    opening: Option<Box<ClientHandshake>>,
    writer: Writer,
    has_source_ended: bool,
    sink: Sink,
    timer: Option<Pin<Box<Sleep>>>,
    /// When the last frames are given up, once the session is over.
    final_frames_deadline: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sink {
    Open,
    Unflushed,
    Ended,
}

impl Driver {
    /// A driver without a connection.
    pub fn new(session: Session, side: Side) -> Self {
        Self {
            session,
            side,
            opening: None,
            writer: Writer::default(),
            has_source_ended: false,
            sink: Sink::Open,
            timer: None,
            final_frames_deadline: None,
        }
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The session, to end it or to change its windows.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Lets a connection carry the session, after the handshake. An older one is displaced.
    ///
    /// If the other side expects what is not kept, the connection says so, and the session is [over](Event::Over).
    pub fn attach<S>(&mut self, stream: S, output: HandshakeOutput<'_>) -> Attachment<S> {
        let now = Instant::now().into_std();
        self.opening = None;
        self.writer = Writer::new(output.answer);
        let attachment = self.session.attach(output.received, now);
        self.session.receive(attachment, output.rest, now);
        Attachment { stream, attachment }
    }

    /// Lets a connection carry a new session from the client's [proof](ClientHandshake::is_proved) on: frames go out before the
    /// anchor has answered, which takes as long as the anchor's connection to its target. The caller bounds that time, up
    /// to [`Event::Confirmed`].
    pub fn attach_early<S>(&mut self, stream: S, mut opening: Box<ClientHandshake>) -> Attachment<S> {
        let output = HandshakeOutput {
            answer: opening.take_output(),
            ..HandshakeOutput::default()
        };
        let link = self.attach(stream, output);
        self.opening = Some(opening);
        link
    }

    /// Detaches the connection, and returns what was still to be written to it: frames, the first of them perhaps in part.
    /// `None`: nothing that follows would be understood.
    pub fn detach(&mut self) -> Option<Vec<u8>> {
        let rest = std::mem::take(&mut self.writer).rest(&self.session);
        if let Some(attachment) = self.session.attachment() {
            self.session.detach(attachment);
        }
        self.opening = None;
        rest
    }

    /// The capacity in bytes of the buffers: what is not acknowledged, received and not passed on, and to be written.
    pub fn memory(&self) -> usize {
        self.session.memory() + self.writer.memory()
    }

    /// Moves bytes until there is something to decide. Without a connection the session takes what the program sends, up
    /// to its window, and passes on what it has received.
    ///
    /// It may be dropped at any time and called again: no byte is lost.
    ///
    /// The program is ssh by stdin and stdout, or sshd by a TCP connection: what is read of it goes into the session, and its
    /// end is the end of that stream; the session's bytes are written to it, and it is shut down at their end.
    pub async fn run<S, P>(&mut self, mut link: Option<&mut Attachment<S>>, program: &mut P) -> Event
    where
        S: AsyncRead + AsyncWrite + Unpin,
        P: AsyncRead + AsyncWrite + Unpin,
    {
        loop {
            let event = poll_fn(|context| self.poll(context, link.as_deref_mut(), program)).await;
            // The session is over: a lost connection no longer matters; go on passing received bytes to the program.
            if !(matches!(event, Event::Detached(_)) && self.session.is_over()) {
                return event;
            }
        }
    }

    fn poll<S, P>(
        &mut self,
        context: &mut Context<'_>,
        mut link: Option<&mut Attachment<S>>,
        program: &mut P,
    ) -> Poll<Event>
    where
        S: AsyncRead + AsyncWrite + Unpin,
        P: AsyncRead + AsyncWrite + Unpin,
    {
        // Tokio's cooperative budget ends this loop.
        loop {
            let mut link = link
                .as_deref_mut()
                .filter(|link| self.session.attachment() == Some(link.attachment));
            let mut has_moved = false;
            if let Some(link) = &mut link {
                has_moved |= moved!(self.poll_receive(context, link, program));
                // At once: the other side closes the connection next, and a read or a write would only say that.
                if let Some(event) = self.detach_if_peer_leaves(link.attachment) {
                    return Poll::Ready(event);
                }
            }
            has_moved |= moved!(self.poll_sink(context, program));
            has_moved |= moved!(self.poll_source(context, program));
            if self.side == Side::Client && self.session.is_complete() {
                self.session.end(EndReason::Completed);
            }
            if let Some(link) = &mut link {
                has_moved |= moved!(self.poll_transmit(context, link));
            }
            if let Some(end) = self.over() {
                return Poll::Ready(Event::Over(end));
            }
            if has_moved {
                continue;
            }
            if let Some(event) = link.and_then(|link| self.detach_if_dead(link.attachment)) {
                return Poll::Ready(event);
            }
            if self.poll_deadline(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// From the session to the program.
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

    /// From the program into the session: what the program has sent so far, up to what one write carries. Each write to the
    /// connection is a piece of work for all that is on the way, a proxy among it.
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

    /// From the session to the connection.
    fn poll_transmit<S>(&mut self, context: &mut Context<'_>, link: &mut Attachment<S>) -> Poll<Result<(), Event>>
    where
        S: AsyncWrite + Unpin,
    {
        let stream = (&mut link.stream, link.attachment);
        let result = ready!(self.writer.poll(context, stream, &mut self.session));
        Poll::Ready(result.map_err(|error| {
            self.detach();
            Event::Detached(DetachCause::Failed(error))
        }))
    }

    /// The end, once nothing is left to say and to pass on.
    fn over(&mut self) -> Option<EndReason> {
        if !self.session.is_over() {
            return None;
        }
        let has_said = self.session.attachment().is_none() || self.writer.is_written();
        let final_frames_deadline = *self
            .final_frames_deadline
            .get_or_insert_with(|| Instant::now() + FINAL_FRAMES_TIMEOUT);
        let is_passed_on =
            self.sink == Sink::Ended || (self.session.readable().is_empty() && !self.session.is_at_fin());
        let is_over =
            is_passed_on && self.sink != Sink::Unflushed && (has_said || final_frames_deadline <= Instant::now());
        let end = self.session.ended().or(self.session.ending());
        end.filter(|_| is_over)
    }

    /// Detaches the connection if the other side has said that it drops it.
    fn detach_if_peer_leaves(&mut self, attachment: AttachmentId) -> Option<Event> {
        let now = Instant::now().into_std();
        let AttachmentState::Going(going) = self.session.link_state(attachment, now) else {
            return None;
        };
        self.detach();
        Some(Event::Detached(DetachCause::ByPeer(going)))
    }

    /// Detaches the connection if nothing comes from it or goes out for too long.
    fn detach_if_dead(&mut self, attachment: AttachmentId) -> Option<Event> {
        let now = Instant::now().into_std();
        let is_stuck = !self.writer.is_written() && self.session.stuck_at().is_some_and(|at| at <= now);
        let unlinked = match self.session.link_state(attachment, now) {
            // The anchor may still be on its way to the target.
            _ if self.opening.is_some() => return None,
            AttachmentState::Dead => DetachCause::Silent,
            AttachmentState::Alive if is_stuck => DetachCause::Silent,
            AttachmentState::Going(_) | AttachmentState::Alive | AttachmentState::Detached => return None,
        };
        self.detach();
        Some(Event::Detached(unlinked))
    }

    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let of_session = match &self.opening {
            Some(_) => None,
            None if self.writer.is_written() => self.session.deadline(),
            None => self.session.stuck_at(),
        };
        let of_session = of_session.map(Instant::from_std);
        let Some(deadline) = of_session.into_iter().chain(self.final_frames_deadline).min() else {
            return Poll::Pending;
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        timer.as_mut().poll(context)
    }
}

/// The bytes of the program that are read before they are written: half of a window, so that the other side has the other
/// half to pass on and to acknowledge meanwhile.
const MAX_GATHERED: usize = 512 * 1024;
/// Longest wait to write the last frames: a side that has ended the session may not read any more.
const FINAL_FRAMES_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads from the program into the session, as much as is free. Returns how many bytes: 0 at their end.
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

/// Bytes of one read in bulk.
const MAX_READ: usize = 128 * 1024;
/// Bytes of one read while nothing is kept: as many as a pipe holds.
const MAX_FIRST_READ: usize = 64 * 1024;

#[cfg(test)]
mod tests;
