//! The secrets of a session: X25519 key agreement, and the MACs that prove a session to the other side.

use std::fmt;

use aws_lc_rs::agreement::{self, PrivateKey, UnparsedPublicKey, X25519};
use aws_lc_rs::hkdf::{HKDF_SHA256, Prk, Salt};
use aws_lc_rs::{hmac, rand};
use data_encoding::HEXLOWER;

/// Defines a fixed number of bytes, written as lower-case hexadecimal digits: each value has one spelling.
macro_rules! token {
    ($(#[$doc:meta])* $name:ident, $length:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub [u8; $length]);

        impl $name {
            /// Returns random bytes of the system.
            ///
            /// # Errors
            /// The system has none.
            pub fn random() -> Result<Self, CryptoError> {
                let mut bytes = [0; $length];
                rand::fill(&mut bytes).map_err(|_| CryptoError)?;
                Ok(Self(bytes))
            }

            /// Parses lower-case hexadecimal digits; `None` for any other text.
            pub fn parse(text: &str) -> Option<Self> {
                let bytes = HEXLOWER.decode(text.as_bytes()).ok()?;
                bytes.try_into().ok().map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&HEXLOWER.encode(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

token!(
    /// An X25519 public key. It is not secret.
    PublicKey, 32
);
token!(
    /// The random bytes of one side for one connection. They are not secret, and never used twice.
    Nonce, 16
);
token!(
    /// The name of a session. It is not secret: the keys prove a session.
    SessionId, 16
);
token!(
    /// The proof of one side that it has the keys of a session.
    Mac, 32
);

impl SessionId {
    /// The id of a session that does not have one yet.
    pub const NONE: Self = Self([0; 16]);
}

/// The crypto library refused: no random bytes, or a public key with a predictable secret (RFC 7748 section 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key agreement failed")]
pub struct CryptoError;

/// The private key of a side: an anchor's lasts as long as its process, a client's is for one new session.
#[derive(Debug)]
pub struct AgreementKey {
    private: PrivateKey,
    public: PublicKey,
}

impl AgreementKey {
    /// Generates a key.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn generate() -> Result<Self, CryptoError> {
        Self::new(PrivateKey::generate(&X25519).map_err(|_| CryptoError)?)
    }

    fn new(private: PrivateKey) -> Result<Self, CryptoError> {
        let public = private.compute_public_key().map_err(|_| CryptoError)?;
        let public = public.as_ref().try_into().map_err(|_| CryptoError)?;
        Ok(Self {
            private,
            public: PublicKey(public),
        })
    }

    /// Returns the public key.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// Derives the keys of a new session, on the client's side.
    ///
    /// # Errors
    /// The anchor's key is not valid.
    pub fn agree_as_client(&self, anchor: PublicKey, nonces: Nonces) -> Result<Keys, CryptoError> {
        self.agree(anchor, [self.public, anchor], nonces)
    }

    /// Derives the keys of a new session, on the anchor's side.
    ///
    /// # Errors
    /// The client's key is not valid.
    pub fn agree_as_anchor(&self, client: PublicKey, nonces: Nonces) -> Result<Keys, CryptoError> {
        self.agree(client, [client, self.public], nonces)
    }

    fn agree(&self, peer: PublicKey, sides: [PublicKey; 2], nonces: Nonces) -> Result<Keys, CryptoError> {
        let peer = UnparsedPublicKey::new(&X25519, peer.0);
        agreement::agree(&self.private, peer, CryptoError, |secret| {
            let salt = [nonces.anchor.0, nonces.client.0].concat();
            let extracted = Salt::new(HKDF_SHA256, &salt).extract(secret);
            Ok(Keys {
                client: expand(&extracted, CLIENT_KEY, sides)?,
                anchor: expand(&extracted, ANCHOR_KEY, sides)?,
            })
        })
    }
}

fn expand(extracted: &Prk, label: &[u8], [client, anchor]: [PublicKey; 2]) -> Result<[u8; 32], CryptoError> {
    let mut key = [0; 32];
    let info = [label, &client.0, &anchor.0];
    let expanded = extracted.expand(&info, HKDF_SHA256).map_err(|_| CryptoError)?;
    expanded.fill(&mut key).map_err(|_| CryptoError)?;
    Ok(key)
}

/// The random bytes of both sides for one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonces {
    /// The nonce of the announcement.
    pub anchor: Nonce,
    /// The nonce of the client's line.
    pub client: Nonce,
}

/// The claim of a side about the session that a connection is to carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeClaim {
    /// The connection's nonces.
    pub nonces: Nonces,
    /// The session's id; [`SessionId::NONE`] in the proof of a client that begins a session.
    pub id: SessionId,
    /// The offset of the next byte that the side expects.
    pub received: u64,
}

impl ResumeClaim {
    fn message(&self, label: &[u8]) -> Vec<u8> {
        let received = self.received.to_be_bytes();
        let fields: [&[u8]; 5] = [
            label,
            &self.nonces.anchor.0,
            &self.nonces.client.0,
            &self.id.0,
            &received,
        ];
        fields.concat()
    }
}

/// The two keys of a session, one for each side's proofs, so that a proof cannot be sent back to its sender.
#[derive(Clone)]
pub struct Keys {
    client: [u8; 32],
    anchor: [u8; 32],
}

/// Prints no keys.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys")
    }
}

impl Keys {
    /// Returns random keys, so that a claim of a session that does not exist takes the same time as any other.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn dummy() -> Result<Self, CryptoError> {
        Ok(Self {
            client: PublicKey::random()?.0,
            anchor: PublicKey::random()?.0,
        })
    }

    /// Returns the client's proof of a claim.
    pub fn prove_client(&self, claim: &ResumeClaim) -> Mac {
        sign(&self.client, &claim.message(CLIENT_PROOF))
    }

    /// Returns the anchor's proof of a claim.
    pub fn prove_anchor(&self, claim: &ResumeClaim) -> Mac {
        sign(&self.anchor, &claim.message(ANCHOR_PROOF))
    }

    /// Returns whether `proof` is the client's, in constant time.
    pub fn is_client(&self, claim: &ResumeClaim, proof: &Mac) -> bool {
        verify(&self.client, &claim.message(CLIENT_PROOF), proof)
    }

    /// Returns whether `proof` is the anchor's, in constant time.
    pub fn is_anchor(&self, claim: &ResumeClaim, proof: &Mac) -> bool {
        verify(&self.anchor, &claim.message(ANCHOR_PROOF), proof)
    }
}

fn sign(key: &[u8; 32], message: &[u8]) -> Mac {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message);
    // HMAC-SHA256 has 32 bytes. Zeros prove nothing.
    Mac(tag.as_ref().try_into().unwrap_or([0; 32]))
}

fn verify(key: &[u8; 32], message: &[u8], proof: &Mac) -> bool {
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, key), message, &proof.0).is_ok()
}

const CLIENT_KEY: &[u8] = b"switchboard-resume-1 client key";
const ANCHOR_KEY: &[u8] = b"switchboard-resume-1 anchor key";
const CLIENT_PROOF: &[u8] = b"switchboard-resume-1 client proof";
const ANCHOR_PROOF: &[u8] = b"switchboard-resume-1 anchor proof";

#[cfg(test)]
mod tests;
