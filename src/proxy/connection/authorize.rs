//! Authorizes requests: the user, the target, the user's permission to reach it, and the slots of the tunnel.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::in_band::close_phrase;
use super::pending::{PendingRequest, Way};
use crate::base::authority::Authority;
use crate::base::boxed::boxed;
use crate::policy::access::credentials::credential::{Credential, CredentialError};
use crate::policy::access::{Mode, RequestCredentials, Right, Subject, TunnelGrant, User};
use crate::policy::allowlist::Target;
use crate::protocol::end_notice::Marker;
use crate::proxy::anchors::AnchorStream;
use crate::proxy::http::{ConnectRequest, NamedSession, RefusalMode};
use crate::proxy::record::Door;
use crate::tunnel::limits::owners::{LimitOwner, OwnerName};
use crate::tunnel::limits::slots::Slot;
use crate::tunnel::outcome::{CloseReason, Refusal, RefusalReason};

/// The target of a tunnel, and what the tunnel takes of each limit until its end. Boxed, as it is seldom used while the
/// tunnel idles.
#[derive(Debug)]
pub(super) struct Reservation {
    pub(super) target: Arc<Target>,
    /// The slots of the process, of the owner and of the target.
    _slots: [Slot; 3],
    /// The client, or the user where users are known: an office with one address is not one user.
    pub(super) owner: Arc<LimitOwner>,
    /// The grant for the target; `None` unless access is enforced.
    pub(super) grant: Option<TunnelGrant>,
    /// How its client learns that the target is not an SSH server.
    pub(super) refusals: RefusalMode,
    /// The marker of its end notice; `None` if its client asks for none.
    pub(super) end_marker: Option<Marker>,
    /// The anchor that carries it; `None` if its target is dialled.
    pub(super) anchor: Option<AnchorStream>,
}

/// Authorizes a request, and takes the slots of its tunnel.
pub(super) async fn reserve(
    request: ConnectRequest,
    pending: &mut PendingRequest<'_>,
) -> Result<Box<Reservation>, Refusal> {
    // The rate or the certificate has decided earlier. The refusal is sent only now that the protocol is known.
    pending.admission?;
    if let Err(denial) = refuse_blocked(pending) {
        pending.record.info.authority = Some(request.authority);
        return Err(denial);
    }
    let (end_marker, session) = (request.end_marker, request.session);
    pending.may_wake = session.is_none() && !request.no_wake;
    let AuthorizedRequest { target, grant } = authorize(request, pending).await?;
    // Again, as the user is known.
    refuse_blocked(pending)?;
    let user = pending.record.info.user_name();
    let ended = |session: NamedSession| pending.shared.registry.ended_sessions.reason(session.id, user);
    if let Some(reason) = session.and_then(ended) {
        let phrase = close_phrase(CloseReason::ClosedByOperator, &reason);
        return Err(Refusal::new(RefusalReason::SessionEnded, phrase));
    }
    pending.record.info.idle = session.map_or(Duration::ZERO, |session| session.idle);
    // Only after authorization: the form of a refusal would tell whether the target is an SSH server.
    pending.target_is_ssh = target.ssh_only() && !target.reports();
    let of_process = pending.shared.tunnels.take().ok_or(RefusalReason::ProxyFull)?;
    let (owner, full) = match &grant {
        Some(grant) => {
            let name = OwnerName::User(grant.user_name().into());
            (pending.shared.users.get(name), RefusalReason::UserFull)
        }
        None => (pending.client()?, RefusalReason::ClientFull),
    };
    let of_owner = owner.tunnels.take();
    let of_owner = of_owner.ok_or_else(|| Refusal::new(full, full.phrase().limited(owner.tunnels.max())))?;
    Ok(Box::new(Reservation {
        _slots: [of_process, of_owner, target.take_slot()?],
        target,
        owner,
        grant,
        refusals: pending.refusals,
        end_marker,
        anchor: None,
    }))
}

/// Refuses the request if an operator has blocked its client or, once it is known, its user.
pub(super) fn refuse_blocked(pending: &mut PendingRequest<'_>) -> Result<(), Refusal> {
    let record = &mut pending.record;
    let Some(reason) = pending.shared.registry.restrictions.block(&record.info.subject()) else {
        return Ok(());
    };
    let phrase = RefusalReason::Blocked.phrase().followed_by(&format!(": {reason}"));
    let refusal = Refusal::new(RefusalReason::Blocked, phrase);
    record.set_authorization(&refusal, true);
    Err(refusal)
}

/// An authorized request.
#[derive(Debug)]
struct AuthorizedRequest {
    target: Arc<Target>,
    /// The grant for the target; `None` if it needs none.
    grant: Option<TunnelGrant>,
}

/// Looks the authority up in the allowlist, and checks that this client may have a tunnel to it now. With access
/// control the user is authenticated first, so that answers reveal no names.
async fn authorize(request: ConnectRequest, pending: &mut PendingRequest<'_>) -> Result<AuthorizedRequest, Refusal> {
    let ConnectRequest {
        authority, credential, ..
    } = request;
    let mode = pending.shared.access.mode();
    let target = match mode {
        Mode::Open => look_up(authority, pending)?,
        Mode::Report | Mode::Enforce => {
            return boxed(authorize_user(authority, credential, mode == Mode::Enforce, pending)).await;
        }
    };
    Ok(AuthorizedRequest { target, grant: None })
}

/// Authorizes the user of the request, too. A denial refuses the request only if it `counts`.
async fn authorize_user(
    authority: Authority,
    credential: Option<Result<Credential, CredentialError>>,
    counts: bool,
    pending: &mut PendingRequest<'_>,
) -> Result<AuthorizedRequest, Refusal> {
    let access = &pending.shared.access;
    pending.record.info.authority = Some(authority.clone());
    let subject = match boxed(authenticate(credential, counts, pending)).await {
        Err(refusal) if counts => return Err(refusal),
        authenticated => authenticated.ok(),
    };
    let target = look_up(authority, pending).map_err(|refusal| hide_target(refusal, pending))?;
    let Some(subject) = subject else {
        report(&target, pending);
        return Ok(AuthorizedRequest { target, grant: None });
    };
    let grant = match boxed(with_report_timeout(counts, access.authorize(&subject, &target))).await {
        // Checked again now that the grant is registered: an earlier revocation is found here, and a later one ends the
        // grant.
        Ok(_) if counts && !subject.is_trusted(&pending.shared.tls) => {
            return Err(RefusalReason::CertificateInvalidated.into());
        }
        Ok(grant) => {
            pending.record.set_reason(&grant.reason);
            counts.then_some(grant)
        }
        Err(refusal) => {
            pending.record.set_authorization(&refusal, counts);
            if counts {
                return Err(hide_target(refusal, pending));
            }
            report(&target, pending);
            None
        }
    };
    Ok(AuthorizedRequest { target, grant })
}

/// Authenticates the user of a request, and records the user or the denial, which may not `count`.
pub(super) async fn authenticate(
    credential: Option<Result<Credential, CredentialError>>,
    counts: bool,
    pending: &mut PendingRequest<'_>,
) -> Result<Subject, Refusal> {
    let access = &pending.shared.access;
    let presented = credential.as_ref().and_then(|read| read.as_ref().ok());
    let claimed = presented.and_then(|credential| access.claimed_user(credential));
    let authenticated = access.authenticate(evidence(credential, Right::Connect, pending));
    let authenticated = boxed(with_report_timeout(counts, authenticated)).await;
    match &authenticated {
        Ok(subject) => pending.record.info.user = Some(Arc::clone(&subject.user)),
        Err(refusal) => {
            pending.record.info.claimed = claimed;
            pending.record.set_authorization(refusal, counts);
        }
    }
    authenticated
}

/// Authenticates the login of an SSH connection, whose user name has to be that of the proved user: `alice` or, where a
/// client has a name for each machine, `alice%box`.
pub(super) async fn log_in(
    name: &str,
    credential: Credential,
    pending: &mut PendingRequest<'_>,
) -> Result<(), Refusal> {
    let claimed = pending.shared.access.claimed_user(&credential);
    let user = authenticate(Some(Ok(credential)), true, pending).await?.user;
    if may_log_in_as(name, &user) {
        return Ok(());
    }
    let refusal = RefusalReason::CredentialsRefused.into();
    (pending.record.info.user, pending.record.info.claimed) = (None, claimed);
    pending.record.set_authorization(&refusal, true);
    Err(refusal)
}

/// Checks a key that an SSH client offers. The client has proved nothing yet, so the record names no user.
pub(super) fn check_offered_key(key: &Credential, pending: &mut PendingRequest<'_>) -> Result<(), Refusal> {
    let access = &pending.shared.access;
    let checked = access.check_offered_key(key, pending.addresses.source.ip());
    if let Err(refusal) = &checked {
        pending.record.info.claimed = access.claimed_user(key);
        pending.record.set_authorization(refusal, true);
    }
    checked
}

/// Returns whether a proved user may use that user name. That of a password, key or certificate was looked up already, with its
/// prefix.
fn may_log_in_as(name: &str, user: &User) -> bool {
    name.is_empty() || user.method.is_of_file() || *user.name == *name
}

/// Decides whether the user of a request may serve the target as its anchor. A denial counts with every `access.mode`.
/// The user is authenticated first, so that answers reveal no names.
pub(super) async fn authorize_anchor(
    request: ConnectRequest,
    pending: &mut PendingRequest<'_>,
) -> Result<(Arc<Target>, TunnelGrant), Refusal> {
    let (access, tls) = (&pending.shared.access, &pending.shared.tls);
    pending.record.info.authority = Some(request.authority.clone());
    let authenticated = access.authenticate(evidence(request.credential, Right::Serve, pending));
    let subject = authenticated.await?;
    pending.record.info.user = Some(Arc::clone(&subject.user));
    let target = pending.shared.allowlist.find_target(&request.authority)?;
    pending.record.info.target = Some(Arc::clone(&target));
    let grant = access.authorize(&subject, &target).await;
    let grant = grant.map_err(|refusal| hide_target(refusal, pending))?;
    match subject.is_trusted(tls) {
        true => Ok((target, grant)),
        false => Err(RefusalReason::CertificateInvalidated.into()),
    }
}

/// Counts a report-only denial, if the allowlist is report-only.
fn report(target: &Target, pending: &PendingRequest<'_>) {
    if target.reports() {
        pending.shared.metrics.report_only_refusals.count(["access"]);
    }
}

/// Returns the result of a check of the user or the permission. If the result does not count, it is awaited for at most
/// 1 s.
async fn with_report_timeout<T>(
    counts: bool,
    question: impl Future<Output = Result<T, Refusal>>,
) -> Result<T, Refusal> {
    if counts {
        return question.await;
    }
    let late = |_| Err(RefusalReason::AuthorizationUnavailable.into());
    timeout(REPORT_TIMEOUT, question).await.unwrap_or_else(late)
}

fn evidence<'a>(
    credential: Option<Result<Credential, CredentialError>>,
    right: Right,
    pending: &'a PendingRequest<'_>,
) -> RequestCredentials<'a> {
    let client = pending.addresses.source.ip();
    RequestCredentials {
        credential,
        client_tls: pending.client_tls(),
        client,
        // Behind a load balancer on this host a client is where its PROXY header says.
        is_local: pending.way == Way::Direct
            && [client, pending.record.info.peer.ip()]
                .iter()
                .all(|address| address.to_canonical().is_loopback()),
        is_encrypted: pending.way == Way::Encrypted || pending.record.info.door == Door::Ssh,
        right,
    }
}

/// Looks the authority up in the allowlist, and checks the client's certificate and the drain.
fn look_up(authority: Authority, pending: &mut PendingRequest<'_>) -> Result<Arc<Target>, Refusal> {
    let certificate = pending.client_tls().and_then(|tls| tls.identity.clone());
    let PendingRequest { shared, record, .. } = pending;
    let target = shared.allowlist.find_target(&authority);
    record.info.authority = Some(authority);
    let is_draining = !shared.drain.phase().accepts_tunnels();
    // Before the lookup's error: else in a drain an unknown name would get another answer than a known one.
    if is_draining && shared.access.hides_names() {
        return Err(RefusalReason::Draining.into());
    }
    let target = target?;
    record.info.target = Some(Arc::clone(&target));
    target.check_client(certificate.as_ref())?;
    if is_draining {
        return Err(RefusalReason::Draining.into());
    }
    Ok(target)
}

/// The maximum wait of a request for each result that does not count.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the denial as the client reads it: if names are hidden, a forbidden target looks like a missing one.
fn hide_target(refusal: Refusal, pending: &PendingRequest<'_>) -> Refusal {
    let names_target = matches!(
        refusal.reason,
        RefusalReason::NotAuthorized | RefusalReason::ClientNotAllowed
    );
    if names_target && pending.shared.access.hides_names() {
        let requested = pending.record.info.authority.as_ref();
        if requested.is_some_and(|authority| pending.shared.allowlist.awaits(authority)) {
            return RefusalReason::AllowlistNotReady.into();
        }
        return Refusal::new(refusal.reason, RefusalReason::NotAllowed.phrase());
    }
    refusal
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::access::Method;

    #[test]
    fn a_token_or_ticket_logs_in_as_its_own_user_alone() {
        let of = |method| User {
            name: "alice".into(),
            uid: None,
            groups: Vec::new(),
            extra: Default::default(),
            method,
            expires: None,
        };
        for method in [Method::Ticket, Method::TokenReview, Method::Oidc] {
            let allowed = ["alice", "", "bob", "Alice", "alice2"].map(|name| may_log_in_as(name, &of(method)));
            assert_eq!(allowed, [true, true, false, false, false], "{method:?}");
        }
        for method in [Method::Password, Method::PublicKey] {
            let name = "file:alice".into();
            assert!(may_log_in_as("alice", &User { name, ..of(method) }), "{method:?}");
        }
    }
}
