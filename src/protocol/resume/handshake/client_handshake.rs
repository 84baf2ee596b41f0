//! The client's side of the handshake with which a connection begins.

use super::lines::{Announcement, Hello, Lines, is_identification, is_ssh};
use crate::protocol::resume::MAX_LINE_BYTES;
use crate::protocol::resume::frame::{Decoder, Frame, Piece, ProtocolError};
use crate::protocol::resume::keys::{
    AgreementKey, CryptoError, Keys, Mac, Nonce, Nonces, PublicKey, ResumeClaim, SessionId,
};
use crate::protocol::resume::reason::EndReason;

/// The secrets by which a client proves a session on its next connections.
#[derive(Clone, Debug)]
pub struct ResumptionSecrets {
    /// The session's id.
    pub id: SessionId,
    /// The keys of the proofs.
    pub keys: Keys,
    /// The key of the session's anchor: no other anchor has the session.
    pub anchor: PublicKey,
}

/// The result of the other side's bytes so far.
#[derive(Debug)]
pub enum HandshakeStep {
    /// More bytes are needed.
    NeedMore,
    /// There is no anchor. These bytes came from the target, which was sent nothing.
    Plain(Vec<u8>),
    /// The anchor has proved the session. The connection carries it from here on.
    Attached(HandshakeResult),
}

/// The result of a handshake.
#[derive(Debug)]
pub struct HandshakeResult {
    /// The secrets for the next connection.
    pub secrets: ResumptionSecrets,
    /// The offset of the next byte that the anchor expects.
    pub received: u64,
    /// The bytes after the handshake: frames of the session.
    pub rest: Vec<u8>,
}

/// The reason why a connection does not carry the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The session cannot be resumed there: the anchor is another one, or was restarted.
    #[error("the anchor was restarted, or is another one")]
    OtherAnchor,
    /// The session cannot be resumed there: an SSH server has answered.
    #[error("there is no anchor any more")]
    NoAnchor,
    /// The anchor has ended the session.
    #[error("the anchor has ended the session ({0:?})")]
    Ended(EndReason),
    /// The other side has not proved that it has the session. Another connection may reach the session's anchor.
    #[error("the other side is not the anchor of the session")]
    Unproved,
    /// The bytes do not follow this protocol. Another connection may be better.
    #[error("the other side has broken the protocol")]
    Fault,
    /// The crypto library has failed.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

impl From<ProtocolError> for HandshakeError {
    fn from(_: ProtocolError) -> Self {
        Self::Fault
    }
}

/// The handshake of one connection. It ends when it has returned anything but [`HandshakeStep::NeedMore`].
#[derive(Debug)]
pub struct ClientHandshake {
    purpose: Purpose,
    lines: Lines,
    phase: Phase,
    output: Vec<u8>,
    /// The number of bytes of frames so far. Frames of unknown types count, too.
    read: usize,
}

#[derive(Debug)]
enum Purpose {
    New,
    Resume {
        secrets: ResumptionSecrets,
        received: u64,
        nonce: Nonce,
    },
}

#[derive(Debug)]
enum Phase {
    Announcement,
    Identification(DerivedKeys),
    Frames(DerivedKeys, Decoder),
}

/// The session's keys, the anchor's public key, and the nonces of the connection.
#[derive(Clone, Debug)]
struct DerivedKeys {
    keys: Keys,
    anchor: PublicKey,
    nonces: Nonces,
}

impl ClientHandshake {
    /// Begins the handshake of a new session. Until an anchor has announced itself no key is generated and nothing is
    /// sent, as the target may be an SSH server.
    pub fn begin() -> Self {
        Self::new(Purpose::New)
    }

    /// Begins the handshake for an existing session. The client expects the byte at offset `received` next. The hello
    /// is sent at once. Detach an older connection first: the claim does not cover bytes that it would still bring.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn resume(secrets: ResumptionSecrets, received: u64) -> Result<Self, CryptoError> {
        let nonce = Nonce::random()?;
        let id = secrets.id;
        let mut handshake = Self::new(Purpose::Resume {
            secrets,
            received,
            nonce,
        });
        handshake.send_hello(Hello::Resume { id, nonce });
        Ok(handshake)
    }

    fn new(purpose: Purpose) -> Self {
        Self {
            purpose,
            lines: Lines::default(),
            phase: Phase::Announcement,
            output: Vec::new(),
            read: 0,
        }
    }

    /// Takes the bytes to be sent.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Returns whether the output has all of the client's handshake. Frames of a new session may follow at once, from
    /// offset 0 of the stream.
    pub fn is_proved(&self) -> bool {
        !matches!(self.phase, Phase::Announcement)
    }

    /// Returns the bytes so far of the other side's lines.
    pub fn lines(&self) -> &[u8] {
        self.lines.held()
    }

    /// Returns the bytes of a target that has not announced an anchor in time, or has closed before.
    pub fn into_plain_bytes(mut self) -> Vec<u8> {
        self.lines.take_all()
    }

    /// Takes the next bytes of the other side.
    ///
    /// # Errors
    /// The reason why the connection does not carry the session.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<HandshakeStep, HandshakeError> {
        let mut bytes = bytes;
        if !matches!(self.phase, Phase::Frames(..)) {
            self.lines.push(bytes);
            match self.read_lines()? {
                Some(step) => return Ok(step),
                None if !matches!(self.phase, Phase::Frames(..)) => return Ok(HandshakeStep::NeedMore),
                None => {}
            }
            let rest = self.lines.take_rest();
            return self.read_frames(&mut rest.as_slice());
        }
        self.read_frames(&mut bytes)
    }

    /// Reads lines while there are any, up to the anchor's identification.
    fn read_lines(&mut self) -> Result<Option<HandshakeStep>, HandshakeError> {
        loop {
            let line = self.lines.next_line();
            match (&self.phase, line) {
                (Phase::Frames(..), _) => return Ok(None),
                (Phase::Announcement, Some(line)) if is_ssh(line) => {
                    return self.no_anchor(HandshakeError::NoAnchor).map(Some);
                }
                (Phase::Announcement, Some(line)) => {
                    if let Some(announcement) = Announcement::read(line) {
                        self.announced(announcement)?;
                    }
                }
                (Phase::Identification(derived), Some(line)) => {
                    if is_identification(line) {
                        self.phase = Phase::Frames(derived.clone(), Decoder::default());
                        return Ok(None);
                    }
                }
                (_, None) => break,
            }
        }
        match self.phase {
            Phase::Announcement if self.lines.exceeds_limit() => self.no_anchor(HandshakeError::Fault).map(Some),
            Phase::Identification(_) if self.lines.exceeds_limit() => Err(HandshakeError::Fault),
            Phase::Announcement | Phase::Identification(_) | Phase::Frames(..) => Ok(None),
        }
    }

    /// Returns the step if there is no anchor: plain bytes for a new session, `failure` for a resumed one.
    fn no_anchor(&mut self, failure: HandshakeError) -> Result<HandshakeStep, HandshakeError> {
        match self.purpose {
            Purpose::New => Ok(HandshakeStep::Plain(self.lines.take_all())),
            Purpose::Resume { .. } => Err(failure),
        }
    }

    fn announced(&mut self, announcement: Announcement) -> Result<(), HandshakeError> {
        let anchor = announcement.key;
        let nonces = |client| Nonces {
            anchor: announcement.nonce,
            client,
        };
        let (keys, claim) = match &self.purpose {
            Purpose::New => {
                let (key, nonce) = (AgreementKey::generate()?, Nonce::random()?);
                let claim = ResumeClaim {
                    nonces: nonces(nonce),
                    id: SessionId::NONE,
                    received: 0,
                };
                let keys = key.agree_as_client(anchor, claim.nonces)?;
                let key = key.public();
                self.send_hello(Hello::New { key, nonce });
                (keys, claim)
            }
            Purpose::Resume { secrets, .. } if secrets.anchor != anchor => return Err(HandshakeError::OtherAnchor),
            Purpose::Resume {
                secrets,
                received,
                nonce,
            } => {
                let claim = ResumeClaim {
                    nonces: nonces(*nonce),
                    id: secrets.id,
                    received: *received,
                };
                (secrets.keys.clone(), claim)
            }
        };
        let mac = keys.prove_client(&claim);
        let ResumeClaim { nonces, received, .. } = claim;
        Frame::Proof { received, mac }.encode(&mut self.output);
        self.phase = Phase::Identification(DerivedKeys { keys, anchor, nonces });
        Ok(())
    }

    fn send_hello(&mut self, hello: Hello) {
        self.output.extend_from_slice(hello.line().as_bytes());
    }

    fn read_frames(&mut self, bytes: &mut &[u8]) -> Result<HandshakeStep, HandshakeError> {
        let Phase::Frames(derived, decoder) = &mut self.phase else {
            return Ok(HandshakeStep::NeedMore);
        };
        let before = bytes.len();
        let piece = decoder.next(bytes)?;
        self.read += before - bytes.len();
        if self.read > MAX_LINE_BYTES {
            return Err(HandshakeError::Fault);
        }
        let (id, received, mac) = match piece {
            Some(Piece::Frame(Frame::Attached { id, received, mac })) => (id, received, mac),
            Some(Piece::Frame(Frame::End(end))) => return Err(HandshakeError::Ended(end)),
            Some(Piece::Data { .. } | Piece::Frame(_)) => return Err(HandshakeError::Fault),
            None => return Ok(HandshakeStep::NeedMore),
        };
        let derived = derived.clone();
        let rest = bytes.to_vec();
        self.check(derived, id, (received, mac)).map(|secrets| {
            HandshakeStep::Attached(HandshakeResult {
                secrets,
                received,
                rest,
            })
        })
    }

    fn check(
        &self,
        derived: DerivedKeys,
        id: SessionId,
        (received, mac): (u64, Mac),
    ) -> Result<ResumptionSecrets, HandshakeError> {
        let DerivedKeys { keys, anchor, nonces } = derived;
        let is_that_session = match &self.purpose {
            Purpose::New => id != SessionId::NONE && received == 0,
            Purpose::Resume { secrets, .. } => id == secrets.id,
        };
        let claim = ResumeClaim { nonces, id, received };
        if is_that_session && keys.is_anchor(&claim, &mac) {
            Ok(ResumptionSecrets { id, keys, anchor })
        } else {
            Err(HandshakeError::Unproved)
        }
    }
}
