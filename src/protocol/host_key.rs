//! The host keys of a target, as they are published for known_hosts of its clients (sshd(8)).
//!
//! A client asks for them in its CONNECT by [`FIELD`], and the 200 has them in the same field.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use serde::{Deserialize, Serialize};

/// The field: `?1` in the request of a client, [`PublishedKeys`] in the answer and in the registration of an anchor.
pub const FIELD: &str = "switchboard-host-keys";

/// A public key of an SSH server or of a user: of a type that OpenSSH trusts, and no certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostKey {
    kind: &'static str,
    blob: Box<[u8]>,
}

/// Why a text is no host key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostKeyError {
    /// It does not have the form of a key.
    #[error("expected `TYPE BASE64`, as a file /etc/ssh/ssh_host_*_key.pub has it")]
    Form,
    /// The type is another one, such as that of a certificate.
    #[error("the type is none of ssh-ed25519, ecdsa-sha2-nistp256, -nistp384, -nistp521 and ssh-rsa")]
    Type,
    /// The key is not one of its type, or is cut.
    #[error("the key is damaged, or of another type than it says")]
    Damaged,
    /// The modulus is too short or too long.
    #[error("an RSA key has 2048 to 16384 bits here")]
    RsaSize,
    /// There are too many.
    #[error("a target has at most {MAX_KEYS} keys of {MAX_BYTES} bytes together")]
    TooMany,
}

impl HostKey {
    /// Returns the key in this base64 of RFC 4253 section 6.6.
    ///
    /// # Errors
    /// It is no key that is published here.
    pub fn from_base64(text: &str) -> Result<Self, HostKeyError> {
        let blob = STANDARD.decode(text).map_err(|_| HostKeyError::Damaged)?;
        let mut rest = &*blob;
        let name = string(&mut rest)?;
        let kind = KINDS.into_iter().find(|kind| kind.as_bytes() == name);
        let kind = kind.ok_or(HostKeyError::Type)?;
        let is_whole = match kind.strip_prefix(ECDSA) {
            Some(curve) => {
                let has_curve = string(&mut rest)? == curve.as_bytes();
                let bits: usize = curve.trim_start_matches("nistp").parse().unwrap_or_default();
                // RFC 5656 section 3.1: an uncompressed point.
                let point = string(&mut rest)?;
                has_curve && point.len() == 1 + 2 * bits.div_ceil(8) && point.first() == Some(&4)
            }
            None if kind == RSA => {
                let (exponent, modulus) = (integer(&mut rest)?, integer(&mut rest)?);
                if !RSA_BITS.contains(&bits(modulus)) {
                    return Err(HostKeyError::RsaSize);
                }
                bits(exponent) >= 2
            }
            None => string(&mut rest)?.len() == ED25519_BYTES,
        };
        match is_whole && rest.is_empty() {
            true => Ok(Self {
                kind,
                blob: blob.into(),
            }),
            false => Err(HostKeyError::Damaged),
        }
    }

    /// Returns the type.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Returns the key as SSH sends it (RFC 4253 section 6.6).
    pub fn blob(&self) -> &[u8] {
        &self.blob
    }

    /// Returns the fingerprint as ssh prints it: `SHA256:` and base64 without padding.
    pub fn fingerprint(&self) -> String {
        let hash = digest::digest(&digest::SHA256, &self.blob);
        format!("SHA256:{}", STANDARD_NO_PAD.encode(hash))
    }
}

/// Parses `TYPE BASE64`; a comment may follow.
impl FromStr for HostKey {
    type Err = HostKeyError;

    fn from_str(text: &str) -> Result<Self, HostKeyError> {
        let mut words = text.split_ascii_whitespace();
        let (kind, base64) = words.next().zip(words.next()).ok_or(HostKeyError::Form)?;
        if !KINDS.contains(&kind) {
            return Err(HostKeyError::Type);
        }
        let key = Self::from_base64(base64).map_err(|error| {
            // The outer type is a known one.
            if error == HostKeyError::Type {
                HostKeyError::Damaged
            } else {
                error
            }
        })?;
        if key.kind == kind {
            Ok(key)
        } else {
            Err(HostKeyError::Damaged)
        }
    }
}

/// Prints `TYPE BASE64`.
impl fmt::Display for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, STANDARD.encode(&self.blob))
    }
}

/// The host keys of a target: at most 8, of 8 KiB together as text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostKeys(Box<[HostKey]>);

impl HostKeys {
    /// Collects keys, each of them once.
    ///
    /// # Errors
    /// The first error among them, or [`HostKeyError::TooMany`].
    pub fn collect(keys: impl Iterator<Item = Result<HostKey, HostKeyError>>) -> Result<Self, HostKeyError> {
        let (mut unique, mut length) = (Vec::new(), 0);
        for key in keys {
            let key = key?;
            if !unique.contains(&key) {
                length += key.to_string().len();
                unique.push(key);
            }
            if unique.len() > MAX_KEYS || length > MAX_BYTES {
                return Err(HostKeyError::TooMany);
            }
        }
        Ok(Self(unique.into()))
    }

    /// Iterates over the keys.
    pub fn iter(&self) -> impl Iterator<Item = &HostKey> {
        self.0.iter()
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Parses a key a line. Empty lines and comments are skipped.
impl FromStr for HostKeys {
    type Err = HostKeyError;

    fn from_str(text: &str) -> Result<Self, HostKeyError> {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let keys = Self::collect(lines.map(str::parse))?;
        if keys.is_empty() {
            Err(HostKeyError::Form)
        } else {
            Ok(keys)
        }
    }
}

impl TryFrom<String> for HostKeys {
    type Error = HostKeyError;

    fn try_from(text: String) -> Result<Self, HostKeyError> {
        Self::collect(text.lines().map(str::parse))
    }
}

/// Returns a key a line.
impl From<HostKeys> for String {
    fn from(keys: HostKeys) -> Self {
        let lines: Vec<_> = keys.iter().map(HostKey::to_string).collect();
        lines.join("\n")
    }
}

/// The origin of published keys, in the order in which they take precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The configuration of the proxy.
    Config,
    /// The annotation of the Service.
    Annotation,
    /// The anchor.
    Anchor,
}

impl KeySource {
    /// All sources.
    pub const ALL: [Self; 3] = [Self::Config, Self::Annotation, Self::Anchor];

    /// Returns its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Annotation => "annotation",
            Self::Anchor => "anchor",
        }
    }

    /// Returns the one who publishes by it, for a sentence.
    pub fn publisher(self) -> &'static str {
        match self {
            Self::Config => "the configuration of the proxy",
            Self::Annotation => "the annotation of the Service",
            Self::Anchor => "the anchor of the target",
        }
    }
}

impl FromStr for KeySource {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let found = Self::ALL.into_iter().find(|source| source.word() == text);
        found.ok_or("expected `config`, `annotation` or `anchor`")
    }
}

/// Host keys and their origin. Without keys and from [`KeySource::Anchor`], the anchor's own lines count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedKeys {
    /// The origin.
    pub source: KeySource,
    /// The keys.
    pub keys: HostKeys,
}

/// Prints the value of the field, an inner list of RFC 9651: `(:BASE64: :BASE64:);from=annotation`.
impl fmt::Display for PublishedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self
            .keys
            .iter()
            .map(|key| format!(":{}:", STANDARD.encode(&key.blob)))
            .collect();
        write!(f, "({});from={}", keys.join(" "), self.source.word())
    }
}

impl FromStr for PublishedKeys {
    type Err = HostKeyError;

    fn from_str(text: &str) -> Result<Self, HostKeyError> {
        let (keys, source) = text.split_once(");from=").ok_or(HostKeyError::Form)?;
        let keys = keys.strip_prefix('(').ok_or(HostKeyError::Form)?;
        let base64 = |word: &str| {
            let base64 = word.strip_prefix(':').and_then(|word| word.strip_suffix(':'));
            HostKey::from_base64(base64.ok_or(HostKeyError::Form)?)
        };
        Ok(Self {
            source: source.parse().map_err(|_| HostKeyError::Form)?,
            keys: HostKeys::collect(keys.split_ascii_whitespace().map(base64))?,
        })
    }
}

/// Returns the lines by which an anchor that listens publishes keys before it announces itself (RFC 4253 section 4.2):
/// those that fit into one, which RSA keys do not.
pub fn lines(keys: &HostKeys) -> String {
    keys.iter().filter_map(line).collect()
}

/// Returns the line of a key; `None` if it does not fit.
pub fn line(key: &HostKey) -> Option<String> {
    let line = format!("{LINE}{key}\r\n");
    (line.len() <= MAX_LINE).then_some(line)
}

/// Returns whether this is one of those [`lines`], without its end.
pub fn is_line(line: &[u8]) -> bool {
    let key = str::from_utf8(line).ok().and_then(|line| line.strip_prefix(LINE));
    key.is_some_and(|text| text.parse().is_ok_and(|key: HostKey| key.to_string() == text))
}

/// Returns the keys in the first lines of a server, up to its identification. Invalid ones are none.
pub fn in_lines(bytes: &[u8]) -> HostKeys {
    let lines = bytes
        .split(|&byte| byte == b'\n')
        .take_while(|line| !line.starts_with(b"SSH-"));
    let keys = lines.filter_map(|line| str::from_utf8(line.strip_prefix(LINE.as_bytes())?).ok()?.parse().ok());
    HostKeys::collect(keys.map(Ok)).unwrap_or_default()
}

/// Takes a string of RFC 4251 section 5.
fn string<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], HostKeyError> {
    let (length, after) = rest.split_first_chunk().ok_or(HostKeyError::Damaged)?;
    let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| HostKeyError::Damaged)?;
    let (string, after) = after.split_at_checked(length).ok_or(HostKeyError::Damaged)?;
    *rest = after;
    Ok(string)
}

/// Takes a positive integer of RFC 4251 section 5, without the zero before a first bit that is set.
fn integer<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], HostKeyError> {
    match string(rest)? {
        [0, digits @ ..] if digits.first().is_some_and(|first| *first >= 0x80) => Ok(digits),
        digits if digits.first().is_some_and(|first| (1..0x80).contains(first)) => Ok(digits),
        _ => Err(HostKeyError::Damaged),
    }
}

fn bits(integer: &[u8]) -> usize {
    let unused = integer.first().map_or(0, |first| first.leading_zeros());
    8 * integer.len() - usize::try_from(unused).unwrap_or_default()
}

/// The beginning of a line with a key.
pub const LINE: &str = "switchboard-host-key ";
/// In bytes, with the line end: as for an identification.
const MAX_LINE: usize = 255;
const ED25519: &str = "ssh-ed25519";
const ED25519_BYTES: usize = 32;
const ECDSA: &str = "ecdsa-sha2-";
const RSA: &str = "ssh-rsa";
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=16384;
const KINDS: [&str; 5] = [
    ED25519,
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    RSA,
];
const MAX_KEYS: usize = 8;
const MAX_BYTES: usize = 8 << 10;

#[cfg(test)]
mod tests;
