//! The entry of a ticket in its Secret, as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::base::authority::Authority;
use crate::base::user_name::{is_name, is_reserved};
use crate::base::values::is_label;

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

/// The target of a ticket: `SERVICE.NAMESPACE`, or `HOST:PORT` of a static target, in its canonical spelling. No Service has
/// a colon in its name.
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

    /// Returns its kind, in the words of messages.
    pub fn kind(&self) -> &'static str {
        match self.0.contains(':') {
            true => "static target",
            false => "Service",
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
        match name.split_once('.') {
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
        let expires = humantime::parse_rfc3339(&fields.expires).map_err(|_| "it has no time at which it expires")?;
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

/// Parses the data of a Secret from its JSON.
///
/// # Errors
/// The reason why it is not a Secret of tickets. The current tickets then stay in effect.
pub fn data_of(secret: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, &'static str> {
    #[derive(Deserialize)]
    struct Object {
        kind: Option<Box<str>>,
        r#type: Option<Box<str>>,
        #[serde(default)]
        data: Option<BTreeMap<String, Box<str>>>,
    }
    let object: Object = serde_json::from_slice(secret).map_err(|_| "it is no Secret")?;
    if object.kind.as_deref().is_some_and(|kind| kind != "Secret") {
        return Err("it is no Secret");
    }
    if object.r#type.as_deref() != Some(SECRET_TYPE) {
        return Err("its type is not switchboard.dev/tickets");
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
const NOT_A_TARGET: &str = "its target is neither SERVICE.NAMESPACE nor HOST:PORT of a static target";
