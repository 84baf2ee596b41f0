//! The 26 letters of a ticket, and the hash by which it is kept.

use std::fmt;

use aws_lc_rs::{digest, rand};
use zeroize::Zeroizing;

use crate::base::secret::Secret;

/// The SHA-256 of a ticket.
///
/// It has neither salt nor a slow function, which protect texts that people choose: a ticket has 130 random bits, which
/// cannot be guessed at any speed, and no two are equal. A slow hash would help a flood of wrong ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u8; 32]);

impl Key {
    /// The key of a text that has the shape of a ticket: 26 digits and letters of Crockford's base32, in any case, with `I`
    /// and `L` for 1 and `O` for 0, and with hyphens anywhere. It says nothing of whether there is such a ticket.
    pub fn of(ticket: &Secret) -> Option<Self> {
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
            None => Some(Self::of_letters(&letters)),
        }
    }

    /// Parses 64 hexadecimal digits in lower case.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 64 {
            return None;
        }
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let &[high, low] = digits else { return None };
            *byte = digit(high)? << 4 | digit(low)?;
        }
        Some(Self(bytes))
    }

    fn of_letters(letters: &[u8; LETTERS]) -> Self {
        let mut bytes = [0; 32];
        let hash = digest::digest(&digest::SHA256, letters);
        bytes.copy_from_slice(hash.as_ref());
        Self(bytes)
    }
}

/// Prints 64 hexadecimal digits: the key of the ticket in the Secret.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A new ticket.
#[derive(Debug)]
pub struct Minted {
    /// Its letters, which are shown once and kept nowhere.
    pub ticket: Secret,
    /// The hash by which it is kept.
    pub key: Key,
}

impl Minted {
    /// Makes a ticket of 130 random bits; `None` without random numbers of the system.
    pub fn new() -> Option<Self> {
        let mut letters = Zeroizing::new([0; LETTERS]);
        rand::fill(&mut *letters).ok()?;
        // 32 letters divide 256 values evenly: each is as likely as every other one.
        for letter in letters.iter_mut() {
            *letter = *ALPHABET.get(usize::from(*letter % 32))?;
        }
        Some(Self {
            ticket: str::from_utf8(&*letters).ok()?.into(),
            key: Key::of_letters(&letters),
        })
    }
}

/// The letter that is meant.
fn canonical(byte: u8) -> Option<u8> {
    match byte.to_ascii_lowercase() {
        b'o' => Some(b'0'),
        b'i' | b'l' => Some(b'1'),
        letter => ALPHABET.contains(&letter).then_some(letter),
    }
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

/// Of 5 bits each: 130 bits.
const LETTERS: usize = 26;
/// Crockford's base32, which has no letters that look like digits, and no `u`.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
