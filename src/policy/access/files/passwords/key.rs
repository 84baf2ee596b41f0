//! A public key of a user, as a line of `authorized_keys` has it (sshd(8)).

use std::net::IpAddr;
use std::time::SystemTime;

use ipnet::IpNet;

use crate::base::values;
use crate::protocol::host_key::{HostKey, HostKeyError};

/// A key, and the two options that restrict it. A line with any other option is an error.
#[derive(Debug)]
pub(super) struct UserKey {
    pub(super) key: HostKey,
    /// The clients that may use it; `None` for all.
    from: Option<Clients>,
    /// When it expires.
    pub(super) expires: Option<SystemTime>,
}

/// The addresses and networks of clients.
#[derive(Debug)]
pub(in crate::policy::access) struct Clients(Box<[Pattern]>);

/// An address or network. One that excludes outweighs all that admit.
#[derive(Debug)]
struct Pattern {
    network: IpNet,
    excludes: bool,
}

impl UserKey {
    /// Parses `[OPTIONS] TYPE BASE64 [COMMENT]`.
    ///
    /// # Errors
    /// The error, without any part of the line, which may be a password in clear.
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        let line = line.trim_matches(BLANKS);
        let (mut from, mut expires, mut rest) = (None, None, line);
        while !KINDS.iter().any(|kind| rest.starts_with(kind)) {
            let (name, after) = rest.split_once("=\"").ok_or(NO_KEY)?;
            let (value, after) = after.split_once('"').ok_or(NO_KEY)?;
            let is_first = match &*name.to_ascii_lowercase() {
                "from" => from.replace(Clients::parse(value)?).is_none(),
                "expiry-time" => expires.replace(moment(value)?).is_none(),
                _ => return Err(NO_KEY.to_owned()),
            };
            if !is_first {
                return Err("an option is there twice".to_owned());
            }
            rest = match after.strip_prefix(',') {
                // Another option, and not yet the key.
                Some(next) if !KINDS.iter().any(|kind| next.starts_with(kind)) => next,
                None if after.starts_with(BLANKS) => after.trim_start_matches(BLANKS),
                Some(_) | None => return Err(NO_KEY.to_owned()),
            };
        }
        let key = plain_key(rest)?;
        Ok(Self { key, from, expires })
    }

    /// Returns whether that client may use it.
    pub(super) fn admits(&self, client: IpAddr) -> bool {
        self.from.as_ref().is_none_or(|clients| clients.admits(client))
    }
}

/// Parses `TYPE BASE64 [COMMENT]`.
///
/// # Errors
/// The error, without any part of the line.
pub(in crate::policy::access) fn plain_key(text: &str) -> Result<HostKey, String> {
    let key: HostKey = text.parse().map_err(|error| fault(error, text))?;
    match key.blob().len() > MAX_BLOB {
        true => Err("an RSA key has 2048 to 8192 bits here".to_owned()),
        false => Ok(key),
    }
}

fn fault(error: HostKeyError, key: &str) -> String {
    match error {
        HostKeyError::Form => "expected `TYPE BASE64`, as the file ~/.ssh/id_*.pub has it".to_owned(),
        HostKeyError::Type if key.starts_with("sk-") => SECURITY_KEY.to_owned(),
        HostKeyError::Type | HostKeyError::Damaged | HostKeyError::RsaSize | HostKeyError::TooMany => error.to_string(),
    }
}

impl Clients {
    /// Parses addresses and networks, each perhaps after a `!`.
    ///
    /// # Errors
    /// The rule.
    pub(in crate::policy::access) fn parse(value: &str) -> Result<Self, &'static str> {
        let pattern = |text: &str| {
            let (excludes, text) = text.strip_prefix('!').map_or((false, text), |text| (true, text));
            let network = match text.parse::<IpAddr>() {
                Ok(address) => address.to_canonical().into(),
                Err(_) => values::network(text).ok()?,
            };
            // sshd refuses 10.1.2.3/8, too.
            (network == network.trunc()).then_some(Pattern { network, excludes })
        };
        let patterns: Option<Box<[_]>> = value.split(',').map(pattern).collect();
        let patterns = patterns.filter(|patterns| patterns.len() <= MAX_PATTERNS);
        let patterns = patterns.filter(|patterns| patterns.iter().any(|pattern| !pattern.excludes));
        patterns.map(Self).ok_or(FROM)
    }

    /// Returns whether that client is among them.
    pub(in crate::policy::access) fn admits(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        let has = |excludes| {
            let mut alike = self.0.iter().filter(|pattern| pattern.excludes == excludes);
            alike.any(|pattern| pattern.network.contains(&client))
        };
        has(false) && !has(true)
    }
}

/// Parses the value of `expiry-time`: YYYYMMDD, YYYYMMDDHHMM or YYYYMMDDHHMMSS, in UTC, after which a `Z` may be.
fn moment(value: &str) -> Result<SystemTime, String> {
    let digits = value.strip_suffix(['Z', 'z']).unwrap_or(value);
    let is_form = matches!(digits.len(), 8 | 12 | 14) && digits.bytes().all(|byte| byte.is_ascii_digit());
    let padded = format!("{digits:0<14}");
    let part = |range| padded.get(range).unwrap_or_default();
    let (date, time) = (
        [part(0..4), part(4..6), part(6..8)],
        [part(8..10), part(10..12), part(12..14)],
    );
    let moment = values::moment(&format!("{}T{}Z", date.join("-"), time.join(":")));
    moment.filter(|_| is_form).ok_or_else(|| EXPIRY.to_owned())
}

const BLANKS: [char; 2] = [' ', '\t'];
/// The beginnings of types. No option begins so.
const KINDS: [&str; 3] = ["ssh-", "ecdsa-", "sk-"];
/// Of an RSA key of 8,192 bits, the longest that is verified.
const MAX_BLOB: usize = 1_050;
const MAX_PATTERNS: usize = 64;
const NO_KEY: &str = "it is neither a hash nor a public key: expected `TYPE BASE64` after no other options than from=\"...\" and \
                      expiry-time=\"...\"";
const FROM: &str =
    "`from` has at most 64 addresses and networks, such as \"10.0.0.0/8,!10.1.2.3\", of which one admits";
const EXPIRY: &str = "`expiry-time` is YYYYMMDD, YYYYMMDDHHMM or YYYYMMDDHHMMSS, in UTC";
const SECURITY_KEY: &str = "a security key is not accepted: nothing here would see whether it was touched";

#[cfg(test)]
mod tests;
