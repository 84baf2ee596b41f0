//! One side of a session: both streams, and the connection that carries them now. Client and anchor are alike.

mod buffer;
mod frame_budget;
mod incoming;
mod outgoing;
pub(crate) mod send_queue;

use std::io::IoSlice;
use std::time::Instant;

use self::frame_budget::FrameBudget;
use self::incoming::{Incoming, Taking};
use self::outgoing::Outgoing;
use super::frame::{Decoder, Frame, Output, Piece, ProtocolError};
use super::liveness::{Liveness, Timing};
use super::options::{Options, bounded};
use super::reason::{DetachReason, EndReason, LocalEnd};

/// One side of a session.
///
/// Bytes that the program beside it has sent are [written](Self::write) into the session, and what the session has
/// [received](Self::readable) is passed on to the program. A connection is [attached](Self::attach) once both sides have proved the session; its bytes
/// are [received](Self::receive), and what it has to carry is [transmitted](Self::transmit).
#[derive(Debug)]
pub struct Session {
    outgoing: Outgoing,
    incoming: Incoming,
    link: Option<AttachmentLiveness>,
    attachments: u64,
    timing: Timing,
    /// The end that this side has decided on.
    ending: Option<LocalEnd>,
    /// The end that the other side has sent.
    ended: Option<EndReason>,
    violation: Option<ProtocolError>,
}

impl Session {
    /// A session whose streams are empty, without a connection.
    pub fn new(options: Options) -> Self {
        let window = bounded(options.window);
        Self {
            outgoing: Outgoing::new(window),
            incoming: Incoming::new(window),
            link: None,
            attachments: 0,
            timing: options.timing,
            ending: None,
            ended: None,
            violation: None,
        }
    }

    /// The bytes that [`write`](Self::write) takes now. With 0 the source is not to be read.
    pub fn free(&self) -> usize {
        if self.ending.is_some() { 0 } else { self.outgoing.free() }
    }

    /// Takes bytes of the source, as many as is free, and returns how many.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let bytes = bytes.get(..self.free()).unwrap_or(bytes);
        self.outgoing.push(bytes)
    }

    /// Memory for the source to write into, at most that much: it spares a copy. `None`: its bytes are to be
    /// [written](Self::write), as they are while nothing is kept, so that an idle session has no memory.
    pub fn spare(&mut self, max: usize) -> Option<&mut [u8]> {
        let max = self.free().min(max);
        self.outgoing.spare(max)
    }

    /// The source has put so many bytes into [`spare`](Self::spare).
    pub fn fill(&mut self, bytes: usize) {
        self.outgoing.fill(bytes);
    }

    /// The source has ended.
    pub fn finish(&mut self) {
        if self.ending.is_none() {
            self.outgoing.finish();
        }
    }

    /// Returns the bytes to be passed on next; empty if there are none now.
    pub fn readable(&self) -> &[u8] {
        self.incoming.readable()
    }

    /// So many bytes of [`readable`](Self::readable) were passed on, and will not be asked for again.
    pub fn consume(&mut self, bytes: usize, now: Instant) {
        self.incoming.pass(bytes, now);
    }

    /// Returns whether the end of the stream is to be passed on next.
    pub fn is_at_fin(&self) -> bool {
        self.incoming.is_at_fin()
    }

    /// The end of the stream was passed on.
    pub fn consume_fin(&mut self, now: Instant) {
        self.incoming.pass_fin(now);
    }

    /// Returns whether both streams have ended, all was passed on here and acknowledged by the other side.
    pub fn is_complete(&self) -> bool {
        self.incoming.is_complete() && self.outgoing.is_acknowledged()
    }

    /// Returns whether the other side has passed something on: its program knows the session.
    pub fn is_confirmed(&self) -> bool {
        self.outgoing.is_confirmed()
    }

    /// The offset of the next byte that is expected, for the claim of a new connection.
    pub fn received(&self) -> u64 {
        self.incoming.expected()
    }

    /// Changes the windows, as memory allows. What was asked for before may still come.
    pub fn set_window(&mut self, window: u32, now: Instant) {
        if self.ended.is_none() && self.ending.is_none() {
            self.outgoing.set_window(bounded(window));
            self.incoming.set_window(bounded(window), now);
        }
    }

    /// The bytes of memory of both streams.
    pub fn memory(&self) -> usize {
        self.outgoing.memory() + self.incoming.memory()
    }

    /// Lets a new connection carry the session, from the offset that the other side expects. An older one is displaced:
    /// its bytes are not received any more. What this side claims in the handshake, its [`received`](Self::received), has
    /// to be read in the same step, or an older connection may bring more in between.
    ///
    /// If the other side expects what is not kept, or was never sent, that is a [`violation`](Self::violation): the session
    /// is lost, and the connection says so.
    pub fn attach(&mut self, received: u64, now: Instant) -> AttachmentId {
        self.attachments += 1;
        self.link = Some(AttachmentLiveness {
            decoder: Decoder::default(),
            liveness: Liveness::new(self.timing, now),
            budget: FrameBudget::new(now),
            pong: None,
            left: None,
            has_sent_last: false,
        });
        self.incoming.resume(now);
        self.outgoing.carry_all();
        if self.ended.is_none()
            && !self.is_aborted()
            && let Err(violation) = self.outgoing.resume(received)
        {
            self.abort_with(violation, EndReason::OutOfSync);
        }
        AttachmentId(self.attachments)
    }

    /// The connection that carries the session.
    pub fn attachment(&self) -> Option<AttachmentId> {
        self.link.as_ref().map(|_| AttachmentId(self.attachments))
    }

    /// The connection is gone, unless another one has displaced it.
    pub fn detach(&mut self, attachment: AttachmentId) {
        if self.attachment() == Some(attachment) {
            self.link = None;
            self.outgoing.carry_all();
        }
    }

    /// Begins the session again: its anchor never answered, so it does not have it.
    ///
    /// # Errors
    /// The other side has acknowledged or sent bytes.
    pub fn restart(&mut self) -> Result<(), ProtocolError> {
        self.link = None;
        self.outgoing.carry_all();
        self.incoming.restart()?;
        self.outgoing.restart()
    }

    /// Takes bytes of a connection. Those of one that was displaced are dropped, and so is all after an end.
    ///
    /// A fault in them ends the session; see [`violation`](Self::violation).
    pub fn receive(&mut self, attachment: AttachmentId, bytes: &[u8], now: Instant) {
        self.receive_and_pass((attachment, bytes), now, &mut |_| 0);
    }

    /// Does the same, and gives the bytes of the stream to `pass` first, which returns how many of them it has passed on to
    /// the program: it spares two copies. The others are [readable](Self::readable). It is asked only after all that was, and
    /// once for the bytes of many frames.
    pub fn receive_and_pass(
        &mut self,
        (attachment, mut bytes): (AttachmentId, &[u8]),
        now: Instant,
        pass: &mut dyn FnMut(&[IoSlice<'_>]) -> usize,
    ) {
        let mut taking = Taking::new(now, pass);
        let result = loop {
            let Some(link) = self.carrying(attachment) else {
                return taking.take(&mut self.incoming);
            };
            let applied = match link.decoder.next(&mut bytes) {
                Ok(Some(Piece::Data { offset, bytes })) => taking.accept(&mut self.incoming, offset, bytes),
                Ok(Some(Piece::Frame(frame))) => {
                    // The bytes before it are taken first.
                    taking.take(&mut self.incoming);
                    self.apply(frame)
                }
                Ok(None) => break Ok(()),
                Err(violation) => Err(violation),
            };
            if applied.is_err() {
                break applied;
            }
        };
        taking.take(&mut self.incoming);
        if let Err(violation) = result {
            self.abort_with(violation, EndReason::Malformed);
        }
        let (is_outstanding, sent) = (self.outgoing.is_outstanding(), self.outgoing.sent());
        if let Some(link) = &mut self.link {
            link.liveness.heard(is_outstanding, now);
            let frames = link.decoder.take_frames();
            if frames > 0 && !link.budget.charge(frames, sent, now) {
                self.abort_with(ProtocolError::Flood, EndReason::Malformed);
            }
        }
    }

    /// Appends frames for a connection, those of a stream only up to `max` bytes in all. When it appends nothing,
    /// nothing is left to send until something happens.
    ///
    /// An output that does not [copy](Output::COPIES) reads the bytes of the stream where they are
    /// [kept](Self::kept), and says what the connection [was given](Self::mark_sent).
    pub fn transmit<O: Output>(&mut self, attachment: AttachmentId, out: &mut O, max: usize, now: Instant) {
        let Some(link) = self.link.as_mut().filter(|_| attachment.0 == self.attachments) else {
            return;
        };
        if link.has_sent_last {
            return;
        }
        if let Some(ending) = self.ending.filter(|ending| !ending.is_orderly) {
            out.frame(Frame::End(ending.end));
            link.has_sent_last = true;
            return;
        }
        if let Some(number) = link.pong.take() {
            out.frame(Frame::Pong(number));
        }
        let has_data = self.outgoing.next(1).is_some();
        if self.incoming.due().is_some_and(|due| due <= now) || (has_data && self.incoming.has_news()) {
            let (offset, window) = self.incoming.acknowledge();
            out.frame(Frame::Ack { offset, window });
        }
        if self.outgoing.send(out, max) {
            link.liveness.sent(now);
        }
        let is_sent = self.outgoing.is_sent();
        if let Some(number) = link.liveness.ping(now) {
            out.frame(Frame::Ping(number));
        }
        if let Some(ending) = self.ending.filter(|_| is_sent) {
            out.frame(Frame::End(ending.end));
            link.has_sent_last = true;
        }
    }

    /// The bytes of frames that are being written, so many from an offset on. `None`: they are not kept, and the connection
    /// is of no use any more.
    pub fn kept(&self, offset: u64, count: usize) -> Option<(&[u8], &[u8])> {
        self.outgoing.kept(offset, count)
    }

    /// The connection was given the stream up to an offset. The other side may acknowledge it from now on.
    pub fn mark_sent(&mut self, offset: u64) {
        self.outgoing.mark_sent(offset);
    }

    /// Ends the session after what was written so far. Nothing more is received.
    pub fn end(&mut self, end: EndReason) {
        if self.ending.is_none() {
            self.ending = Some(LocalEnd { end, is_orderly: true });
            self.incoming.close();
        }
    }

    /// Ends the session at once. What was written and not sent is dropped.
    pub fn abort(&mut self, end: EndReason) {
        if !self.is_aborted() {
            self.ending = Some(LocalEnd { end, is_orderly: false });
            self.incoming.close();
            self.outgoing.abandon();
        }
    }

    /// The end that the other side has sent. What was received before it is still to be passed on.
    pub fn ended(&self) -> Option<EndReason> {
        self.ended
    }

    /// The end that this side has decided on, or has answered the other's with.
    pub fn ending(&self) -> Option<EndReason> {
        self.ending.map(|ending| ending.end)
    }

    /// The fault of the other side that has ended the session.
    pub fn violation(&self) -> Option<ProtocolError> {
        self.violation
    }

    /// Returns whether both sides have said that the session is over: nothing is left to send or to receive.
    pub fn is_over(&self) -> bool {
        let is_heard = self.ended.is_some() || self.violation.is_some();
        is_heard && self.link.as_ref().is_none_or(|link| link.has_sent_last)
    }

    /// The state of a connection.
    pub fn link_state(&self, attachment: AttachmentId, now: Instant) -> AttachmentState {
        match &self.link {
            Some(link) if attachment.0 == self.attachments => match link.left {
                Some(going) => AttachmentState::Going(going),
                None if link.liveness.is_dead(now) => AttachmentState::Dead,
                None => AttachmentState::Alive,
            },
            _ => AttachmentState::Detached,
        }
    }

    /// When to [transmit](Self::transmit) and to look at the [connection](Self::link_state), if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        let link = self.link.as_ref().filter(|link| !link.has_sent_last)?;
        self.incoming.due().into_iter().chain(link.liveness.deadline()).min()
    }

    /// When the connection is dead if it takes nothing more: what is due cannot be [transmitted](Self::transmit).
    pub fn stuck_at(&self) -> Option<Instant> {
        self.link.as_ref().map(|link| link.liveness.stuck_at())
    }

    /// The connection, if it is the one that carries the session and the other side has not said its last on it.
    fn carrying(&mut self, attachment: AttachmentId) -> Option<&mut AttachmentLiveness> {
        let may_receive = attachment.0 == self.attachments && self.ended.is_none() && self.violation.is_none();
        self.link.as_mut().filter(|link| may_receive && link.left.is_none())
    }

    fn apply(&mut self, frame: Frame) -> Result<(), ProtocolError> {
        match frame {
            Frame::Fin { offset } => self.incoming.finish(offset)?,
            // Abandoned bytes need no acknowledgement.
            Frame::Ack { .. } if self.is_aborted() => {}
            Frame::Ack { offset, window } => self.outgoing.acknowledge(offset, window)?,
            Frame::End(end) => self.end_received(end)?,
            Frame::Ping(number) => self.on_link(|link| link.pong = Some(number)),
            Frame::Pong(number) => self.on_link(|link| link.liveness.answered(number)),
            Frame::Going(going) => self.on_link(|link| link.left = Some(going)),
            Frame::Keeps { window } => self.incoming.set_kept(bounded(window)),
            Frame::Proof { .. } | Frame::Attached { .. } => return Err(ProtocolError::Order),
        }
        Ok(())
    }

    fn on_link(&mut self, change: impl FnOnce(&mut AttachmentLiveness)) {
        if let Some(link) = &mut self.link {
            change(link);
        }
    }

    /// The answer says the same, unless this side has decided on an end before.
    fn end_received(&mut self, end: EndReason) -> Result<(), ProtocolError> {
        // Its last acknowledgement came first. Anything else would hide that bytes are missing.
        if end == EndReason::Completed && !self.is_complete() && self.ending.is_none() {
            return Err(ProtocolError::NotDone);
        }
        self.ended = Some(end);
        self.outgoing.abandon();
        let end = self.ending.map_or(end, |ending| ending.end);
        self.ending = Some(LocalEnd { end, is_orderly: false });
        Ok(())
    }

    fn abort_with(&mut self, violation: ProtocolError, end: EndReason) {
        self.violation.get_or_insert(violation);
        self.abort(end);
    }

    fn is_aborted(&self) -> bool {
        self.ending.is_some_and(|ending| !ending.is_orderly)
    }
}

/// The number of a connection of a session, in the order in which they began to carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttachmentId(u64);

/// The state of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachmentState {
    /// There is none, or not the one that was asked about.
    Detached,
    /// It carries the session.
    Alive,
    /// Nothing has come for too long. It is to be dropped.
    Dead,
    /// The other side drops it. So should this one.
    Going(DetachReason),
}

/// The state that ends with a connection.
#[derive(Debug)]
struct AttachmentLiveness {
    decoder: Decoder,
    liveness: Liveness,
    budget: FrameBudget,
    /// The number of the last PING that was not answered yet.
    pong: Option<u64>,
    left: Option<DetachReason>,
    has_sent_last: bool,
}
