//! Encodes frames for the peer, of which it holds a header or control frames at most.

use std::io::{self, IoSlice};
use std::task::{Poll, ready};

use aws_lc_rs::rand;
use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};

use super::frame::{End, MAX_FRAME_BYTES, NORMAL, Role, advance, mask_into, with_scratch};

/// The encoder of one direction. Each write is called with `write`, which writes to the transport.
#[derive(Debug)]
pub struct Sender {
    /// The role of this end.
    role: Role,
    /// The bytes to be sent next: control frames, and the header of a data frame.
    queue: Vec<u8>,
    /// Bytes of the current data frame that are not sent yet.
    left: usize,
    /// The mask of the next byte.
    mask: [u8; 4],
    /// The control frames that wait for the end of the data frame.
    waiting: Vec<(Control, Vec<u8>)>,
    /// The content of the close frame, if it has been set.
    end: Option<End>,
    /// True if the close frame has been queued, or never will be.
    is_closed: bool,
}

impl Sender {
    /// Creates the encoder of an end with that role.
    pub fn new(role: Role) -> Self {
        Self {
            role,
            queue: Vec::new(),
            left: 0,
            mask: [0; 4],
            waiting: Vec::new(),
            end: None,
            is_closed: false,
        }
    }

    /// Queues a pong. It replaces one that is not sent yet (RFC 6455 section 5.5.3).
    pub(super) fn pong(&mut self, payload: &[u8]) {
        self.control(Control::Pong, payload);
    }

    /// Queues a ping, unless one waits.
    pub fn ping(&mut self) {
        self.control(Control::Ping, &[]);
    }

    /// Sets the content of the close frame, unless it has been set.
    pub fn set_end(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    /// Returns whether the close frame has been queued, or never will be.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Queues the close frame, after which nothing is sent. Inside a data frame there can be none: the stream then ends
    /// as a truncated one.
    pub fn close(&mut self) {
        if std::mem::replace(&mut self.is_closed, true) || self.left > 0 {
            return;
        }
        self.queue_waiting();
        let end = self.end.take().unwrap_or_else(|| End::new(NORMAL, ""));
        self.queue_control(Control::Close, &end.payload());
    }

    /// Takes at least one of the bytes.
    ///
    /// # Errors
    /// That of `write`, or `BrokenPipe` after the close frame.
    pub fn poll_write(
        &mut self,
        bytes: &[u8],
        mut write: impl FnMut(&[IoSlice<'_>]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if self.is_closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if self.left == 0 {
            self.begin(bytes.len());
        }
        loop {
            let now = bytes.get(..self.left.min(bytes.len())).unwrap_or_default();
            let written = match self.role {
                Role::Server => ready!(write(&[IoSlice::new(&self.queue), IoSlice::new(now)]))?,
                Role::Client => ready!(with_scratch(now.len(), |masked| {
                    mask_into(now, masked, self.mask);
                    write(&[IoSlice::new(&self.queue), IoSlice::new(masked)])
                }))?,
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let payload = written.saturating_sub(self.queue.len());
            self.queue.drain(..written - payload);
            if payload > 0 {
                self.left = self.left.saturating_sub(payload);
                self.mask = advance(self.mask, payload);
                return Poll::Ready(Ok(payload));
            }
        }
    }

    /// Writes the queue.
    ///
    /// # Errors
    /// That of `write`.
    pub fn poll_flush(
        &mut self,
        mut write: impl FnMut(&[IoSlice<'_>]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 {
            self.queue_waiting();
        }
        while !self.queue.is_empty() {
            match ready!(write(&[IoSlice::new(&self.queue)]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => drop(self.queue.drain(..written)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Begins a data frame of at most `offered` bytes, which is a message by itself.
    fn begin(&mut self, offered: usize) {
        self.queue_waiting();
        self.left = offered.min(MAX_FRAME_BYTES - MAX_FRAME_HEADER);
        self.queue_header(OpCode::Data(Data::Binary), self.left);
    }

    fn control(&mut self, kind: Control, payload: &[u8]) {
        if !self.is_closed {
            self.waiting.retain(|(other, _)| *other != kind);
            self.waiting.push((kind, payload.to_vec()));
        }
    }

    fn queue_waiting(&mut self) {
        // A peer that takes nothing and pings cannot make the queue grow.
        if !self.is_closed && self.queue.len() <= MAX_QUEUE_BYTES {
            for (kind, payload) in std::mem::take(&mut self.waiting) {
                self.queue_control(kind, &payload);
            }
        }
    }

    fn queue_control(&mut self, kind: Control, payload: &[u8]) {
        self.queue_header(OpCode::Control(kind), payload.len());
        let start = self.queue.len();
        self.queue.resize(start + payload.len(), 0);
        mask_into(payload, self.queue.get_mut(start..).unwrap_or_default(), self.mask);
    }

    fn queue_header(&mut self, opcode: OpCode, length: usize) {
        if self.role == Role::Client {
            // "From a strong source of entropy" (section 5.3). It fails only if the system has none.
            rand::fill(&mut self.mask).unwrap_or_default();
        }
        let header = FrameHeader {
            opcode,
            mask: (self.role == Role::Client).then_some(self.mask),
            ..FrameHeader::default()
        };
        // Writing to a Vec does not fail.
        header.format(length as u64, &mut self.queue).ok();
    }
}

/// The header of a masked frame of up to 64 KiB: 2 bytes, a length of 2, and a mask of 4 (section 5.2).
const MAX_FRAME_HEADER: usize = 8;
const MAX_QUEUE_BYTES: usize = 512;
