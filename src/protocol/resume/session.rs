//! One side of a session: both streams, and the connection that carries them now. It is the same for client and anchor.

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
/// The program's bytes are [written](Self::write) into the session, and [those received](Self::readable) are passed on
/// to the program. A connection is [attached](Self::attach) once both sides have proved the session; its bytes are
/// [received](Self::receive), and the session's frames are [transmitted](Self::transmit) to it.
#[derive(Debug)]
pub struct Session {
    outgoing: Outgoing,
    incoming: Incoming,
    current: Option<CurrentAttachment>,
    attachments: u64,
    timing: Timing,
    /// The end that this side sends: its own decision, or its answer to the other side's end.
    ending: Option<LocalEnd>,
    /// The end that the other side has sent.
    ended: Option<EndReason>,
    violation: Option<ProtocolError>,
}

impl Session {
    /// Creates a session with empty streams and no connection.
    pub fn new(options: Options) -> Self {
        let window = bounded(options.window);
        Self {
            outgoing: Outgoing::new(window),
            incoming: Incoming::new(window),
            current: None,
            attachments: 0,
            timing: options.timing,
            ending: None,
            ended: None,
            violation: None,
        }
    }

    /// Returns how many bytes [`write`](Self::write) takes now. At 0, the program need not be read.
    pub fn free(&self) -> usize {
        if self.ending.is_some() { 0 } else { self.outgoing.free() }
    }

    /// Takes as many of the program's bytes as there is room for, and returns how many.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let bytes = bytes.get(..self.free()).unwrap_or(bytes);
        self.outgoing.push(bytes)
    }

    /// Returns memory for the program's next bytes, at most `max`, which saves a copy. `None` if they have to be
    /// [written](Self::write), such as the first bytes after an idle time: an idle session has no memory.
    pub fn spare(&mut self, max: usize) -> Option<&mut [u8]> {
        let max = self.free().min(max);
        self.outgoing.spare(max)
    }

    /// Notes that `bytes` bytes were put into [`spare`](Self::spare).
    pub fn fill(&mut self, bytes: usize) {
        self.outgoing.fill(bytes);
    }

    /// Ends the stream to the other side.
    pub fn finish(&mut self) {
        if self.ending.is_none() {
            self.outgoing.finish();
        }
    }

    /// Returns the bytes to be passed on next; empty if there are none now.
    pub fn readable(&self) -> &[u8] {
        self.incoming.readable()
    }

    /// Notes that `bytes` bytes of [`readable`](Self::readable) were passed on.
    pub fn consume(&mut self, bytes: usize, now: Instant) {
        self.incoming.pass(bytes, now);
    }

    /// Returns whether the end of the stream has to be passed on next.
    pub fn is_at_fin(&self) -> bool {
        self.incoming.is_at_fin()
    }

    /// Notes that the end of the stream was passed on.
    pub fn consume_fin(&mut self, now: Instant) {
        self.incoming.pass_fin(now);
    }

    /// Returns whether both streams have ended, with all bytes passed on here and acknowledged by the other side.
    pub fn is_complete(&self) -> bool {
        self.incoming.is_complete() && self.outgoing.is_acknowledged()
    }

    /// Returns whether the other side has acknowledged anything: its program knows the session.
    pub fn is_confirmed(&self) -> bool {
        self.outgoing.is_confirmed()
    }

    /// Returns the offset of the next expected byte, for the claim of a new connection.
    pub fn received(&self) -> u64 {
        self.incoming.expected()
    }

    /// Returns the number of bytes of both streams so far, as far as they have come here.
    pub fn moved(&self) -> u64 {
        self.incoming.expected() + self.outgoing.length()
    }

    /// Changes the windows. Bytes that the old window permits may still arrive.
    pub fn set_window(&mut self, window: u32, now: Instant) {
        if self.ended.is_none() && self.ending.is_none() {
            self.outgoing.set_window(bounded(window));
            self.incoming.set_window(bounded(window), now);
        }
    }

    /// Returns the memory of both streams in bytes.
    pub fn memory(&self) -> usize {
        self.outgoing.memory() + self.incoming.memory()
    }

    /// Attaches a new connection, from the offset that the other side expects. It displaces an older connection, whose
    /// further bytes are dropped. Do not yield between [`received`](Self::received), for this side's claim, and this
    /// call: the old connection could still deliver bytes.
    ///
    /// If the other side expects bytes that are not kept, or were never sent, that is a [`violation`](Self::violation):
    /// the session is lost, and the other side is sent the reason.
    pub fn attach(&mut self, received: u64, now: Instant) -> AttachmentId {
        self.attachments += 1;
        self.current = Some(CurrentAttachment {
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

    /// Returns the connection that carries the session, if any.
    pub fn attachment(&self) -> Option<AttachmentId> {
        self.current.as_ref().map(|_| AttachmentId(self.attachments))
    }

    /// Detaches the connection, unless another one has displaced it.
    pub fn detach(&mut self, attachment: AttachmentId) {
        if self.attachment() == Some(attachment) {
            self.current = None;
            self.outgoing.carry_all();
        }
    }

    /// Starts the session again on a new connection, because no anchor has answered yet.
    ///
    /// # Errors
    /// The other side has acknowledged or sent bytes.
    pub fn restart(&mut self) -> Result<(), ProtocolError> {
        self.current = None;
        self.outgoing.carry_all();
        self.incoming.restart()?;
        self.outgoing.restart()
    }

    /// Receives bytes of a connection. Bytes of a displaced connection, and after an END, are dropped.
    ///
    /// A protocol error ends the session; see [`violation`](Self::violation).
    pub fn receive(&mut self, attachment: AttachmentId, bytes: &[u8], now: Instant) {
        self.receive_and_pass((attachment, bytes), now, &mut |_| 0);
    }

    /// Like [`receive`](Self::receive), but offers the stream's bytes first to `pass`, which returns how many it took:
    /// this saves two copies. The rest is [readable](Self::readable). `pass` is not called while earlier bytes are
    /// readable, and is called once for the bytes of many frames.
    pub fn receive_and_pass(
        &mut self,
        (attachment, mut bytes): (AttachmentId, &[u8]),
        now: Instant,
        pass: &mut dyn FnMut(&[IoSlice<'_>]) -> usize,
    ) {
        let mut taking = Taking::new(now, pass);
        let result = loop {
            let Some(current) = self.carrying(attachment) else {
                return taking.take(&mut self.incoming);
            };
            let applied = match current.decoder.next(&mut bytes) {
                Ok(Some(Piece::Data { offset, bytes })) => taking.accept(&mut self.incoming, offset, bytes),
                Ok(Some(Piece::Frame(frame))) => {
                    // The bytes before the frame are taken first.
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
        if let Some(current) = &mut self.current {
            current.liveness.heard(is_outstanding, now);
            let frames = current.decoder.take_frames();
            if frames > 0 && !current.budget.charge(frames, sent, now) {
                self.abort_with(ProtocolError::Flood, EndReason::Malformed);
            }
        }
    }

    /// Appends frames for a connection, those of a stream only up to `max` bytes in all. If it appends nothing, there
    /// is nothing to send until the next event or [`deadline`](Self::deadline).
    ///
    /// An output that does not [copy](Output::COPIES) reads the bytes of the stream where they are [kept](Self::kept),
    /// and reports what was [written](Self::mark_sent).
    pub fn transmit<O: Output>(&mut self, attachment: AttachmentId, out: &mut O, max: usize, now: Instant) {
        let Some(current) = self.current.as_mut().filter(|_| attachment.0 == self.attachments) else {
            return;
        };
        if current.has_sent_last {
            return;
        }
        if let Some(ending) = self.ending.filter(|ending| !ending.is_orderly) {
            out.frame(Frame::End(ending.end));
            current.has_sent_last = true;
            return;
        }
        if let Some(number) = current.pong.take() {
            out.frame(Frame::Pong(number));
        }
        let has_data = self.outgoing.next(1).is_some();
        if self.incoming.due().is_some_and(|due| due <= now) || (has_data && self.incoming.has_news()) {
            let (offset, window) = self.incoming.acknowledge();
            out.frame(Frame::Ack { offset, window });
        }
        if self.outgoing.send(out, max) {
            current.liveness.sent(now);
        }
        let is_sent = self.outgoing.is_sent();
        if let Some(number) = current.liveness.ping(now) {
            out.frame(Frame::Ping(number));
        }
        if let Some(ending) = self.ending.filter(|_| is_sent) {
            out.frame(Frame::End(ending.end));
            current.has_sent_last = true;
        }
    }

    /// Returns `count` bytes of unwritten frames from an offset on. `None` if they are not kept: the connection is of
    /// no use any more.
    pub fn kept(&self, offset: u64, count: usize) -> Option<(&[u8], &[u8])> {
        self.outgoing.kept(offset, count)
    }

    /// Notes that the stream was written up to an offset, which the other side may acknowledge from now on.
    pub fn mark_sent(&mut self, offset: u64) {
        self.outgoing.mark_sent(offset);
    }

    /// Ends the session after the bytes written so far. Received bytes are dropped.
    pub fn end(&mut self, end: EndReason) {
        if self.ending.is_none() {
            self.ending = Some(LocalEnd { end, is_orderly: true });
            self.incoming.close();
        }
    }

    /// Ends the session at once. Unsent bytes are dropped.
    pub fn abort(&mut self, end: EndReason) {
        if !self.is_aborted() {
            self.ending = Some(LocalEnd { end, is_orderly: false });
            self.incoming.close();
            self.outgoing.abandon();
        }
    }

    /// Returns the end that the other side has sent. Bytes received before it still have to be passed on.
    pub fn ended(&self) -> Option<EndReason> {
        self.ended
    }

    /// Returns the end that this side sends: its own decision, or its answer to the other side's end.
    pub fn ending(&self) -> Option<EndReason> {
        self.ending.map(|ending| ending.end)
    }

    /// Returns the other side's protocol error that has ended the session.
    pub fn violation(&self) -> Option<ProtocolError> {
        self.violation
    }

    /// Returns whether the other side ended or violated the session, and the connection, if any, has this side's END.
    pub fn is_over(&self) -> bool {
        let is_heard = self.ended.is_some() || self.violation.is_some();
        is_heard && self.current.as_ref().is_none_or(|current| current.has_sent_last)
    }

    /// Returns the state of a connection.
    pub fn link_state(&self, attachment: AttachmentId, now: Instant) -> AttachmentState {
        match &self.current {
            Some(current) if attachment.0 == self.attachments => match current.left {
                Some(going) => AttachmentState::Going(going),
                None if current.liveness.is_dead(now) => AttachmentState::Dead,
                None => AttachmentState::Alive,
            },
            _ => AttachmentState::Detached,
        }
    }

    /// Returns when to [transmit](Self::transmit) and check the [connection](Self::link_state), at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        let current = self.current.as_ref().filter(|current| !current.has_sent_last)?;
        self.incoming.due().into_iter().chain(current.liveness.deadline()).min()
    }

    /// Returns when a connection counts as dead if it accepts no bytes: nothing can be [transmitted](Self::transmit).
    pub fn stuck_at(&self) -> Option<Instant> {
        self.current.as_ref().map(|current| current.liveness.stuck_at())
    }

    /// Returns the connection if it carries the session, and the other side may still send on it.
    fn carrying(&mut self, attachment: AttachmentId) -> Option<&mut CurrentAttachment> {
        let may_receive = attachment.0 == self.attachments && self.ended.is_none() && self.violation.is_none();
        self.current
            .as_mut()
            .filter(|current| may_receive && current.left.is_none())
    }

    fn apply(&mut self, frame: Frame) -> Result<(), ProtocolError> {
        match frame {
            Frame::Fin { offset } => self.incoming.finish(offset)?,
            // Abandoned bytes need no acknowledgement.
            Frame::Ack { .. } if self.is_aborted() => {}
            Frame::Ack { offset, window } => self.outgoing.acknowledge(offset, window)?,
            Frame::End(end) => self.end_received(end)?,
            Frame::Ping(number) => self.with_current(|current| current.pong = Some(number)),
            Frame::Pong(number) => self.with_current(|current| current.liveness.answered(number)),
            Frame::Going(going) => self.with_current(|current| current.left = Some(going)),
            Frame::Keeps { window } => self.incoming.set_kept(bounded(window)),
            Frame::Proof { .. } | Frame::Attached { .. } => return Err(ProtocolError::Order),
        }
        Ok(())
    }

    fn with_current(&mut self, change: impl FnOnce(&mut CurrentAttachment)) {
        if let Some(current) = &mut self.current {
            change(current);
        }
    }

    /// Answers with the same end, unless this side has decided on one before.
    fn end_received(&mut self, end: EndReason) -> Result<(), ProtocolError> {
        // All acknowledgements arrive before this END. Without the check, missing bytes would go unnoticed.
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

/// The number of a connection of a session, in the order of attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttachmentId(u64);

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachmentState {
    /// Another connection, or none, carries the session.
    Detached,
    /// It carries the session.
    Alive,
    /// Nothing has arrived for too long. The caller has to drop the connection.
    Dead,
    /// The other side drops the connection. The caller has to do so, too.
    Going(DetachReason),
}

/// The state of the session that ends with its connection.
#[derive(Debug)]
struct CurrentAttachment {
    decoder: Decoder,
    liveness: Liveness,
    budget: FrameBudget,
    /// The number of the other side's last PING, until it is answered.
    pong: Option<u64>,
    left: Option<DetachReason>,
    has_sent_last: bool,
}
