//! Decodes the peer's frames, of which it holds a header or a control frame at most.

use std::io::Cursor;
use std::mem::take;
use std::time::Duration;

use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{CloseCode, Control, Data, OpCode};

use super::frame::{CloseFrame, Role, advance, move_masked, push_ping};

/// The decoder of one direction.
#[derive(Debug)]
pub struct Receiver {
    /// The role of this end.
    role: Role,
    /// The start of a header that is incomplete.
    head: Vec<u8>,
    part: Part,
    /// Bytes of the current frame that have not arrived.
    left: u64,
    /// The mask of the next byte. A frame without one has zeros.
    mask: [u8; 4],
    /// True within a message, between its first and its last frame.
    in_message: bool,
    /// The payload of the current control frame.
    control: Vec<u8>,
    /// The payloads of the pings that have no answer, as [`push_ping`] keeps them.
    pings: Vec<Vec<u8>>,
    close_frame: Option<CloseFrame>,
    /// The frames without payload and the control frames, less the data frames with payload.
    empty_frames: u32,
}

/// The part of a frame that comes next.
#[derive(Clone, Copy, Debug)]
enum Part {
    Header,
    Payload,
    Control(Control),
}

/// A violation of RFC 6455 by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The header of a frame, or their order, is invalid.
    #[error("a WebSocket frame is invalid: {0}")]
    Frame(&'static str),
    /// The message is text.
    #[error("a WebSocket message is text, and only binary messages carry a tunnel")]
    Text,
    /// The reason of a close frame is not UTF-8.
    #[error("the reason of a WebSocket close is not UTF-8")]
    Reason,
    /// More frames than the budget pays for carry no bytes of the tunnel.
    #[error("too many WebSocket frames are pings or empty")]
    Flood,
}

impl Violation {
    /// Returns the close frame that answers it (section 7.4.1).
    pub fn close_frame(self) -> CloseFrame {
        let code = match self {
            Self::Frame(_) => CloseCode::Protocol,
            Self::Text => CloseCode::Unsupported,
            Self::Reason => CloseCode::Invalid,
            Self::Flood => CloseCode::Policy,
        };
        CloseFrame::new(code.into(), &self.to_string())
    }
}

impl Receiver {
    /// Creates the decoder of an end with that role.
    pub fn new(role: Role) -> Self {
        Self {
            role,
            head: Vec::new(),
            part: Part::Header,
            left: 0,
            mask: [0; 4],
            in_message: false,
            control: Vec::new(),
            pings: Vec::new(),
            close_frame: None,
            empty_frames: 0,
        }
    }

    /// Returns the peer's close frame; `None` until it has come.
    pub fn close_frame(&self) -> Option<&CloseFrame> {
        self.close_frame.as_ref()
    }

    /// Checks that a peer which has been connected for `age` has sent no more frames than it may without bytes of the tunnel.
    ///
    /// Time counts in full, as the pings of days may be read at once: nothing is read while the target takes nothing.
    ///
    /// # Errors
    /// The violation.
    pub(super) fn check_budget(&self, age: Duration) -> Result<(), Violation> {
        let by_time = age.as_secs().saturating_mul(EMPTY_FRAMES_PER_SECOND);
        match u64::from(self.empty_frames) <= by_time.saturating_add(MAX_EMPTY_FRAMES) {
            true => Ok(()),
            false => Err(Violation::Flood),
        }
    }

    /// Returns the payloads of the pings that have no answer.
    pub(super) fn take_pings(&mut self) -> Vec<Vec<u8>> {
        take(&mut self.pings)
    }

    /// Decodes all of `bytes` in place, and returns the length of the payload, which is at their start then. What follows a
    /// close frame is ignored (section 5.5.1).
    ///
    /// # Errors
    /// The violation.
    pub fn decode(&mut self, bytes: &mut [u8]) -> Result<usize, Violation> {
        let (mut decoded, mut next) = (0, 0);
        while self.close_frame.is_none() {
            match self.part {
                Part::Header if next == bytes.len() => break,
                Part::Header => next += self.read_header(bytes.get(next..).unwrap_or_default())?,
                Part::Payload | Part::Control(_) if self.left > 0 && next == bytes.len() => break,
                Part::Payload => {
                    let end = self.unmask(bytes, next, decoded);
                    decoded += end - next;
                    next = end;
                }
                Part::Control(kind) => {
                    let end = self.unmask(bytes, next, next);
                    self.control.extend(bytes.get(next..end).unwrap_or_default());
                    next = end;
                    if self.left == 0 {
                        self.end_control(kind)?;
                    }
                }
            }
            if self.left == 0 && matches!(self.part, Part::Payload) {
                self.part = Part::Header;
            }
        }
        Ok(decoded)
    }

    /// Unmasks the bytes at `next` that belong to the current frame, to the place `to`, and returns their end.
    fn unmask(&mut self, bytes: &mut [u8], next: usize, to: usize) -> usize {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let end = next.saturating_add(left).min(bytes.len());
        move_masked(bytes, next..end, to, self.mask);
        self.mask = advance(self.mask, end - next);
        self.left -= (end - next) as u64;
        end
    }

    /// Reads a header, or what has arrived of it, and returns how many bytes of it these are.
    fn read_header(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        let known = self.head.len();
        self.head.extend(bytes.iter().take(MAX_HEADER_BYTES - known));
        let mut cursor = Cursor::new(&self.head);
        let parsed = FrameHeader::parse(&mut cursor).map_err(|_| Violation::Frame("the opcode is reserved"))?;
        let Some((header, length)) = parsed else {
            return Ok(bytes.len());
        };
        let head_length = usize::try_from(cursor.position()).unwrap_or_default();
        // "The minimal number of bytes MUST be used to encode the length": section 5.2.
        if head_length != header.len(length) {
            return Err(Violation::Frame("the length is longer than it needs to be"));
        }
        self.head.clear();
        self.begin(&header, length)?;
        Ok(head_length.saturating_sub(known))
    }

    /// Begins a frame.
    fn begin(&mut self, header: &FrameHeader, length: u64) -> Result<(), Violation> {
        if header.rsv1 || header.rsv2 || header.rsv3 {
            return Err(Violation::Frame("a reserved bit is set"));
        }
        match (self.role, header.mask) {
            (Role::Server, None) => return Err(Violation::Frame("a client has not masked it")),
            (Role::Client, Some(_)) => return Err(Violation::Frame("a server has masked it")),
            (Role::Server, Some(_)) | (Role::Client, None) => {}
        }
        if length > i64::MAX as u64 {
            return Err(Violation::Frame("the length is too large"));
        }
        self.part = match header.opcode {
            OpCode::Data(Data::Text) => return Err(Violation::Text),
            OpCode::Data(Data::Binary) if self.in_message => {
                return Err(Violation::Frame("a message begins within another one"));
            }
            OpCode::Data(Data::Continue) if !self.in_message => {
                return Err(Violation::Frame("there is no message to continue"));
            }
            OpCode::Data(_) => {
                self.in_message = !header.is_final;
                Part::Payload
            }
            OpCode::Control(_) if !header.is_final || length > MAX_CONTROL_BYTES as u64 => {
                return Err(Violation::Frame("a control frame is fragmented or too long"));
            }
            OpCode::Control(kind) => Part::Control(kind),
        };
        self.empty_frames = match self.part {
            Part::Payload if length > 0 => self.empty_frames.saturating_sub(1),
            Part::Payload | Part::Control(_) | Part::Header => self.empty_frames.saturating_add(1),
        };
        (self.left, self.mask) = (length, header.mask.unwrap_or_default());
        Ok(())
    }

    /// Ends a control frame.
    fn end_control(&mut self, kind: Control) -> Result<(), Violation> {
        let payload = take(&mut self.control);
        self.part = Part::Header;
        match kind {
            Control::Ping => push_ping(&mut self.pings, payload),
            Control::Close => self.close_frame = Some(parse_close(&payload)?),
            // Pongs need no answer (section 5.5.3); a reserved opcode has been refused.
            Control::Pong | Control::Reserved(_) => {}
        }
        Ok(())
    }
}

/// Parses the payload of a close frame (section 5.5.1).
fn parse_close(payload: &[u8]) -> Result<CloseFrame, Violation> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return match payload.is_empty() {
            true => Ok(CloseFrame {
                code: None,
                reason: Box::default(),
            }),
            false => Err(Violation::Frame("a close frame has one byte")),
        };
    };
    let code = u16::from_be_bytes(*code);
    if code != BAD_GATEWAY && !CloseCode::from(code).is_allowed() {
        return Err(Violation::Frame("the status of a close frame is reserved"));
    }
    Ok(CloseFrame {
        code: Some(code),
        reason: str::from_utf8(reason).map_err(|_| Violation::Reason)?.into(),
    })
}

/// A status that gateways send, and tungstenite does not know (https://www.iana.org/assignments/websocket).
const BAD_GATEWAY: u16 = 1014;
/// The longest header: 2 bytes, a length of 8, and a mask of 4 (section 5.2).
const MAX_HEADER_BYTES: usize = 14;
/// The frames without bytes of the tunnel that a peer may send at any time.
pub(super) const MAX_EMPTY_FRAMES: u64 = 1000;
/// Those that it may send beyond them for each second of the connection. Clients and load balancers send less than one.
pub(super) const EMPTY_FRAMES_PER_SECOND: u64 = 20;
/// The longest payload of a control frame (section 5.5).
const MAX_CONTROL_BYTES: usize = 125;
