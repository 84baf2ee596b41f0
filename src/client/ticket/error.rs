//! Why there is no ticket, and what an administrator can do about it. No message holds a ticket or a credential.

use std::io;

use super::options::quoted;
use crate::client::credentials::{ApiFault, CredentialError};

/// The reason for which no ticket was made.
#[derive(Debug, thiserror::Error)]
pub(super) enum TicketError {
    /// There are no credentials for the API server, or it cannot be asked.
    #[error("no ticket was made")]
    Credentials(#[source] CredentialError),
    /// The user may not write the Secret.
    #[error("no ticket was made, since this user may not {verb} the Secret {secret} in the namespace {namespace}")]
    NoSecret {
        /// The missing right.
        verb: &'static str,
        /// The Secret.
        secret: String,
        /// Its namespace.
        namespace: String,
        /// The refusal.
        #[source]
        refusal: CredentialError,
    },
    /// The Secret is one of something else.
    #[error("no ticket was made: of the Secret {0} {1}")]
    OtherSecret(String, &'static str),
    /// The entry would not be accepted.
    #[error("no ticket was made: {0}")]
    Refused(&'static str),
    /// The answer is none of that question.
    #[error("the API server's answer cannot be read: a ticket may have been made, and nothing shows it")]
    Answer,
    /// The Secret comes and goes.
    #[error("no ticket was made: the Secret was created and deleted again and again")]
    Unsettled,
    /// No random numbers.
    #[error("the system has no random numbers")]
    Random,
    /// Threads or descriptors are missing.
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
    /// The ticket cannot be printed.
    #[error("cannot write the ticket to stdout: take it back")]
    Output(#[source] io::Error),
}

impl TicketError {
    /// The command that gives a missing right.
    pub(super) fn remedy(&self) -> Option<String> {
        match self {
            Self::NoSecret {
                verb: "create",
                secret,
                namespace,
                ..
            } => Some(format!(
                "an administrator creates it by: kubectl -n {} create secret generic {} --type={}",
                quoted(namespace),
                quoted(secret),
                crate::protocol::ticket::SECRET_TYPE
            )),
            Self::NoSecret {
                secret,
                namespace,
                refusal,
                ..
            } => Some(format!(
                "an administrator allows it by: kubectl -n {namespace} create role switchboard-ticket-maker --verb=get,patch \
                 --resource=secrets --resource-name={secret}, and: kubectl -n {namespace} create rolebinding \
                 switchboard-ticket-maker --role=switchboard-ticket-maker --user={}",
                quoted(refused_user(refusal).unwrap_or("USER")),
                namespace = quoted(namespace),
                secret = quoted(secret),
            )),
            Self::Credentials(_)
            | Self::OtherSecret(..)
            | Self::Refused(_)
            | Self::Answer
            | Self::Unsettled
            | Self::Random
            | Self::Runtime(_)
            | Self::Output(_) => None,
        }
    }
}

/// The status of an answer.
pub(super) fn status_of(error: &CredentialError) -> Option<u16> {
    status(error).map(|(code, _)| code)
}

fn status(error: &CredentialError) -> Option<(u16, &str)> {
    let CredentialError::Api { fault, .. } = error else {
        return None;
    };
    let ApiFault::Status { code, message } = &**fault else {
        return None;
    };
    Some((*code, message))
}

/// The name in `… is forbidden: User "alice" cannot create …`.
fn refused_user(error: &CredentialError) -> Option<&str> {
    let (_, message) = status(error)?;
    let (_, rest) = message.split_once("User \"")?;
    rest.split_once('"')
        .map(|(name, _)| name)
        .filter(|name| !name.is_empty())
}
