//! A ticket as it is kept: the user that it proves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use super::super::user::{AUTHENTICATED, Method, User};
use crate::protocol::ticket::{Ticket, TicketTarget};

/// A ticket as it is kept.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) user: Arc<User>,
    pub(super) expires: SystemTime,
    pub(super) target: Option<TicketTarget>,
}

impl Entry {
    /// Parses the value of the Secret's key.
    ///
    /// # Errors
    /// The reason why it is no ticket.
    pub(super) fn parse(value: &[u8]) -> Result<Self, &'static str> {
        let Ticket {
            user,
            mut groups,
            expires,
            target,
        } = Ticket::parse(value)?;
        groups.push(AUTHENTICATED.into());
        let user = User {
            name: user,
            uid: None,
            groups,
            extra: BTreeMap::new(),
            method: Method::Ticket,
            expires: Some(expires),
        };
        Ok(Self {
            user: Arc::new(user),
            expires,
            target,
        })
    }
}

/// The fault of a key.
pub(super) const NOT_A_HASH: &str = "its key is no SHA-256 in lower-case hexadecimal digits";
