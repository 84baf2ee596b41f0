//! Keeps a connection to each replica of the proxy by dialling their common address.
//!
//! A load balancer chooses the replica. If it is connected already, the new connection is dropped, and another dial
//! follows after a pause.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::anchor::shared::Shared;
use crate::base::authority::Authority;
use crate::base::random::{self, jittered};
use crate::base::text::{chain, printable};
use crate::daemon::readiness::{Condition, Readiness};
use crate::protocol::registration::ReplicaList;
use crate::uplink;
use crate::uplink::attempt::{self, OpenConnection};
use crate::uplink::credential_cache::CachedLogin;
use crate::uplink::dial::dialer::ProxyDialer;
use crate::uplink::dial::head::Wanted;
use crate::uplink::error::ClientError;

/// The connections of an anchor that dials in.
#[derive(Debug)]
pub(in crate::anchor) struct Coverage {
    shared: Arc<Shared>,
    uplink: uplink::Options,
    serves: Authority,
    readiness: Readiness,
    state: Mutex<State>,
    /// Notified when a replica sends a list, drains or disconnects.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The connections by their numbers.
    connections: HashMap<u64, Replica>,
    /// The list of the connection that ended last; `None` before the first one.
    last: Option<ReplicaList>,
    dials: u64,
    /// Keeps the anchor unready while no connection is usable; else `None`.
    unconnected: Option<Condition>,
}

/// The replica at the other end of a connection.
#[derive(Clone, Debug)]
struct Replica {
    id: Box<str>,
    /// The replicas that it has announced.
    list: ReplicaList,
    is_draining: bool,
}

/// The membership of a connection in the coverage. Its drop removes the connection.
#[derive(Debug)]
pub(super) struct CoveredReplica {
    coverage: Arc<Coverage>,
    number: u64,
    peer: SocketAddr,
}

/// The result of a dial.
pub(super) enum DialResult {
    /// A replica that was missing is connected.
    New(Box<(OpenConnection, CoveredReplica)>),
    /// The replica is connected already.
    Surplus,
    /// There is no connection.
    Failed(ClientError),
}

impl Coverage {
    pub(in crate::anchor) fn new(
        shared: Arc<Shared>,
        uplink: uplink::Options,
        serves: Authority,
        readiness: Readiness,
    ) -> Arc<Self> {
        let coverage = Arc::new(Self {
            shared,
            uplink,
            serves,
            readiness,
            state: Mutex::default(),
            changed: Notify::new(),
        });
        coverage.publish(&mut coverage.state.lock());
        coverage
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns the name that the anchor serves.
    pub(super) fn serves(&self) -> &Authority {
        &self.serves
    }

    /// Completes when a replica has no connection. Pauses after a wait, so that not all anchors dial a new replica at
    /// once.
    pub(super) async fn missing(&self) {
        let mut has_waited = false;
        while !self.state.lock().is_missing() {
            self.changed.notified().await;
            has_waited = true;
        }
        if has_waited {
            sleep(jittered(MAX_HASTE)).await;
        }
    }

    /// Completes when the list, or a connection, has changed.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Dials the proxy once.
    pub(super) async fn dial(self: &Arc<Self>, login: &mut CachedLogin) -> DialResult {
        let host = self.uplink.proxy.authority();
        let host_keys = self.shared.host_keys();
        let wanted = Wanted::Registration {
            serves: &self.serves,
            host,
            host_keys: &host_keys,
        };
        let mut dialing = ProxyDialer::default();
        match Box::pin(attempt::open(&self.uplink, &wanted, login, &mut dialing)).await {
            Ok(opened) => {
                login.succeeded();
                self.enter(opened)
            }
            Err(error) => DialResult::Failed(error),
        }
    }

    /// Adds a connection. If its replica already has a usable connection, only updates the replica's list.
    fn enter(self: &Arc<Self>, mut opened: OpenConnection) -> DialResult {
        let Some((id, list)) = opened.agreement.replicas.take() else {
            return DialResult::Failed(ClientError::NoAnchors);
        };
        let mut state = self.state.lock();
        let mut connections = state.connections.values_mut();
        if let Some(covered) = connections.find(|replica| !replica.is_draining && replica.id == id) {
            covered.list = list;
            self.publish(&mut state);
            return DialResult::Surplus;
        }
        state.dials += 1;
        let number = state.dials;
        let replica = Replica {
            id: id.clone(),
            list,
            is_draining: false,
        };
        state.connections.insert(number, replica);
        let (connected, wanted) = self.publish(&mut state);
        drop(state);
        info!(replica = %id, serves = %self.serves, "registered: connected to {connected} of {wanted} replicas");
        let replica = CoveredReplica {
            coverage: Arc::clone(self),
            number,
            peer: opened.peer.unwrap_or(UNKNOWN),
        };
        DialResult::New(Box::new((opened, replica)))
    }

    /// Changes the replica at the other end of a connection.
    fn change(&self, number: u64, change: impl FnOnce(&mut Replica)) {
        let mut state = self.state.lock();
        if let Some(replica) = state.connections.get_mut(&number) {
            change(replica);
        }
        self.publish(&mut state);
        drop(state);
        self.changed.notify_one();
    }

    /// Publishes the readiness, and the numbers of connected and of wanted replicas; returns the numbers. The caller
    /// holds the lock, so that an older state is not published after a newer one.
    fn publish(&self, state: &mut State) -> (usize, usize) {
        let (connected, wanted) = state.count();
        let note = format!("connected to {connected} of {wanted} replicas\n");
        // Before the condition: a page that shows the new condition shows the new numbers.
        self.readiness.set_note(note);
        if state.usable().next().is_some() {
            state.unconnected = None;
        } else if state.unconnected.is_none() {
            state.unconnected = Some(self.readiness.require(CONDITION));
        }
        let as_gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.shared.metrics.dial_in.replicas.set(as_gauge(connected));
        self.shared.metrics.dial_in.replicas_wanted.set(as_gauge(wanted));
        (connected, wanted)
    }
}

impl State {
    /// Returns the replicas that are connected and do not drain.
    fn usable(&self) -> impl Iterator<Item = &Replica> {
        self.connections.values().filter(|replica| !replica.is_draining)
    }

    /// Returns the numbers of connected and of wanted replicas.
    ///
    /// Each replica watches the cluster by itself, and its list may be stale. So a replica is wanted if any usable
    /// connection lists it. Without a usable connection, the lists of draining replicas and the last list count.
    fn count(&self) -> (usize, usize) {
        let lists: Vec<_> = match self.usable().next() {
            Some(_) => self.usable().map(|replica| &replica.list).collect(),
            None => self
                .connections
                .values()
                .map(|replica| &replica.list)
                .chain(&self.last)
                .collect(),
        };
        let ids: BTreeSet<&str> = lists.iter().flat_map(|list| list.ids()).collect();
        if ids.is_empty() {
            let wanted = lists.iter().map(|list| list.len()).max().unwrap_or(1);
            return (self.usable().count().min(wanted), wanted);
        }
        let connected: BTreeSet<&str> = self.usable().map(|replica| &*replica.id).collect();
        (ids.intersection(&connected).count(), ids.len())
    }

    /// Returns whether a replica has no connection, and [`MAX_CONNECTIONS`] is not reached.
    fn is_missing(&self) -> bool {
        let (connected, wanted) = self.count();
        connected < wanted && self.usable().count() < MAX_CONNECTIONS
    }
}

impl CoveredReplica {
    /// Returns the address of the proxy.
    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Replaces the replica's list.
    pub(super) fn set_list(&self, list: ReplicaList) {
        self.coverage.change(self.number, |replica| replica.list = list);
    }

    /// Notes that the replica drains: its connection no longer counts.
    pub(super) fn set_draining(&self) {
        self.coverage.change(self.number, |replica| replica.is_draining = true);
    }
}

impl Drop for CoveredReplica {
    fn drop(&mut self) {
        let coverage = &self.coverage;
        let mut state = coverage.state.lock();
        let Some(Replica { id, list, .. }) = state.connections.remove(&self.number) else {
            return;
        };
        state.last = Some(list);
        let (connected, wanted) = coverage.publish(&mut state);
        drop(state);
        info!(replica = %id, "the connection has ended: connected to {connected} of {wanted} replicas");
        coverage.changed.notify_one();
    }
}

impl DialResult {
    /// Returns the value of a label.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::New(_) => "registered",
            Self::Surplus => "surplus",
            Self::Failed(ClientError::Refused(_)) => "refused",
            Self::Failed(ClientError::NoAnchors) => "no_anchors",
            Self::Failed(_) => "failed",
        }
    }
}

/// The results of a dial that the metrics export from the start.
pub(in crate::anchor) const RESULTS: [&str; 5] = ["registered", "surplus", "refused", "no_anchors", "failed"];

/// The pauses between dials, and the last failure in the log.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    surplus: u32,
    reported: String,
}

impl Backoff {
    /// Returns the pause after a change of the lists or the connections. The pause is short, to find a missing replica
    /// soon, but not zero: a list that keeps changing must not cause a loop of dials.
    pub(super) fn restart(&mut self) -> Duration {
        self.surplus = 0;
        jittered(MAX_HASTE)
    }

    /// Returns the pause after a dial. Logs a failure unlike the last one.
    pub(super) fn after(&mut self, result: &DialResult) -> Duration {
        let error = match result {
            DialResult::New(_) => {
                *self = Self::default();
                // A connection that ends at once must not make a loop of dials.
                return jittered(MAX_HASTE);
            }
            // A balancer chooses a replica at random or in turn: it soon reaches a missing one that is up.
            DialResult::Surplus => {
                self.failures = 0;
                self.surplus += 1;
                let beyond = self.surplus.saturating_sub(HASTY_DIALS);
                return jittered(growing(beyond.max(1), MAX_SURPLUS_PAUSE).max(MAX_HASTE));
            }
            DialResult::Failed(error) => error,
        };
        self.failures += 1;
        let sentence = chain(error);
        if sentence != self.reported {
            warn!("cannot register: {}", printable(&sentence, MAX_CHARS));
            self.reported = sentence;
        }
        let pause = match error {
            ClientError::NoAnchors => UNKNOWN_PAUSE,
            ClientError::Refused(refusal) => {
                let least = match refusal.status {
                    400..500 => MAX_PAUSE,
                    _ => growing(self.failures, MAX_PAUSE),
                };
                return refusal.retry_after.unwrap_or_default().min(UNKNOWN_PAUSE) + jittered(least);
            }
            ClientError::Target(_)
            | ClientError::Cleartext
            | ClientError::Lost(_)
            | ClientError::Unidentified
            | ClientError::Moved(_)
            | ClientError::Never(_)
            | ClientError::WithBackoff(_)
            | ClientError::Immediately(_) => growing(self.failures, MAX_PAUSE),
        };
        jittered(pause)
    }
}

/// Returns the pause after so many dials in a row.
fn growing(times: u32, max: Duration) -> Duration {
    let first = Duration::from_millis(100);
    random::Backoff { first, max }.after(times - 1)
}

/// The address of a proxy behind another proxy.
const UNKNOWN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
/// Maximum number of usable connections.
const MAX_CONNECTIONS: usize = 16;
/// Maximum pause between failed dials, unless the proxy asks for more or takes no anchors.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// Maximum pause between surplus dials: a balancer may never send this host to another replica.
const MAX_SURPLUS_PAUSE: Duration = Duration::from_secs(5);
/// Surplus dials before their pauses grow. 20 random dials miss one of five replicas with a probability of 1%.
const HASTY_DIALS: u32 = 20;
/// The pause between those dials, after a new connection, and after a change.
const MAX_HASTE: Duration = Duration::from_millis(500);
/// The pause if the proxy takes no anchors, and the maximum `Retry-After`.
const UNKNOWN_PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of characters of a failure in the log.
const MAX_CHARS: usize = 400;
/// The condition of `/readyz`.
const CONDITION: &str = "proxy";
