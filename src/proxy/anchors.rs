//! The anchors that have dialled in: chooses one for a target, and opens streams on its connection.
//!
//! Each replica knows the anchors that are connected to it, and no others: an anchor connects to every replica.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::{Notify, SetOnce, watch};
use tokio::time::{Instant, timeout_at};
use tracing::info;

pub use self::options::Options;
use crate::base::authority::Authority;
use crate::base::random::random;
use crate::policy::allowlist::{Target, TargetId};
use crate::protocol::host_key::HostKeys;
use crate::protocol::registration::ReplicaList;
use crate::tunnel::dial::Upstream;
use crate::tunnel::http2::Stream;
use crate::tunnel::http2::client::{OpenError, Streams};
use crate::tunnel::limits::slots::{Slot, Slots};
use crate::tunnel::outcome::{CloseReason, RefusalReason};

mod options;

/// The anchors of a replica.
#[derive(Debug)]
pub struct Anchors {
    /// The id of this replica.
    pub replica: Box<str>,
    /// The replicas that an anchor has to be connected to.
    pub replicas: watch::Sender<ReplicaList>,
    are_taken: AtomicBool,
    is_publishing: AtomicBool,
    registered: Mutex<HashMap<TargetId, Vec<Arc<Anchor>>>>,
    /// Notified when an anchor has registered.
    changed: Notify,
    numbers: AtomicU64,
}

/// An anchor that is connected.
#[derive(Debug)]
pub struct Anchor {
    /// Its position in the order of registrations.
    number: u64,
    /// The name that it serves.
    pub serves: Authority,
    /// Its user.
    pub user: Box<str>,
    /// Its address and the proxy's own.
    pub addresses: [SocketAddr; 2],
    /// When it registered.
    pub since: SystemTime,
    /// The streams of its connection.
    pub streams: Streams,
    /// The host keys of its SSH server.
    pub host_keys: HostKeys,
    dials: Arc<Slots>,
    /// The streams that are open or being opened.
    pub tunnels: Arc<Slots>,
    /// The number of dials in a row that it has not answered in time.
    unanswered: AtomicU32,
    /// Set when its grant has ended or its target is removed, which also ends its tunnels.
    pub ended: SetOnce<CloseReason>,
}

/// A stream of an anchor, counted until this is dropped.
#[derive(Debug)]
pub struct AnchorStream {
    /// The anchor.
    pub anchor: Arc<Anchor>,
    _open: Slot,
}

/// An anchor in the list of its target; its drop removes it.
#[derive(Debug)]
pub struct Registration<'a> {
    anchors: &'a Anchors,
    id: TargetId,
    anchor: Arc<Anchor>,
}

/// The timeouts of a dial.
#[derive(Clone, Copy, Debug)]
pub struct DialTimeouts {
    /// For an anchor to register, if there is none.
    pub wait: Duration,
    /// For the answer of one anchor, while others are left.
    pub attempt: Duration,
    /// For the answers of all.
    pub dial: Duration,
}

impl Anchors {
    /// Creates an empty registry. Without an `id`, it draws a random one. Until the ids of the replicas are known,
    /// anchors are told their number, `replicas`.
    pub fn new(id: Option<Box<str>>, replicas: NonZeroU32) -> Self {
        let by_chance = || format!("r-{:016x}", random()).into();
        Self {
            replica: id.unwrap_or_else(by_chance),
            replicas: watch::Sender::new(ReplicaList::Count(replicas)),
            are_taken: AtomicBool::new(false),
            is_publishing: AtomicBool::new(true),
            registered: Mutex::default(),
            changed: Notify::new(),
            numbers: AtomicU64::new(0),
        }
    }

    /// Returns whether anchors may dial in at all.
    pub fn are_taken(&self) -> bool {
        self.are_taken.load(Ordering::Relaxed)
    }

    /// Sets whether anchors may dial in.
    pub fn set_taken(&self, are_taken: bool) {
        self.are_taken.store(are_taken, Ordering::Relaxed);
    }

    /// Returns whether clients are sent the host keys of anchors.
    pub fn is_publishing(&self) -> bool {
        self.is_publishing.load(Ordering::Relaxed)
    }

    /// Sets whether clients are sent the host keys of anchors.
    pub fn set_publishing(&self, is_publishing: bool) {
        self.is_publishing.store(is_publishing, Ordering::Relaxed);
    }

    /// Returns whether a target has reached its limit of anchors.
    pub fn is_full(&self, id: &TargetId) -> bool {
        let registered = self.registered.lock();
        registered
            .get(id)
            .is_some_and(|of_target| of_target.len() >= MAX_PER_TARGET)
    }

    /// Registers an anchor, which is the active one of its target from now on.
    ///
    /// # Errors
    /// [`RefusalReason::TargetAnchorsFull`].
    pub fn register(&self, id: &TargetId, mut anchor: Anchor) -> Result<Registration<'_>, RefusalReason> {
        anchor.number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let anchor = Arc::new(anchor);
        let mut registered = self.registered.lock();
        let of_target = registered.entry(id.clone()).or_default();
        if of_target.len() >= MAX_PER_TARGET {
            return Err(RefusalReason::TargetAnchorsFull);
        }
        of_target.push(Arc::clone(&anchor));
        let standby = of_target.len() - 1;
        drop(registered);
        let [peer, _] = anchor.addresses;
        info!(target = %id, user = %anchor.user, %peer, standby, "an anchor has registered, and is the active one");
        self.changed.notify_waiters();
        Ok(Registration {
            anchors: self,
            id: id.clone(),
            anchor,
        })
    }

    /// Returns the anchors of a target, the active one first.
    pub fn of(&self, id: &TargetId) -> Vec<Arc<Anchor>> {
        let mut anchors = self.registered.lock().get(id).cloned().unwrap_or_default();
        anchors.sort_by_key(|anchor| anchor.rank());
        anchors
    }

    /// Returns the number of all anchors.
    pub fn count(&self) -> usize {
        self.registered.lock().values().map(Vec::len).sum()
    }

    /// Returns the number of streams, open or being opened, of all anchors.
    pub fn tunnels(&self) -> u32 {
        let registered = self.registered.lock();
        registered.values().flatten().map(|anchor| anchor.tunnels.taken()).sum()
    }

    /// Opens a stream at the active anchor of a target, or else at the next one. Waits for an anchor if there is none.
    ///
    /// # Errors
    /// [`RefusalReason::NoAnchor`], or the last anchor's: [`RefusalReason::DialTimeout`] without an answer,
    /// [`RefusalReason::TargetRefused`] with one other than 200, [`RefusalReason::TargetBusy`] while 128 dials wait for
    /// its answers.
    pub async fn dial(
        &self,
        target: &Target,
        timeouts: DialTimeouts,
    ) -> Result<(Upstream<Stream>, AnchorStream), RefusalReason> {
        let start = Instant::now();
        let (mut last, mut tried, mut end) = (RefusalReason::NoAnchor, Vec::new(), None);
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Enabled before the lookup, so that no registration is missed.
            changed.as_mut().enable();
            let mut untried = self.of(target.id());
            untried.retain(|anchor| !tried.contains(&anchor.number));
            let Some(anchor) = untried.first() else {
                if last == RefusalReason::NoAnchor && timeout_at(start + timeouts.wait, changed).await.is_ok() {
                    continue;
                }
                return Err(last);
            };
            tried.push(anchor.number);
            let now = Instant::now();
            let end = *end.get_or_insert(now + timeouts.dial);
            if now >= end {
                return Err(last);
            }
            let until = match untried.len() {
                1 => end,
                _ => end.min(now + timeouts.attempt),
            };
            match anchor.open(until).await {
                Ok(stream) => return Ok(stream),
                // Its connection has ended, or it has reset the stream: another anchor may come.
                Err(RefusalReason::NoAnchor) => {}
                Err(reason) => last = reason,
            }
        }
    }
}

impl Anchor {
    /// Creates an anchor that serves this name over these streams.
    pub fn new(serves: Authority, user: &str, addresses: [SocketAddr; 2], streams: Streams) -> Self {
        Self {
            number: 0,
            serves,
            user: user.into(),
            addresses,
            since: SystemTime::now(),
            streams,
            host_keys: HostKeys::default(),
            dials: Arc::new(Slots::exactly(MAX_DIALS)),
            tunnels: Arc::new(Slots::new(None)),
            unanswered: AtomicU32::new(0),
            ended: SetOnce::new(),
        }
    }

    /// Returns its rank among the anchors of its target: those that answer come first, the newest before older ones.
    fn rank(&self) -> (u32, Reverse<u64>) {
        (self.unanswered.load(Ordering::Relaxed), Reverse(self.number))
    }

    async fn open(self: &Arc<Self>, deadline: Instant) -> Result<(Upstream<Stream>, AnchorStream), RefusalReason> {
        let _dial = self.dials.take().ok_or(RefusalReason::TargetBusy)?;
        let open = self.tunnels.take().ok_or(RefusalReason::TargetBusy)?;
        let Ok(opened) = timeout_at(deadline, self.streams.open(&self.serves)).await else {
            self.unanswered.fetch_add(1, Ordering::Relaxed);
            return Err(RefusalReason::DialTimeout);
        };
        if let Err(OpenError::Broken(_)) = opened {
            return Err(RefusalReason::NoAnchor);
        }
        self.unanswered.store(0, Ordering::Relaxed);
        let stream = opened.map_err(|_| RefusalReason::TargetRefused)?;
        let [address, local] = self.addresses;
        let upstream = Upstream { stream, address, local };
        let tunnel = AnchorStream {
            anchor: Arc::clone(self),
            _open: open,
        };
        Ok((upstream, tunnel))
    }

    /// Completes when its grant has ended or its target is removed.
    pub async fn ended(&self) -> CloseReason {
        *self.ended.wait().await
    }
}

impl Registration<'_> {
    /// Returns the anchor.
    pub fn anchor(&self) -> &Arc<Anchor> {
        &self.anchor
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let mut registered = self.anchors.registered.lock();
        let Some(of_target) = registered.get_mut(&self.id) else {
            return;
        };
        of_target.retain(|other| other.number != self.anchor.number);
        let next = of_target.iter().min_by_key(|other| other.rank()).cloned();
        if of_target.is_empty() {
            registered.remove(&self.id);
        }
        drop(registered);
        if let Some(next) = next.filter(|next| next.rank() > self.anchor.rank()) {
            let [peer, _] = next.addresses;
            info!(target = %self.id, user = %next.user, %peer, "an anchor that stood by is the active one");
        }
    }
}

/// Maximum number of anchors of one target.
const MAX_PER_TARGET: usize = 32;
/// Maximum number of dials of one anchor at a time.
const MAX_DIALS: u32 = 128;
