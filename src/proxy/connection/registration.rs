//! The registration of an anchor that dials in: its authorization, its connection, and its end.

use std::future::{Future, pending as forever};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tracing::info;

use super::authorize::authorize_anchor;
use super::pending::PendingRequest;
use super::shared::Shared;
use crate::base::authority::Authority;
use crate::base::boxed::boxed;
use crate::policy::access::TunnelGrant;
use crate::policy::allowlist::Target;
use crate::protocol::host_key::HostKeys;
use crate::protocol::registration::{
    DRAINING_PATH, REPLICA_FIELD, REPLICAS_FIELD, REPLICAS_PATH, ReplicaList, UPGRADE,
};
use crate::proxy::anchors::{Anchor, Anchors, Registration};
use crate::proxy::exchange::Exchange;
use crate::proxy::http::ConnectRequest;
use crate::tunnel::http2::client::{ConnectionEnd, Streams};
use crate::tunnel::limits::owners::{LimitOwner, OwnerName};
use crate::tunnel::limits::slots::Slot;
use crate::tunnel::outcome::{CloseReason, Refusal, RefusalReason};
use crate::tunnel::stream::Stream;

/// An authorized anchor: its grant, and its slot among its user's anchors.
struct Admission {
    serves: Authority,
    target: Arc<Target>,
    grant: TunnelGrant,
    /// Keeps the user's limits alive.
    _owner: Arc<LimitOwner>,
    _slot: Slot,
    /// The host keys of its SSH server.
    host_keys: HostKeys,
    /// The list of replicas: each change since the admission is still to be sent.
    replicas: watch::Receiver<ReplicaList>,
}

/// Answers an anchor. Returns the future that runs its connection; `None` if it is refused or gone.
pub(super) async fn register<'a>(
    mut exchange: Exchange,
    request: ConnectRequest,
    mut pending: PendingRequest<'a>,
) -> Option<Pin<Box<dyn Future<Output = ()> + Send + 'a>>> {
    let (shared, number) = (pending.shared, pending.record.info.id.number);
    let admitted = tokio::select! {
        biased;
        admitted = boxed(admit(request, &mut pending)) => admitted,
        () = shared.drain.draining(number) => Err(RefusalReason::Draining.into()),
        refusal = exchange.client_gone() => Err(refusal.into()),
    };
    let count = |result| shared.metrics.anchor_registrations.count([result]);
    let admission = match admitted {
        Ok(admission) => admission,
        Err(refusal) => {
            count(refusal.reason.label());
            pending.refuse(exchange, &refusal).await;
            return None;
        }
    };
    match exchange.upgrade(&fields(&shared.anchors)).await {
        Ok((stream, early)) => Some(Box::pin(carry(admission, stream, early, pending))),
        Err(refusal) => {
            count(refusal.label());
            pending.record_unanswered(refusal);
            None
        }
    }
}

async fn admit(request: ConnectRequest, pending: &mut PendingRequest<'_>) -> Result<Admission, Refusal> {
    pending.admission?;
    let shared = pending.shared;
    if !shared.anchors.are_taken() {
        return Err(RefusalReason::MethodNotAllowed.into());
    }
    let serves = request.authority.clone();
    let host_keys = request.host_keys.published().cloned().unwrap_or_default();
    let (target, grant) = boxed(authorize_anchor(request, pending)).await?;
    if shared.anchors.is_full(target.id()) {
        return Err(RefusalReason::TargetAnchorsFull.into());
    }
    let owner = shared.users.get(OwnerName::User(grant.user_name().into()));
    let full = RefusalReason::UserAnchorsFull;
    let slot = owner.anchors.take();
    let slot = slot.ok_or_else(|| Refusal::new(full, full.phrase().limited(owner.anchors.max())))?;
    Ok(Admission {
        replicas: pending.shared.anchors.replicas.subscribe(),
        serves,
        target,
        grant,
        _owner: owner,
        _slot: slot,
        host_keys,
    })
}

/// Returns the fields of the 101.
fn fields(anchors: &Anchors) -> String {
    let list = anchors.replicas.borrow().to_string();
    format!(
        "Upgrade: {UPGRADE}\r\n{REPLICA_FIELD}: {}\r\n{REPLICAS_FIELD}: {list}\r\n",
        anchors.replica
    )
}

/// Runs the connection of an anchor until it ends.
async fn carry(admission: Admission, stream: Stream, early: Vec<u8>, mut pending: PendingRequest<'_>) {
    let (shared, info) = (pending.shared, &pending.record.info);
    let (number, peer) = (info.id.number, info.client);
    let addresses = [peer, info.locals[0].unwrap_or(peer)];
    // The connection of an anchor has log lines of its own, and no access line.
    pending.record.discard();
    let Admission {
        serves,
        target,
        grant,
        replicas,
        host_keys,
        ..
    } = &admission;
    let Ok((streams, preface, driven)) = Streams::begin(stream, early).await else {
        return;
    };
    let mut driven = pin!(driven);
    // An anchor that has a connection to this replica already closes this one instead of sending its preface.
    let begun = tokio::select! {
        Ok(()) = preface => Ok(()),
        end = &mut driven => Err(match end {
            ConnectionEnd::Closed | ConnectionEnd::Broken => "surplus",
            ConnectionEnd::Flooded | ConnectionEnd::Unresponsive => end.label(),
        }),
        reason = end_of_right(&admission) => Err(reason.label()),
        () = shared.drain.draining(number) => Err(RefusalReason::Draining.label()),
    };
    let user = grant.user_name();
    let register = |()| {
        let mut anchor = Anchor::new(serves.clone(), user, addresses, streams);
        anchor.host_keys = host_keys.clone();
        let registered = shared.anchors.register(target.id(), anchor);
        registered.map_err(RefusalReason::label)
    };
    let registered = begun.and_then(register);
    let result = registered.as_ref().map_or_else(|end| *end, |_| "registered");
    shared.metrics.anchor_registrations.count([result]);
    let Ok(registration) = registered else { return };
    // Weak: in a drain only the anchor's tunnels own it, so the connection ends with the last of them.
    let anchor = Arc::downgrade(registration.anchor());
    let since = Instant::now();
    let end = tokio::select! {
        end = &mut driven => end.label(),
        () = keep_told(registration, replicas.clone(), number, shared) => "draining",
        reason = end_of_right(&admission) => {
            if let Some(anchor) = anchor.upgrade() {
                anchor.ended.set(reason).ok();
            }
            // Its tunnels end for that reason, before their streams are gone.
            timeout(CLOSE_TIMEOUT, driven).await.ok();
            reason.label()
        }
    };
    let seconds = since.elapsed().as_secs();
    info!(target = %target.id(), user, %peer, reason = end, seconds, "the connection of an anchor has ended");
}

/// Sends the anchor changes of the replicas until the drain begins, then unregisters it and announces the drain.
/// Completes when the drain has ended: until then tunnels need the connection.
async fn keep_told(
    registration: Registration<'_>,
    mut replicas: watch::Receiver<ReplicaList>,
    number: u64,
    shared: &Shared,
) {
    let Anchor { serves, streams, .. } = &**registration.anchor();
    let (serves, streams) = (serves.clone(), streams.clone());
    let changes = async {
        while replicas.changed().await.is_ok() {
            let list = replicas.borrow_and_update().to_string();
            if let Ok(list) = HeaderValue::from_str(&list) {
                let told = streams.tell(&serves, REPLICAS_PATH, Some((REPLICAS_FIELD, list)));
                timeout(ANSWER_TIMEOUT, told).await.ok();
            }
        }
        forever().await
    };
    tokio::select! {
        () = changes => {}
        () = shared.drain.draining(number) => {}
    }
    drop(registration);
    let told = streams.tell(&serves, DRAINING_PATH, None);
    timeout(ANSWER_TIMEOUT, told).await.ok();
    // With the last stream the connection ends.
    drop(streams);
    shared.drain.clone().ended().await;
}

/// Completes when the anchor's grant is revoked or expires, or its target is removed.
async fn end_of_right(admission: &Admission) -> CloseReason {
    tokio::select! {
        reason = admission.grant.revoked_or_expired() => reason,
        () = admission.target.removed() => CloseReason::TargetRemoved,
    }
}

/// The maximum wait for an anchor's answer to a POST. The next POST is sent after it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the tunnels of an anchor have to close after its grant has ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
