//! The 26 characters of a ticket, and the hash under which it is kept.

use std::fmt;

use aws_lc_rs::{digest, rand};
use data_encoding::HEXLOWER;
use zeroize::Zeroizing;

use crate::base::secret::Secret;

/// The SHA-256 of a ticket.
///
/// A salt and a slow function protect strings that people choose. This hash needs neither: the 130 random bits of a
/// ticket cannot be guessed, and no two are equal. A slow hash would make a flood of invalid tickets more costly.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u8; 32]);

impl Key {
    /// Hashes a text that has the form of a ticket: 26 characters of Crockford's base32, in any case, with `I` and `L`
    /// for 1 and `O` for 0, and hyphens anywhere. `None` for any other string.
    pub fn from_ticket(ticket: &Secret) -> Option<Self> {
        if ticket.expose().len() > LETTERS * 2 {
            return None;
        }
        let mut letters = Zeroizing::new([0; LETTERS]);
        let mut free = letters.iter_mut();
        for byte in ticket.expose().bytes().filter(|byte| *byte != b'-') {
            *free.next()? = canonical(byte)?;
        }
        match free.next() {
            Some(_) => None,
            None => Some(Self::parse_code(&letters)),
        }
    }

    /// Parses 64 hexadecimal digits in lower case; `None` for any other string.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = HEXLOWER.decode(text.as_bytes()).ok()?;
        bytes.try_into().ok().map(Self)
    }

    fn parse_code(letters: &[u8; LETTERS]) -> Self {
        let mut bytes = [0; 32];
        let hash = digest::digest(&digest::SHA256, letters);
        bytes.copy_from_slice(hash.as_ref());
        Self(bytes)
    }
}

/// Prints 64 hexadecimal digits, as in the Secret.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A new ticket.
#[derive(Debug)]
pub struct NewTicket {
    /// The ticket's characters, which are shown once and stored nowhere.
    pub ticket: Secret,
    /// The hash under which it is kept.
    pub key: Key,
}

impl NewTicket {
    /// Generates a ticket of 130 random bits; `None` if the system has no random numbers.
    pub fn new() -> Option<Self> {
        let mut letters = Zeroizing::new([0; LETTERS]);
        rand::fill(&mut *letters).ok()?;
        // 32 divides 256 evenly, so all letters are equally likely.
        for letter in letters.iter_mut() {
            *letter = *ALPHABET.get(usize::from(*letter % 32))?;
        }
        Some(Self {
            ticket: str::from_utf8(&*letters).ok()?.into(),
            key: Key::parse_code(&letters),
        })
    }
}

/// Returns the letter that a byte means.
fn canonical(byte: u8) -> Option<u8> {
    match byte.to_ascii_lowercase() {
        b'o' => Some(b'0'),
        b'i' | b'l' => Some(b'1'),
        letter => ALPHABET.contains(&letter).then_some(letter),
    }
}

/// The number of letters, of 5 bits each: 130 bits.
const LETTERS: usize = 26;
/// Crockford's base32, which has no letters that look like digits, and no `u`.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
