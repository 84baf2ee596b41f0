//! Encodes frames for the peer, of which it holds a header or control frames at most.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::mem::take;
use std::task::{Poll, ready};

use aws_lc_rs::rand;
use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};

use super::frame::{CloseFrame, MAX_FRAME_BYTES, NORMAL, Role, advance, mask_into, push_ping};

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
    /// True if a ping waits for the end of the data frame.
    has_ping: bool,
    /// The payloads of the pongs that wait for it.
    pongs: Vec<Vec<u8>>,
    /// The content of the close frame, if it has been set.
    close_frame: Option<CloseFrame>,
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
            has_ping: false,
            pongs: Vec::new(),
            close_frame: None,
            is_closed: false,
        }
    }

    /// Queues a pong.
    pub(super) fn pong(&mut self, payload: Vec<u8>) {
        push_ping(&mut self.pongs, payload);
    }

    /// Queues a ping, unless one waits.
    pub fn ping(&mut self) {
        self.has_ping = true;
    }

    /// Sets the content of the close frame, unless it has been set.
    pub fn set_close_frame(&mut self, close_frame: CloseFrame) {
        self.close_frame.get_or_insert(close_frame);
    }

    /// Returns whether the close frame has been queued, or never will be.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Queues the close frame, after which nothing is sent. Inside a data frame there can be none: the stream then ends
    /// as a truncated one.
    pub fn close(&mut self) {
        if !self.is_closed && self.left == 0 {
            self.queue_waiting();
            let close_frame = self.close_frame.take();
            let close_frame = close_frame.unwrap_or_else(|| CloseFrame::new(NORMAL, ""));
            self.queue_control(Control::Close, &close_frame.payload());
        }
        self.is_closed = true;
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
                Role::Client => ready!(MASKED.with_borrow_mut(|masked| {
                    masked.resize(now.len().max(masked.len()), 0);
                    mask_into(now, masked, self.mask);
                    let masked = masked.get(..now.len()).unwrap_or_default();
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

    /// Writes the queue. Within a data frame it writes nothing: the next bytes are the frame's, and the transport may know only
    /// the write that waits for them.
    ///
    /// # Errors
    /// That of `write`.
    pub fn poll_flush(
        &mut self,
        mut write: impl FnMut(&[IoSlice<'_>]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<()>> {
        if self.left > 0 {
            return Poll::Ready(Ok(()));
        }
        self.queue_waiting();
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

    fn queue_waiting(&mut self) {
        // A peer that takes nothing and pings cannot make the queue grow.
        if !self.is_closed && self.queue.len() <= MAX_QUEUE_BYTES {
            if take(&mut self.has_ping) {
                self.queue_control(Control::Ping, &[]);
            }
            for payload in take(&mut self.pongs) {
                self.queue_control(Control::Pong, &payload);
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

thread_local! {
    /// Used within one poll only, never across an await.
    static MASKED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}
