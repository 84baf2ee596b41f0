//! Whether the ticket of a request, or of tunnels that run, still counts, and for their target.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::time::Instant;

use super::Judged;
use crate::policy::access::Rules;
use crate::policy::access::decide::Rights;
use crate::policy::access::evidence::Subject;
use crate::policy::access::grants::Pair;
use crate::policy::access::tickets;
use crate::policy::access::user::{Method, User};
use crate::policy::allowlist::Target;
use crate::tunnel::outcome::{Denial, Refusal};

/// Whether a ticket still counts.
#[derive(Debug)]
pub(in crate::policy::access) enum Held {
    /// It proves this user, and opens the target.
    Yes(Arc<User>),
    /// It was taken back, or is for another user or target by now.
    No,
    /// There is none, it has expired, or the tickets have not been listed.
    Unknown,
}

/// Whether the ticket of a pair still counts.
pub(in crate::policy::access) fn ticket_of(rules: &Rules, pair: &Pair) -> Held {
    let subject = &pair.subject;
    // By either clock: that of the system may be set.
    let has_expired = subject.expires.is_some_and(|expires| expires <= Instant::now())
        || subject.user.expires.is_some_and(|expires| expires <= SystemTime::now());
    let credential = subject.credential.as_ref();
    let Some(credential) = credential.filter(|_| subject.user.method == Method::Ticket && !has_expired) else {
        return Held::Unknown;
    };
    let Some((tickets, key)) = rules.sources.ticket(credential) else {
        return Held::No;
    };
    match tickets.judge(key, SystemTime::now()) {
        Judged::Proved(proof) if proof.user.name == subject.user.name && proof.opens(pair.target.id()) => {
            Held::Yes(proof.user)
        }
        Judged::Proved(_) | Judged::Unknown | Judged::Expired | Judged::TooLong => Held::No,
        Judged::Unlisted => Held::Unknown,
    }
}

/// Whether the ticket of a request, if it is one, opens the target that is dialled. It may have been taken back since the
/// user was proved.
pub(in crate::policy::access) fn check_ticket(rules: &Rules, subject: &Subject, target: &Target) -> Result<(), Denial> {
    let credential = subject.credential.as_ref();
    let Some(credential) = credential.filter(|_| subject.user.method == Method::Ticket) else {
        return Ok(());
    };
    let judged = rules.sources.ticket(credential);
    let judged = judged.map(|(tickets, key)| tickets.judge(key, SystemTime::now()));
    match judged {
        Some(Judged::Proved(proof)) if proof.user.name == subject.user.name => match &proof.target {
            Some(own) if !proof.opens(target.id()) => Err(Rights::of(&subject.user, target).narrowed(&own.to_string())),
            Some(_) | None => Ok(()),
        },
        Some(Judged::Unlisted) => Err(Refusal::AccessUnknown.into()),
        Some(Judged::Expired) => Err(Denial::with_phrase(Refusal::CredentialsRefused, tickets::EXPIRED)),
        Some(_) | None => Err(Denial::with_phrase(Refusal::CredentialsRefused, tickets::UNKNOWN)),
    }
}
