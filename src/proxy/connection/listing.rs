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
use crate::protocol::listing::{ListedTarget, Listing, MAX_TARGETS};
use crate::proxy::http::{Exchange, ListingRequest};
use crate::tunnel::limits::owners::OwnerName;
use crate::tunnel::outcome::{Refusal, RefusalReason};

/// Answers the request, and closes its connection or stream.
pub(super) async fn answer(mut exchange: Exchange, request: ListingRequest, mut pending: PendingRequest<'_>) {
    let (drain, number) = (&pending.shared.drain, pending.record.info.id.seq);
    // No SSH client asks.
    pending.target_is_ssh = false;
    let listed = tokio::select! {
        biased;
        listed = boxed(list(request, &mut pending)) => listed,
        () = drain.deadline(number) => Err(RefusalReason::Draining.into()),
        refusal = exchange.client_gone() => Err(refusal.into()),
    };
    let listing = match listed.map(|listing| serde_json::to_string(&listing)) {
        Ok(Ok(listing)) => listing,
        // Never: these are strings and numbers.
        Ok(Err(_)) => return pending.refuse(exchange, &RefusalReason::Internal.into()).await,
        Err(refusal) => return pending.refuse(exchange, &refusal).await,
    };
    match boxed(exchange.list(&listing)).await {
        Ok(mut stream) => {
            pending.record.listed();
            pending.linger(None, stream.shutdown_gracefully()).await;
        }
        Err(refusal) => pending.refuse_unanswered(refusal),
    }
}

/// Returns the targets that the user may reach. The user is authenticated first, so that a stranger learns nothing.
async fn list(request: ListingRequest, pending: &mut PendingRequest<'_>) -> Result<Listing, Refusal> {
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
    let _slot = owner.listings.take().ok_or(RefusalReason::UserListing)?;
    // A large allowlist takes tens of milliseconds, for which a relay must not wait.
    let (access, allowlist, own) = (
        Arc::clone(&shared.access),
        Arc::clone(&shared.allowlist),
        subject.clone(),
    );
    let candidates = spawn_blocking(move || Ok(access.candidates(&own, allowlist.list(&request.filter)?)));
    let candidates = candidates.await.unwrap_or(Err(RefusalReason::Internal))?;
    let (mut targets, limit) = shared.access.reachable(&subject, candidates).await;
    targets.retain(|target| target.check_client(pending.record.identity()).is_ok());
    targets.sort_by(|one, other| one.id().cmp(other.id()));
    let incomplete = incomplete(targets.len(), limit);
    let targets = targets.iter().take(MAX_TARGETS).map(|target| row(target, shared));
    Ok(Listing {
        targets: targets.collect(),
        incomplete,
    })
}

/// Returns why a list is incomplete; `None` if it is complete.
fn incomplete(found: usize, limit: Option<ListingLimit>) -> Option<String> {
    let part = "ask for names with a part of them";
    if found > MAX_TARGETS {
        return Some(format!("the list is cut at {MAX_TARGETS} of {found} names: {part}"));
    }
    limit.map(|limit| match limit {
        ListingLimit::Reviews(left) => {
            format!("{left} names are left out, to which there may be a right of their own: {part}")
        }
        ListingLimit::Unanswered(left) => {
            format!("{left} names are left out: their rights were not decided in time, try again")
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

const NO_USERS: &str = "names are listed to users, and access.mode is open here: there are none";
