//! Answers a request for the list of names: only to users, and only with the targets that each may reach.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use tokio::task::spawn_blocking;

use super::authorize::{authenticate, refuse_blocked};
use super::pending::PendingRequest;
use super::shared::Shared;
use crate::base::boxed::boxed;
use crate::net::transport::Transport;
use crate::policy::access::{ListingLimit, Mode};
use crate::policy::allowlist::Target;
use crate::protocol::listing::{ListedTarget, Listing, MAX_TARGETS, NO_USERS, NameFilter};
use crate::proxy::exchange::Exchange;
use crate::proxy::http::ListingRequest;
use crate::tunnel::limits::owners::{LimitOwner, OwnerName};
use crate::tunnel::limits::slots::Slot;
use crate::tunnel::outcome::{Refusal, RefusalReason};

/// Answers the request, and closes its connection or stream.
pub(super) async fn answer(mut exchange: Exchange, request: ListingRequest, mut pending: PendingRequest<'_>) {
    let (drain, number) = (&pending.shared.drain, pending.record.info.id.number);
    // No SSH client asks.
    pending.target_is_ssh = false;
    pending.may_be_forwarded();
    let listed = tokio::select! {
        biased;
        listed = boxed(list(request, &mut pending)) => listed,
        () = drain.deadline(number) => Err(RefusalReason::Draining.into()),
        refusal = exchange.client_gone() => Err(refusal.into()),
    };
    let (listing, turn) = match listed.map(|(listing, turn)| (serde_json::to_string(&listing), turn)) {
        Ok((Ok(listing), turn)) => (listing, turn),
        // Never: these are strings and numbers.
        Ok((Err(_), _)) => return pending.refuse(exchange, &RefusalReason::Internal.into()).await,
        Err(refusal) => return pending.refuse(exchange, &refusal).await,
    };
    let sent = boxed(exchange.list(&listing)).await;
    // Before the end of the stream, after which the user may ask again.
    drop(turn);
    match sent {
        Ok(mut stream) => {
            pending.record.listed();
            pending.linger(None, stream.shutdown_gracefully()).await;
        }
        Err(refusal) => pending.record_unanswered(refusal),
    }
}

/// The slot of a user's listing, and the user whose slot it is.
type Turn = (Slot, Arc<LimitOwner>);

/// Returns the targets that the user may reach, and what to hold until they are sent. The user is authenticated first, so that
/// a stranger learns nothing.
async fn list(request: ListingRequest, pending: &mut PendingRequest<'_>) -> Result<(Listing, Turn), Refusal> {
    let shared = pending.shared;
    // First: as any other GET is answered.
    if !shared.lists_names.load(Ordering::Relaxed) {
        return Err(RefusalReason::MethodNotAllowed.into());
    }
    pending.admission?;
    refuse_blocked(pending)?;
    if shared.access.mode() == Mode::Open {
        return Err(Refusal::with_phrase(RefusalReason::MethodNotAllowed, NO_USERS));
    }
    let subject = authenticate(request.credential, true, pending).await?;
    refuse_blocked(pending)?;
    if !subject.is_trusted(&shared.tls) {
        return Err(RefusalReason::CertificateInvalidated.into());
    }
    if !shared.drain.phase().accepts_tunnels() {
        return Err(RefusalReason::Draining.into());
    }
    let owner = shared.users.get(OwnerName::User(subject.user.name.clone()));
    let slot = owner.listings.take().ok_or(RefusalReason::UserListing)?;
    let begun = shared.access.begin_listing().await;
    let (permit, deadline) = begun.ok_or(RefusalReason::AuthorizationUnavailable)?;
    let held = ((slot, owner), permit);
    let (access, allowlist) = (Arc::clone(&shared.access), Arc::clone(&shared.allowlist));
    // Else a limit of reviews, which fewer names keep, would show that the text is a part of hidden ones.
    let hides_names = access.hides_names();
    let asked = if hides_names {
        NameFilter::default()
    } else {
        request.filter.clone()
    };
    let (own, tls) = (subject.clone(), pending.client_tls().cloned());
    let (candidates, held) = without_relays(held, move || {
        let identity = tls.as_ref().and_then(|tls| tls.identity.as_ref());
        let mut targets = allowlist.list(&asked)?;
        targets.retain(|target| target.check_client(identity).is_ok());
        Ok::<_, RefusalReason>(access.candidates(&own, targets))
    })
    .await?;
    let (mut targets, limit) = shared.access.reachable(&subject, candidates?, deadline).await;
    let allowlist = Arc::clone(&shared.allowlist);
    let ((targets, found), (turn, _permit)) = without_relays(held, move || {
        let is_meant = |target: &Target| request.filter.is_part_of_any(&allowlist.names(target.id()).0);
        targets.retain(|target| !hides_names || is_meant(target));
        targets.sort_by(|one, other| one.id().cmp(other.id()));
        let found = targets.len();
        targets.truncate(MAX_TARGETS);
        (targets, found)
    })
    .await?;
    let rows = targets.iter().map(|target| row(target, shared));
    let listing = Listing {
        targets: rows.filter(|row| !row.names.is_empty()).collect(),
        incomplete: incomplete(found, limit, hides_names),
    };
    Ok((listing, turn))
}

/// Runs a part of a listing: a large allowlist takes tens of milliseconds, for which a relay must not wait. `held` is held
/// until its end, also if the client leaves.
async fn without_relays<H, T>(held: H, part: impl FnOnce() -> T + Send + 'static) -> Result<(T, H), RefusalReason>
where
    H: Send + 'static,
    T: Send + 'static,
{
    let done = spawn_blocking(move || (part(), held)).await;
    done.map_err(|_| RefusalReason::Internal)
}

/// Returns why a list is incomplete; `None` if it is complete. Where names are hidden, so is their number.
fn incomplete(found: usize, limit: Option<ListingLimit>, hides_names: bool) -> Option<String> {
    let part = "ask for names with a part of them";
    if found > MAX_TARGETS {
        return Some(format!("the list is cut at {MAX_TARGETS} of {found} names: {part}"));
    }
    limit.map(|limit| match (limit, hides_names) {
        (ListingLimit::Unanswered(_), true) => {
            "names may be missing: rights were not decided in time, try again".into()
        }
        (ListingLimit::Reviews(_) | ListingLimit::Namespaces(_), true) => {
            "names may be missing to which there is a right of their own: there are too many names here".into()
        }
        (ListingLimit::Unanswered(left), false) => {
            format!("{left} names are left out: their rights were not decided in time, try again")
        }
        (ListingLimit::Reviews(left), false) => {
            format!("{left} names are left out, to which there may be a right of their own: {part}")
        }
        (ListingLimit::Namespaces(left), false) => {
            format!("{left} names are left out: they are in too many namespaces to decide about each, {part}")
        }
    })
}

fn row(target: &Target, shared: &Shared) -> ListedTarget {
    let (names, port) = shared.allowlist.names(target.id());
    ListedTarget {
        names,
        port,
        state: state(target, shared).to_owned(),
    }
}

/// Returns the state of a target in one word.
fn state(target: &Target, shared: &Shared) -> &'static str {
    let rules = target.rules();
    let is_stopped = rules.stopped.is_some_and(|stop| !stop.is_over(SystemTime::now()));
    let has_endpoint = match rules.dials_in {
        Some(_) => !shared.anchors.of(target.id()).is_empty(),
        None => !target.endpoints().addresses.is_empty(),
    };
    match () {
        () if target.is_cordoned() || rules.limits.is_closed => "cordoned",
        () if is_stopped => "stopped",
        () if has_endpoint => "ready",
        () if rules.workloads.wake.is_some() => "asleep",
        () => "unready",
    }
}
