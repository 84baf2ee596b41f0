//! Decides whether a request may have a tunnel: its user, its target, and the right of the one to reach the other.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::pending::Pending;
use super::shared::Shared;
use crate::base::authority::Authority;
use crate::base::cold::cold;
use crate::policy::access::evidence::credential::{Credential, CredentialFault};
use crate::policy::access::{Evidence, Grant, Mode};
use crate::policy::allowlist::Target;
use crate::proxy::http::Asked;
use crate::tunnel::outcome::{Denial, Refusal};

/// A request that may have a tunnel.
#[derive(Debug)]
pub(super) struct Authorized {
    /// The target.
    pub(super) target: Arc<Target>,
    /// The right to reach it; `None` where it needs none.
    pub(super) grant: Option<Grant>,
}

/// Looks the authority up in the allowlist, and asks whether this client may have a tunnel to it now; where users are
/// known, the user before the allowlist, so that names are no oracle.
pub(super) async fn authorize(asked: Asked, pending: &mut Pending<'_>) -> Result<Authorized, Denial> {
    let Asked {
        authority, credential, ..
    } = asked;
    let mode = pending.shared.access.mode();
    let target = match mode {
        Mode::Open => look_up(authority, pending)?,
        Mode::Report | Mode::Enforce => {
            return cold(authorize_user(authority, credential, mode == Mode::Enforce, pending)).await;
        }
    };
    Ok(Authorized { target, grant: None })
}

/// The same for the user of the request. What is refused is refused only if it `counts`.
async fn authorize_user(
    authority: Authority,
    credential: Option<Result<Credential, CredentialFault>>,
    counts: bool,
    pending: &mut Pending<'_>,
) -> Result<Authorized, Denial> {
    let access = &pending.shared.access;
    pending.record.facts.authority = Some(authority.clone());
    let presented = credential.as_ref().and_then(|read| read.as_ref().ok());
    let claimed = presented.and_then(|credential| access.claimed_user(credential));
    let identified = cold(bounded(counts, access.authenticate(evidence(credential, pending)))).await;
    let subject = match identified {
        Ok(subject) => {
            pending.record.facts.user = Some(Arc::clone(&subject.user));
            Some(subject)
        }
        Err(denial) => {
            pending.record.facts.claimed = claimed;
            pending.record.set_authorization(&denial, counts);
            if counts {
                return Err(denial);
            }
            None
        }
    };
    let target = look_up(authority, pending).map_err(|denial| hidden(denial, pending.shared))?;
    let Some(subject) = subject else {
        report(&target, pending);
        return Ok(Authorized { target, grant: None });
    };
    let grant = match cold(bounded(counts, access.authorize(&subject, &target))).await {
        // Looked at once more behind the registration of the right: a certificate that is revoked before is seen here, and
        // one that is revoked later there.
        Ok(_) if counts && !subject.is_trusted(&pending.shared.tls) => return Err(Refusal::CertificateLapsed.into()),
        Ok(grant) => {
            pending.record.set_reason(&grant.reason);
            counts.then_some(grant)
        }
        Err(denial) => {
            pending.record.set_authorization(&denial, counts);
            if counts {
                return Err(hidden(denial, pending.shared));
            }
            report(&target, pending);
            None
        }
    };
    Ok(Authorized { target, grant })
}

/// Counts a denial that does not count, if the allowlist is to be reported about.
fn report(target: &Target, pending: &Pending<'_>) {
    if target.reports() {
        pending.shared.metrics.reported_refusals.count(["access"]);
    }
}

/// The answer to a question. One that does not count delays no tunnel for long.
async fn bounded<T>(counts: bool, question: impl Future<Output = Result<T, Denial>>) -> Result<T, Denial> {
    if counts {
        return question.await;
    }
    let late = |_| Err(Refusal::AccessUnknown.into());
    timeout(LONGEST_REPORT, question).await.unwrap_or_else(late)
}

fn evidence<'a>(credential: Option<Result<Credential, CredentialFault>>, pending: &'a Pending<'_>) -> Evidence<'a> {
    let client = pending.addresses.source.ip();
    Evidence {
        credential,
        peer: pending.record.facts.tls.as_ref(),
        client,
        // Behind a load balancer on this host a client is where its PROXY header says.
        is_local: [client, pending.record.facts.peer.ip()]
            .iter()
            .all(|address| address.to_canonical().is_loopback()),
    }
}

/// Looks the authority up in the allowlist, and asks whether this client may have a tunnel to it now.
fn look_up(authority: Authority, pending: &mut Pending<'_>) -> Result<Arc<Target>, Denial> {
    let Pending { shared, record, .. } = pending;
    let target = shared.allowlist.authorize(&authority);
    record.facts.authority = Some(authority);
    let is_draining = !shared.drain.phase().takes_tunnels();
    // Before the name counts: the right to it is asked about behind this, and an unknown name has another answer.
    if is_draining && shared.access.hides_names() {
        return Err(Refusal::Draining.into());
    }
    let target = target?;
    record.facts.target = Some(Arc::clone(&target));
    target.admits(record.identity())?;
    if is_draining {
        return Err(Refusal::Draining.into());
    }
    Ok(target)
}

/// The longest wait of a request for an answer that is only reported.
const LONGEST_REPORT: Duration = Duration::from_secs(1);

/// The denial as the client reads it: where names are hidden, a target that it may not reach is one that is not there.
fn hidden(denial: Denial, shared: &Shared) -> Denial {
    let names_target = matches!(denial.refusal, Refusal::NotAuthorized | Refusal::ClientNotAllowed);
    if names_target && shared.access.hides_names() {
        if !shared.allowlist.is_complete() {
            return Refusal::AllowlistUnknown.into();
        }
        return Denial::new(denial.refusal, Refusal::NotAllowed.phrase());
    }
    denial
}
