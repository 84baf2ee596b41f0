//! Frames: a type, a length and a payload, in both directions of a connection after the lines.

use super::keys::{Mac, SessionId};
use super::reason::{DetachReason, EndReason};

/// A frame without bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The client's first frame: the proof that it has the keys of the session.
    Proof {
        /// The offset of the next byte that the client expects.
        received: u64,
        /// The proof of the claim.
        mac: Mac,
    },
    /// The anchor's first frame: the connection carries the session from here on.
    Attached {
        /// The session.
        id: SessionId,
        /// The offset of the next byte that the anchor expects.
        received: u64,
        /// The proof of the claim.
        mac: Mac,
    },
    /// The end of a stream. It takes one offset, as TCP's FIN does.
    Fin {
        /// The offset of the end: the number of bytes of the stream.
        offset: u64,
    },
    /// Everything before the offset has been passed on, and need not be kept.
    Ack {
        /// The offset of the first byte that has not been passed on.
        offset: u64,
        /// The bytes from there on that may be sent. The sum of both never decreases.
        window: u32,
    },
    /// A request for a PONG.
    Ping(u64),
    /// The answer to a PING, with its number.
    Pong(u64),
    /// The sender drops this connection next. The session goes on.
    Going(DetachReason),
    /// The session is over.
    End(EndReason),
    /// The maximum number of bytes of its stream that the sender keeps until they are acknowledged.
    Keeps {
        /// The bytes.
        window: u32,
    },
}

/// A protocol error of the other side. It ends the session, or a connection that has no session yet, with
/// [`EndReason::Malformed`]; a [`Claim`](Self::Claim) with [`EndReason::OutOfSync`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ProtocolError {
    /// The length does not fit the type.
    #[error("a frame has a length that its type cannot have")]
    Length,
    /// A frame that is not allowed at this point.
    #[error("a frame came at a moment at which it may not come")]
    Order,
    /// Bytes, or an end, that do not follow the bytes received before.
    #[error("bytes do not follow on those received before")]
    Offset,
    /// More bytes than the window allows.
    #[error("more bytes came than the window allows")]
    Window,
    /// An acknowledgement of bytes that were not sent, or of fewer than an earlier one.
    #[error("an acknowledgement is not of what was sent")]
    Acknowledgement,
    /// The other side claims to have received bytes that were not sent, or lacks bytes that it acknowledged.
    #[error("the other side has not received what it acknowledged, or more than was sent")]
    Claim,
    /// More frames without bytes of a stream than can be needed.
    #[error("frames come that only cost work")]
    Flood,
    /// The other side ended a session as completed while bytes were under way.
    #[error("the session was called done although it was not")]
    NotDone,
}

/// A piece that a decoder finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Bytes of a stream: all of a DATA frame, or some.
    Data {
        /// The offset of the first one.
        offset: u64,
        /// The bytes, at least one.
        bytes: &'a [u8],
    },
    /// Another frame.
    Frame(Frame),
}

impl Frame {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Proof { received, mac } => header(out, PROOF, &[&received.to_be_bytes(), &mac.0]),
            Self::Attached { id, received, mac } => {
                header(out, ATTACHED, &[&id.0, &received.to_be_bytes(), &mac.0]);
            }
            Self::Fin { offset } => header(out, FIN, &[&offset.to_be_bytes()]),
            Self::Ack { offset, window } => header(out, ACK, &[&offset.to_be_bytes(), &window.to_be_bytes()]),
            Self::Ping(number) => header(out, PING, &[&number.to_be_bytes()]),
            Self::Pong(number) => header(out, PONG, &[&number.to_be_bytes()]),
            Self::Going(going) => header(out, GOING, &[&[going.code()]]),
            Self::End(end) => header(out, END, &[&[end.code()]]),
            Self::Keeps { window } => header(out, KEEPS, &[&window.to_be_bytes()]),
        }
    }

    /// Parses a frame; `None` for a type that this version does not know.
    fn decode(kind: u8, payload: &[u8]) -> Result<Option<Self>, ProtocolError> {
        let mut fields = Fields(payload);
        let frame = match kind {
            PROOF => Self::Proof {
                received: fields.number()?,
                mac: Mac(fields.take()?),
            },
            ATTACHED => Self::Attached {
                id: SessionId(fields.take()?),
                received: fields.number()?,
                mac: Mac(fields.take()?),
            },
            FIN => Self::Fin {
                offset: fields.number()?,
            },
            ACK => Self::Ack {
                offset: fields.number()?,
                window: u32::from_be_bytes(fields.take()?),
            },
            PING => Self::Ping(fields.number()?),
            PONG => Self::Pong(fields.number()?),
            GOING => Self::Going(DetachReason::from(u8::from_be_bytes(fields.take()?))),
            END => Self::End(EndReason::from(u8::from_be_bytes(fields.take()?))),
            KEEPS => Self::Keeps {
                window: u32::from_be_bytes(fields.take()?),
            },
            _ => return Ok(None),
        };
        if fields.0.is_empty() {
            Ok(Some(frame))
        } else {
            Err(ProtocolError::Length)
        }
    }
}

/// A buffer to which frames are appended.
pub trait Output {
    /// True if it copies the bytes of a stream. Otherwise they are kept until they are written.
    const COPIES: bool;

    /// Returns the number of bytes so far.
    fn length(&self) -> usize;

    /// Returns whether it takes no more DATA and FIN.
    fn is_full(&self) -> bool;

    /// Appends a frame without bytes of a stream.
    fn frame(&mut self, frame: Frame);

    /// Appends a DATA frame with the bytes of both slices.
    fn data(&mut self, offset: u64, bytes: (&[u8], &[u8]));
}

/// Appends a DATA frame with the bytes of both slices.
pub fn encode_data(out: &mut Vec<u8>, offset: u64, bytes: (&[u8], &[u8])) {
    data_head(out, offset, bytes.0.len() + bytes.1.len());
    out.extend_from_slice(bytes.0);
    out.extend_from_slice(bytes.1);
}

/// Appends the head of a DATA frame with `bytes` bytes.
pub(super) fn data_head(out: &mut Vec<u8>, offset: u64, bytes: usize) {
    let offset = offset.to_be_bytes();
    head(out, DATA, offset.len() + bytes);
    out.extend_from_slice(&offset);
}

fn header(out: &mut Vec<u8>, kind: u8, fields: &[&[u8]]) {
    head(out, kind, fields.iter().map(|field| field.len()).sum());
    for field in fields {
        out.extend_from_slice(field);
    }
}

fn head(out: &mut Vec<u8>, kind: u8, length: usize) {
    let [_, length @ ..] = u32::try_from(length).unwrap_or_default().to_be_bytes();
    out.push(kind);
    out.extend(length);
}

/// The unread bytes of a payload.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], ProtocolError> {
        let (field, rest) = self.0.split_first_chunk().ok_or(ProtocolError::Length)?;
        self.0 = rest;
        Ok(*field)
    }

    fn number(&mut self) -> Result<u64, ProtocolError> {
        self.take().map(u64::from_be_bytes)
    }
}

/// Finds frames in bytes that arrive in any pieces. It holds at most [`MAX_HELD`] bytes.
#[derive(Debug)]
pub struct Decoder {
    held: [u8; MAX_HELD],
    length: usize,
    /// The position in the current frame: its held part, or the rest of a payload that is not held.
    state: DecodeState,
    /// The number of frames without bytes of a stream since [`take_frames`](Self::take_frames).
    frames: u32,
}

#[derive(Clone, Copy, Debug)]
enum DecodeState {
    Head,
    Data { offset: u64, left: usize },
    Unknown { left: usize },
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            held: [0; MAX_HELD],
            length: 0,
            state: DecodeState::Head,
            frames: 0,
        }
    }
}

impl Decoder {
    /// Returns how many frames without bytes of a stream have been found since the last call.
    pub fn take_frames(&mut self) -> u32 {
        std::mem::take(&mut self.frames)
    }

    /// Takes the next piece from the front of `input`; `None` when all of it has been taken.
    ///
    /// # Errors
    /// A frame has an invalid length or offset. Nothing that follows can be parsed.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Piece<'a>>, ProtocolError> {
        while !input.is_empty() {
            match self.state {
                DecodeState::Head => {
                    if let Some(frame) = self.next_held(input)? {
                        return Ok(Some(Piece::Frame(frame)));
                    }
                }
                DecodeState::Data { offset, left } => {
                    let bytes = take(input, left);
                    let left = left - bytes.len();
                    self.state = match left {
                        0 => DecodeState::Head,
                        // Cannot overflow: checked at the head of the frame.
                        _ => DecodeState::Data {
                            offset: offset + bytes.len() as u64,
                            left,
                        },
                    };
                    return Ok(Some(Piece::Data { offset, bytes }));
                }
                DecodeState::Unknown { left } => {
                    let left = left - take(input, left).len();
                    self.state = if left == 0 {
                        DecodeState::Head
                    } else {
                        DecodeState::Unknown { left }
                    };
                }
            }
        }
        Ok(None)
    }

    /// Holds bytes of a frame until it is complete, or known to be of a type that is not held.
    fn next_held(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, ProtocolError> {
        if !self.hold(HEAD, input) {
            return Ok(None);
        }
        let [kind, length @ ..] = self.held.first_chunk::<HEAD>().copied().unwrap_or_default();
        let length = length.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte));
        match kind {
            DATA => self.begin_data(length, input).map(|()| None),
            PROOF..=KEEPS if length > MAX_HELD - HEAD => Err(ProtocolError::Length),
            PROOF..=KEEPS => {
                if !self.hold(HEAD + length, input) {
                    return Ok(None);
                }
                self.length = 0;
                self.frames = self.frames.saturating_add(1);
                let payload = self.held.get(HEAD..HEAD + length).unwrap_or_default();
                Frame::decode(kind, payload)
            }
            _ if length > MAX_UNKNOWN => Err(ProtocolError::Length),
            _ => {
                self.length = 0;
                self.frames = self.frames.saturating_add(1);
                self.state = match length {
                    0 => DecodeState::Head,
                    left => DecodeState::Unknown { left },
                };
                Ok(None)
            }
        }
    }

    fn begin_data(&mut self, length: usize, input: &mut &[u8]) -> Result<(), ProtocolError> {
        let left = length.checked_sub(OFFSET).ok_or(ProtocolError::Length)?;
        if left == 0 || left > MAX_DATA {
            return Err(ProtocolError::Length);
        }
        if self.hold(HEAD + OFFSET, input) {
            self.length = 0;
            let offset = Fields(self.held.get(HEAD..).unwrap_or_default()).number()?;
            offset.checked_add(left as u64).ok_or(ProtocolError::Offset)?;
            self.state = DecodeState::Data { offset, left };
        }
        Ok(())
    }

    /// Takes bytes until `wanted` are held. Returns whether they are.
    fn hold(&mut self, wanted: usize, input: &mut &[u8]) -> bool {
        let missing = wanted.saturating_sub(self.length);
        let bytes = take(input, missing);
        if let Some(free) = self.held.get_mut(self.length..self.length + bytes.len()) {
            free.copy_from_slice(bytes);
            self.length += bytes.len();
        }
        self.length >= wanted
    }
}

fn take<'a>(input: &mut &'a [u8], max: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(max.min(input.len()));
    *input = rest;
    taken
}

const PROOF: u8 = 1;
const ATTACHED: u8 = 2;
const DATA: u8 = 3;
const FIN: u8 = 4;
const ACK: u8 = 5;
const PING: u8 = 6;
const PONG: u8 = 7;
const GOING: u8 = 8;
const END: u8 = 9;
const KEEPS: u8 = 10;

/// The bytes of a frame's type and length.
const HEAD: usize = 4;
/// The head of an ATTACHED; the session's id follows.
pub(super) const ATTACHED_HEAD: [u8; HEAD] = [ATTACHED, 0, 0, 56];
/// The bytes of an offset.
const OFFSET: usize = 8;
/// The length of the longest frame that is held until it is complete: an ATTACHED.
pub const MAX_HELD: usize = HEAD + 16 + OFFSET + 32;
/// The maximum number of bytes of a stream in one frame.
pub const MAX_DATA: usize = 64 * 1024;
/// The bytes of a DATA frame before those of the stream.
pub const DATA_HEAD: usize = HEAD + OFFSET;
/// The maximum length of the payload of an unknown type.
pub const MAX_UNKNOWN: usize = 1024;
