//! The anchor's side of the handshake with which a connection begins.

use super::lines::{Announcement, FirstBytes, Hello, IDENTIFICATION, classify};
use crate::protocol::resume::MAX_LINE_BYTES;
use crate::protocol::resume::frame::{Decoder, Frame, Piece};
use crate::protocol::resume::keys::{AgreementKey, CryptoError, Keys, Mac, Nonce, Nonces, ResumeClaim, SessionId};
use crate::protocol::resume::reason::EndReason;

/// The result of the client's bytes so far.
#[derive(Debug)]
pub enum AnchorHandshakeStep {
    /// More bytes are needed.
    NeedMore,
    /// A plain SSH client, whose bytes go to the target.
    Plain(Vec<u8>),
    /// A client begins a session, and has proved that it has the keys.
    New(NewSession),
    /// A client claims a session. The registry checks the proof.
    Resume(ResumeRequest),
}

/// A new session.
#[derive(Debug)]
pub struct NewSession {
    /// The session's keys.
    pub keys: Keys,
    /// The connection's nonces.
    pub nonces: Nonces,
    /// The bytes after the handshake: frames of the session.
    pub rest: Vec<u8>,
}

/// The claim of a session.
#[derive(Debug)]
pub struct ResumeRequest {
    /// The session and the offset that the client claims.
    pub claim: ResumeClaim,
    /// The client's proof of the claim.
    pub proof: Mac,
    /// The bytes after the handshake: frames of the session.
    pub rest: Vec<u8>,
}

/// The handshake of one connection. It ends when it has returned anything but [`AnchorHandshakeStep::NeedMore`].
///
/// It holds at most one line, or one frame.
#[derive(Debug)]
pub struct AnchorHandshake {
    announcement: Announcement,
    phase: Phase,
    output: Vec<u8>,
    /// True if the target's bytes were sent, and end within a line.
    is_within_line: bool,
    /// The number of bytes of frames so far. Frames of unknown types count, too.
    read: usize,
}

#[derive(Debug)]
enum Phase {
    Line(Vec<u8>),
    Frames(Hello, Decoder),
}

impl AnchorHandshake {
    /// Begins a handshake. The announcement is the first output.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn new(key: &AgreementKey) -> Result<Self, CryptoError> {
        let announcement = Announcement {
            key: key.public(),
            nonce: Nonce::random()?,
        };
        Ok(Self {
            announcement,
            phase: Phase::Line(Vec::new()),
            output: announcement.line().into_bytes(),
            is_within_line: false,
            read: 0,
        })
    }

    /// Puts other lines before the announcement, of at most 255 bytes each.
    #[must_use]
    pub fn after(mut self, lines: String) -> Self {
        self.output.splice(..0, lines.into_bytes());
        self
    }

    /// Takes the bytes to be sent. After an error they end with the reason.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Notes that the target's first bytes were sent. A silent client gets them, because it may be waiting for them.
    pub fn sent_raw(&mut self, bytes: &[u8]) {
        self.is_within_line = bytes.last().map_or(self.is_within_line, |&last| last != b'\n');
    }

    /// Takes the next bytes of the client.
    ///
    /// # Errors
    /// The reason why the connection ends. The output has to be sent before it is closed.
    pub fn receive(&mut self, bytes: &[u8], key: &AgreementKey) -> Result<AnchorHandshakeStep, EndReason> {
        let step = match &mut self.phase {
            Phase::Line(held) => {
                held.extend_from_slice(bytes);
                self.read_line(key)
            }
            Phase::Frames(..) => self.read_frames(bytes, key),
        };
        step.inspect_err(|end| Frame::End(*end).encode(&mut self.output))
    }

    fn read_line(&mut self, key: &AgreementKey) -> Result<AnchorHandshakeStep, EndReason> {
        let Phase::Line(held) = &mut self.phase else {
            return Ok(AnchorHandshakeStep::NeedMore);
        };
        let (hello, length) = match classify(held) {
            FirstBytes::NeedMore => return Ok(AnchorHandshakeStep::NeedMore),
            FirstBytes::Plain => return Ok(AnchorHandshakeStep::Plain(std::mem::take(held))),
            FirstBytes::Hello(hello, length) => (hello, length),
            FirstBytes::Malformed => {
                self.identify();
                return Err(EndReason::Version);
            }
        };
        let rest = held.split_off(length);
        self.phase = Phase::Frames(hello, Decoder::default());
        self.identify();
        self.read_frames(&rest, key)
    }

    fn identify(&mut self) {
        if self.is_within_line {
            self.output.extend_from_slice(b"\r\n");
        }
        self.output.extend_from_slice(IDENTIFICATION.as_bytes());
    }

    fn read_frames(&mut self, mut bytes: &[u8], key: &AgreementKey) -> Result<AnchorHandshakeStep, EndReason> {
        let Phase::Frames(hello, decoder) = &mut self.phase else {
            return Ok(AnchorHandshakeStep::NeedMore);
        };
        let before = bytes.len();
        let piece = decoder.next(&mut bytes).map_err(|_| EndReason::Malformed)?;
        self.read += before - bytes.len();
        if self.read > MAX_LINE_BYTES {
            return Err(EndReason::Malformed);
        }
        let (received, proof) = match piece {
            Some(Piece::Frame(Frame::Proof { received, mac })) => (received, mac),
            Some(Piece::Data { .. } | Piece::Frame(_)) => return Err(EndReason::Malformed),
            None => return Ok(AnchorHandshakeStep::NeedMore),
        };
        let hello = *hello;
        let rest = bytes.to_vec();
        match hello {
            Hello::Resume { id, nonce } => {
                let claim = ResumeClaim {
                    nonces: self.nonces(nonce),
                    id,
                    received,
                };
                Ok(AnchorHandshakeStep::Resume(ResumeRequest { claim, proof, rest }))
            }
            Hello::New { key: client_key, nonce } => {
                let nonces = self.nonces(nonce);
                let keys = key
                    .agree_as_anchor(client_key, nonces)
                    .map_err(|_| EndReason::Malformed)?;
                let claim = ResumeClaim {
                    nonces,
                    id: SessionId::NONE,
                    received,
                };
                let is_proved = received == 0 && keys.is_client(&claim, &proof);
                let new = AnchorHandshakeStep::New(NewSession { keys, nonces, rest });
                if is_proved { Ok(new) } else { Err(EndReason::Malformed) }
            }
        }
    }

    fn nonces(&self, client: Nonce) -> Nonces {
        Nonces {
            anchor: self.announcement.nonce,
            client,
        }
    }
}

/// Returns the answer to a client that has proved a session. `claim` is the anchor's. Frames of the session follow.
pub fn attached(keys: &Keys, claim: &ResumeClaim) -> Frame {
    Frame::Attached {
        id: claim.id,
        received: claim.received,
        mac: keys.prove_anchor(claim),
    }
}
