//! The settings of one ticket, and the ticket that is made of them.

use std::time::{Duration, SystemTime};

use crate::base::secret::Secret;
use crate::client::credentials::Files;
use crate::protocol::ticket::TicketTarget;

/// The settings of one ticket.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kubeconfig files.
    pub files: Files,
    /// The context; `None` is the current one.
    pub context: Option<String>,
    /// How long it is to live.
    pub ttl: Duration,
    /// The only target that it opens: `SERVICE.NAMESPACE`, or `HOST:PORT` of a static target.
    pub target: Option<TicketTarget>,
    /// The user.
    pub user: Named,
}

/// The user of a ticket that an operator makes.
#[derive(Clone, Debug)]
pub struct Named {
    /// The user's name.
    pub name: String,
    /// The user's groups.
    pub groups: Vec<String>,
    /// The namespace of the Secret; `None` is that of the context.
    pub namespace: Option<String>,
    /// The name of the Secret.
    pub secret: String,
}

/// A ticket that has been made.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) ticket: Secret,
    pub(super) user: String,
    pub(super) expires: SystemTime,
    /// The arguments of kubectl that take it back.
    pub(super) revoke: String,
}

/// A word of a shell's line.
pub(super) fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@%+=,".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}
