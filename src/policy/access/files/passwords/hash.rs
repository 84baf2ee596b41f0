//! A hash of a password, of one of the kinds that are verified: argon2id and bcrypt.

use std::str::FromStr;

use argon2::password_hash::Error;
use argon2::{Argon2, Params, PasswordHash, PasswordVerifier};
use bcrypt::HashParts;

/// The hash of a password.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Hash {
    text: Box<str>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Argon2id,
    Bcrypt,
}

impl Hash {
    /// Parses a hash, and limits its cost: a hash that takes minutes would take the CPU from all.
    ///
    /// # Errors
    /// The error, without any part of the hash.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let kind = text.split('$').nth(1).filter(|_| text.starts_with('$'));
        let (kind, judged) = match kind {
            Some("argon2id") => (Kind::Argon2id, judge_argon2(text)),
            Some("2y" | "2b" | "2a") => (Kind::Bcrypt, judge_bcrypt(text)),
            _ => return Err(format!("{}: {ACCEPTED}", refused(text))),
        };
        judged.map(|()| Self {
            text: text.into(),
            kind,
        })
    }

    /// Returns whether its password is guessed fast: it is bcrypt below the recommended cost.
    pub(super) fn is_weak(&self) -> bool {
        self.kind == Kind::Bcrypt && HashParts::from_str(&self.text).is_ok_and(|parts| parts.get_cost() < WEAK_BELOW)
    }

    /// Returns whether the password has this hash. Blocks, for up to 3 s with the costliest hash.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(super) fn is_password(&self, password: &str) -> Result<bool, &'static str> {
        let bytes = password.as_bytes();
        if bytes.len() > MAX_PASSWORD {
            return Ok(false);
        }
        let verified = match self.kind {
            // Bcrypt uses the first 72 bytes only, as every program that makes such hashes does.
            Kind::Bcrypt => return Ok(bcrypt::verify(bytes, &self.text).unwrap_or(false)),
            Kind::Argon2id => Argon2::default().verify_password(bytes, &*self.text),
        };
        match verified {
            Ok(()) => Ok(true),
            Err(Error::OutOfMemory) => Err("there is no memory to check the password"),
            Err(_) => Ok(false),
        }
    }
}

fn judge_argon2(text: &str) -> Result<(), String> {
    let malformed = || "the argon2id hash is malformed".to_owned();
    let hash = PasswordHash::new(text).map_err(|_| malformed())?;
    let params = Params::try_from(&hash).map_err(|_| malformed())?;
    let is_whole = hash.salt.is_some() && hash.hash.is_some_and(|output| output.as_bytes().len() >= 16);
    if !is_whole || hash.version != Some(0x13) {
        return Err(malformed());
    }
    let (memory, passes) = (u64::from(params.m_cost()), u64::from(params.t_cost()));
    if memory > MAX_MEMORY {
        return Err("the argon2id hash needs more than 128 MiB of memory (m=131072)".to_owned());
    }
    if memory * passes > MAX_WORK {
        return Err("the argon2id hash takes too long: m times t is at most 1 GiB (1048576)".to_owned());
    }
    if params.p_cost() > MAX_LANES {
        return Err("the argon2id hash has more than 64 lanes (p)".to_owned());
    }
    Ok(())
}

fn judge_bcrypt(text: &str) -> Result<(), String> {
    let parts = HashParts::from_str(text).map_err(|_| "the bcrypt hash is malformed")?;
    if !COSTS.contains(&parts.get_cost()) {
        return Err("the bcrypt hash has a cost below 4 or above 14".to_owned());
    }
    Ok(())
}

/// Returns the error for a string that is not such a hash.
fn refused(text: &str) -> &'static str {
    match text.bytes().next() {
        Some(b'!' | b'*') => "a locked password is not supported",
        Some(b'$' | b'{') => "this kind of hash is not supported",
        _ => "this is not a hash",
    }
}

const ACCEPTED: &str = "argon2id and bcrypt ($2y$) are";
/// In bytes.
const MAX_PASSWORD: usize = 128;
/// In KiB: twice what RFC 9106 section 4 recommends where memory is bounded. Two passwords are hashed at a time.
const MAX_MEMORY: u64 = 128 << 10;
/// In KiB, for all passes: 1 to 3 s (measured: 64 MiB in 3 passes takes 0.2 to 0.5 s).
const MAX_WORK: u64 = 1 << 20;
const MAX_LANES: u32 = 64;
/// Of bcrypt: each step doubles the time, and 14 takes 1 to 3 s (measured).
const COSTS: std::ops::RangeInclusive<u32> = 4..=14;
/// Of bcrypt, as OWASP recommends; `htpasswd -B` makes 5, which is guessed 32 times as fast.
const WEAK_BELOW: u32 = 10;
