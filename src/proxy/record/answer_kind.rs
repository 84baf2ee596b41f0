//! How a client was told.

use crate::tunnel::outcome::{Malformed, Refusal};

/// How a client was told what becomes of its request: the log field `answered`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// Not at all.
    Not,
    /// By a status of HTTP.
    Http,
    /// In band, by an SSH disconnect.
    Ssh,
}

impl Answered {
    /// How a refusal is told that is not told in band on purpose: to a client that speaks SSH to the port, in SSH.
    pub fn of(refusal: Refusal) -> Self {
        if refusal == Refusal::Malformed(Malformed::Ssh) {
            Self::Ssh
        } else if refusal.is_answered() {
            Self::Http
        } else {
            Self::Not
        }
    }

    /// The value of the log field.
    pub fn label(self) -> &'static str {
        match self {
            Self::Not => "",
            Self::Http => "http",
            Self::Ssh => "ssh",
        }
    }
}
