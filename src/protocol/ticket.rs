//! A ticket, as `switchboard ticket` makes it and the proxy keeps it: its letters, its hash, and its entry in a Secret.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use aws_lc_rs::{digest, rand};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::base::authority::Authority;
use crate::base::secret::Secret;
use crate::base::values::{is_label, is_name, is_reserved, moment};

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

/// The contents of a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The user's name.
    pub user: Box<str>,
    /// The groups, without those of the cluster.
    pub groups: Vec<Box<str>>,
    /// The time at which it expires; [`encode`](Self::encode) writes whole seconds.
    pub expires: SystemTime,
    /// The only target that it allows; `None` allows any.
    pub target: Option<TicketTarget>,
}

/// The target of a ticket: `SERVICE.NAMESPACE`, `POD.NAMESPACE.pod` for a pod without a Service, or `HOST:PORT` of a static
/// target, in its canonical spelling. No Service has a colon in its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketTarget(Box<str>);

impl TicketTarget {
    /// Returns whether it is the static target of that name, an [`Authority`].
    pub fn is_static(&self, name: &str) -> bool {
        *self.0 == *name
    }

    /// Returns whether it is the Service of that name and namespace.
    pub fn is_service(&self, name: &str, namespace: &str) -> bool {
        self.0.split_once('.') == Some((name, namespace))
    }

    /// Returns whether it is the pod without a Service of that shortest name.
    pub fn is_pod(&self, short_name: &str) -> bool {
        *self.0 == *short_name
    }

    /// Returns its kind, in the words of messages.
    pub fn kind(&self) -> &'static str {
        match (self.0.contains(':'), self.0.ends_with(POD)) {
            (true, _) => "static target",
            (false, true) if self.0.matches('.').count() > 1 => "pod",
            (false, _) => "Service",
        }
    }
}

/// Parses a target as a request for it is parsed: case and one trailing dot do not matter. Nothing else creates one.
impl FromStr for TicketTarget {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.contains(':') {
            let name = text.parse::<Authority>().map_err(|_| NOT_A_TARGET)?;
            return Ok(Self(name.to_string().into()));
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        // A Service of a namespace `pod` has two parts.
        let of_pod = name.strip_suffix(POD).filter(|rest| rest.contains('.'));
        match of_pod.unwrap_or(&name).split_once('.') {
            Some((service, namespace)) if is_label(service) && is_label(namespace) => Ok(Self(name.into())),
            _ => Err(NOT_A_TARGET),
        }
    }
}

impl fmt::Display for TicketTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An entry as JSON. Unknown fields are refused: one might restrict the ticket.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    user: Box<str>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    groups: Vec<Box<str>>,
    expires: Box<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<Box<str>>,
}

impl Ticket {
    /// Returns the value of the Secret's key, before Base64.
    ///
    /// # Errors
    /// The reason why the ticket would not be accepted.
    pub fn encode(&self) -> Result<Vec<u8>, &'static str> {
        let fields = Fields {
            user: self.user.clone(),
            groups: self.groups.clone(),
            expires: humantime::format_rfc3339_seconds(self.expires).to_string().into(),
            target: self.target.as_ref().map(|target| target.0.clone()),
        };
        let value = serde_json::to_vec(&fields).map_err(|_| NOT_AN_ENTRY)?;
        Self::parse(&value).map(|_| value)
    }

    /// Parses the value of the Secret's key.
    ///
    /// # Errors
    /// The reason why it is not a ticket.
    pub fn parse(value: &[u8]) -> Result<Self, &'static str> {
        if value.len() > MAX_BYTES {
            return Err("it is longer than 4 KiB");
        }
        let fields: Fields = serde_json::from_slice(value).map_err(|_| NOT_AN_ENTRY)?;
        let expires = moment(&fields.expires).ok_or("it has no time at which it expires")?;
        if !may_be_named(&fields.user) {
            return Err("its user is empty, too long, not printable or one of the cluster's own");
        }
        if fields.groups.len() > MAX_GROUPS || !fields.groups.iter().all(|group| may_be_named(group)) {
            return Err("a group is empty, too long, not printable or one of the cluster's own");
        }
        Ok(Self {
            user: fields.user,
            groups: fields.groups,
            expires,
            target: fields.target.map(|target| target.parse()).transpose()?,
        })
    }
}

/// Parses the data of a Secret of that type from its JSON.
///
/// # Errors
/// The reason why it is none. The current data then stay in effect.
pub fn data_of(secret: &[u8], kind: &str) -> Result<BTreeMap<String, Vec<u8>>, String> {
    #[derive(Deserialize)]
    struct Object {
        kind: Option<Box<str>>,
        r#type: Option<Box<str>>,
        #[serde(default)]
        data: Option<BTreeMap<String, Box<str>>>,
    }
    let object: Object = serde_json::from_slice(secret).map_err(|_| "it is no Secret")?;
    if object.kind.as_deref().is_some_and(|kind| kind != "Secret") {
        return Err("it is no Secret".to_owned());
    }
    if object.r#type.as_deref() != Some(kind) {
        return Err(format!("its type is not {kind}"));
    }
    let data = object.data.unwrap_or_default().into_iter();
    // An API server never sends invalid Base64; such an entry becomes empty, which is not a ticket.
    Ok(data
        .map(|(key, value)| (key, STANDARD.decode(&*value).unwrap_or_default()))
        .collect())
}

/// Returns whether a name is printable, and not one of the cluster's own, which a minter of tickets may not grant.
fn may_be_named(name: &str) -> bool {
    is_name(name, MAX_NAME) && !is_reserved(name)
}

/// The type of the Secret.
pub const SECRET_TYPE: &str = "switchboard.dev/tickets";
const NOT_AN_ENTRY: &str = "it is not the JSON of a ticket: user, groups, expires, target";
/// The maximum size of an entry in bytes.
const MAX_BYTES: usize = 4 << 10;
/// The maximum length of a name in bytes.
const MAX_NAME: usize = 512;
const MAX_GROUPS: usize = 64;
const NOT_A_TARGET: &str =
    "its target is neither SERVICE.NAMESPACE nor POD.NAMESPACE.pod nor HOST:PORT of a static target";
/// The end of the names of pods without a Service.
const POD: &str = ".pod";
