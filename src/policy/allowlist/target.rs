//! A target as its tunnels share it: its endpoints and its limits, which may change while tunnels run.

use std::fmt;
use std::future::{Future, pending};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use super::host_keys::TargetKeys;
use super::workload::{Stop, Workloads};
use crate::base::boxed::boxed;
use crate::net::tls::CertificateNames;
use crate::protocol::host_key::PublishedKeys;
use crate::protocol::phrase::Phrase;
use crate::tunnel::direction::{Both, Direction};
use crate::tunnel::limits::TargetLimits;
use crate::tunnel::limits::bucket::RateLimit;
use crate::tunnel::limits::budget::Budgets;
use crate::tunnel::limits::queue::{DialQueue, Permit, QueueTimeouts};
use crate::tunnel::limits::slots::{Slot, Slots};
use crate::tunnel::outcome::{Refusal, RefusalReason};
use crate::tunnel::proxy_header;
use crate::tunnel::target_metrics::{TargetMetrics, TargetSeries};

/// The identity of a target, also its metric labels.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TargetId {
    /// The namespace of its Service, or `static`.
    pub namespace: Box<str>,
    /// The name of its Service, `pod.service` for one of its pods, `pod._pod` for a pod without a Service, or the authority
    /// of a static target.
    pub service: Box<str>,
}

impl TargetId {
    /// The end of the name of a pod without a Service. No Service has an underscore in its name.
    pub const POD: &str = "._pod";
    /// The end of the names that clients request for such pods.
    pub const POD_DOMAIN: &str = "pod";

    /// Returns the shortest name, `svc.ns`, `pod.svc.ns` or `pod.ns.pod`. Nothing else has it: no part has a dot, and the
    /// pods of a Service in a namespace `pod` have no names.
    pub fn short_name(&self) -> String {
        let Self { namespace, service } = self;
        match service.strip_suffix(Self::POD) {
            Some(pod) => format!("{pod}.{namespace}.{}", Self::POD_DOMAIN),
            None => format!("{service}.{namespace}"),
        }
    }

    /// Returns the identity of a pod without a Service.
    pub fn of_pod(namespace: &str, pod: &str) -> Self {
        Self {
            namespace: namespace.into(),
            service: format!("{pod}{}", Self::POD).into(),
        }
    }

    /// Returns whether this is a pod without a Service.
    pub fn is_pod(&self) -> bool {
        self.service.ends_with(Self::POD)
    }

    /// Returns the name of the Service, also for one of its pods. Only for what is not static.
    pub fn service_name(&self) -> &str {
        self.service.rsplit('.').next().unwrap_or_default()
    }

    /// Returns the name of the pod, for one of a Service's pods; `None` for a Service. Only for what is not static.
    pub fn pod_name(&self) -> Option<&str> {
        self.service.split_once('.').map(|(pod, _)| pod)
    }

    /// Returns whether this is a static target's identity. A namespace may be called `static`, too, so the colon of the
    /// authority decides: no name of a Service has one.
    pub fn is_static(&self) -> bool {
        &*self.namespace == STATIC && self.service.contains(':')
    }

    /// Returns whether the other one is this target, or a pod of this Service.
    pub fn covers(&self, other: &Self) -> bool {
        let is_pod = !other.is_static() && *other.service_name() == *self.service;
        self == other || (self.namespace == other.namespace && is_pod)
    }

    /// Returns whether `name` is this identity as `namespace/service`.
    pub fn is_named(&self, name: &str) -> bool {
        let service = name
            .strip_prefix(&*self.namespace)
            .and_then(|rest| rest.strip_prefix('/'));
        service == Some(&self.service)
    }
}

/// The namespace of static targets.
pub(super) const STATIC: &str = "static";

/// Prints `namespace/service`.
impl fmt::Display for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.service)
    }
}

/// The endpoints of a target at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// The addresses to dial; empty while no endpoint is ready.
    pub addresses: Box<[SocketAddr]>,
    /// The node of each address, in their order; empty if none is known.
    pub nodes: Box<[Box<str>]>,
    /// The number of ready endpoints.
    pub ready: u32,
    /// The number of all endpoints.
    pub total: u32,
    /// The version of the PROXY header that a tunnel begins with, if any.
    pub proxy_header: Option<proxy_header::Version>,
}

impl Endpoints {
    /// Returns the node of an address; empty if it is not known.
    pub fn node(&self, address: SocketAddr) -> &str {
        let mut named = self.addresses.iter().zip(&self.nodes);
        named.find(|(known, _)| **known == address).map_or("", |(_, node)| node)
    }
}

/// Addresses of a static target, which count as ready.
impl From<Vec<SocketAddr>> for Endpoints {
    fn from(addresses: Vec<SocketAddr>) -> Self {
        let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        Self {
            addresses: addresses.into(),
            nodes: Box::default(),
            ready: count,
            total: count,
            proxy_header: None,
        }
    }
}

/// Names of client certificates, one of which a client must have.
pub type ClientNames = Box<[Box<str>]>;

/// The users that may reach a target: they replace the API server's decision. Snapshots contain the field names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserLists {
    /// Names of users.
    pub users: Box<[Box<str>]>,
    /// Names of groups.
    pub groups: Box<[Box<str>]>,
}

/// A target that has no address: anchors dial in and serve it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DialsIn {
    /// The users that may serve it; `None` leaves the decision to the API server.
    pub anchors: Option<Arc<UserLists>>,
}

/// The conditions of a target's tunnels. Most targets share one value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetRules {
    /// Its limits.
    pub limits: TargetLimits,
    /// The names of client certificates, one of which a client must have; `None` allows every client.
    pub allowed_clients: Option<Arc<ClientNames>>,
    /// The users that may reach it; `None` leaves the decision to the API server, which knows no static target.
    pub user_lists: Option<Arc<UserLists>>,
    /// The name of the object that owns it, for permissions that name that one; `None` if its label names none.
    pub owner: Option<Box<str>>,
    /// The identity of the pod, for one without a Service.
    pub uid: Option<Box<str>>,
    /// The further name of such a pod, within its namespace.
    pub alias: Option<Box<str>>,
    /// True while a list that may have it, or decides about it, is missing since a reload: no new tunnel begins.
    pub is_awaited: bool,
    /// The anchors of a target that dials in; `None` for a target that is dialled at its endpoints.
    pub dials_in: Option<DialsIn>,
    /// The workloads to start, and to report activity to.
    pub workloads: Workloads,
    /// The stop by its owner, if there is one.
    pub stopped: Option<Stop>,
    /// Its host keys; `None` if neither the configuration nor an annotation has any.
    pub host_keys: Option<TargetKeys>,
}

/// An SSH server on the allowlist. Its tunnels share it, so that changes of its limits and its removal reach them.
#[derive(Debug)]
pub struct Target {
    id: TargetId,
    endpoints: ArcSwap<Endpoints>,
    /// Notified when the endpoints have changed.
    endpoints_changed: Notify,
    next_address: AtomicUsize,
    rates: Both<RateLimit>,
    rules: ArcSwap<TargetRules>,
    /// Created by the first request: most targets of a large cluster get none in this process, and need 200 bytes less.
    shared: OnceLock<Box<Budgets>>,
    tunnels: OnceLock<Arc<Slots>>,
    dials: OnceLock<Arc<DialQueue>>,
    /// Created by its first use, or by the removal.
    removed: OnceLock<CancellationToken>,
    series: OnceLock<Arc<TargetSeries>>,
    last_dial: Mutex<Option<LastDial>>,
    /// True if an operator lets no new tunnel begin.
    is_cordoned: AtomicBool,
}

/// A dial that has ended.
#[derive(Clone, Copy, Debug)]
pub struct LastDial {
    /// When.
    pub at: SystemTime,
    /// Why it has failed; `None` if it has not.
    pub error: Option<RefusalReason>,
}

impl Target {
    pub(super) fn new(id: TargetId, endpoints: Endpoints, rules: Arc<TargetRules>) -> Self {
        let tunnel = &rules.limits.tunnel;
        Self {
            id,
            endpoints: ArcSwap::from_pointee(endpoints),
            endpoints_changed: Notify::new(),
            next_address: AtomicUsize::new(0),
            rates: Both {
                upload: RateLimit::new(tunnel.upload, tunnel.burst),
                download: RateLimit::new(tunnel.download, tunnel.burst),
            },
            rules: ArcSwap::new(rules),
            shared: OnceLock::new(),
            tunnels: OnceLock::new(),
            dials: OnceLock::new(),
            removed: OnceLock::new(),
            series: OnceLock::new(),
            last_dial: Mutex::default(),
            is_cordoned: AtomicBool::new(false),
        }
    }

    /// Returns its identity.
    pub fn id(&self) -> &TargetId {
        &self.id
    }

    /// Returns its current endpoints.
    pub fn endpoints(&self) -> Arc<Endpoints> {
        self.endpoints.load_full()
    }

    /// Returns its endpoints, as soon as there is an address to dial. Pending forever if it never gets one.
    pub async fn ready_endpoints(&self) -> Arc<Endpoints> {
        loop {
            let mut changed = pin!(self.endpoints_changed.notified());
            // Enabled before the load, so that no later change is missed.
            changed.as_mut().enable();
            let endpoints = self.endpoints();
            if !endpoints.addresses.is_empty() {
                return endpoints;
            }
            changed.await;
        }
    }

    /// Returns a number that counts up with every dial, to spread dials over the addresses.
    pub fn next_address(&self) -> usize {
        self.next_address.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the rate of each of its tunnels in one direction.
    pub fn limit(&self, direction: Direction) -> &RateLimit {
        &self.rates[direction]
    }

    /// Returns the rates of all of its tunnels together.
    pub fn shared(&self) -> &Budgets {
        let make = |limits: &TargetLimits| Box::new(Budgets::new(limits.caps.rates(), limits.tunnel.burst));
        self.get_or_init::<Box<Budgets>>(&self.shared, make)
    }

    /// Returns the longest life of a tunnel that begins now; `None` is unlimited.
    pub fn lifetime(&self) -> Option<Duration> {
        self.rules.load().limits.tunnel.lifetime
    }

    /// Returns the longest idle time of a tunnel that begins now; `None` is unlimited. `default` is the process's.
    pub fn idle(&self, default: Option<Duration>) -> Option<Duration> {
        self.rules.load().limits.idle.unwrap_or(default)
    }

    /// Returns whether both sides of a tunnel that begins now must begin with an SSH identification.
    pub fn ssh_only(&self) -> bool {
        self.rules.load().limits.ssh_only
    }

    /// Returns whether a tunnel that its rules refuse is served, and only reported.
    pub fn reports(&self) -> bool {
        self.rules.load().limits.reports
    }

    /// Takes one of its slots for tunnels.
    ///
    /// # Errors
    /// [`RefusalReason::AllowlistNotReady`], [`RefusalReason::TargetClosed`] or [`RefusalReason::TargetFull`].
    pub fn take_slot(&self) -> Result<Slot, Refusal> {
        let rules = self.rules.load();
        if rules.is_awaited {
            return Err(RefusalReason::AllowlistNotReady.into());
        }
        if rules.limits.is_closed || self.is_cordoned() {
            return Err(RefusalReason::TargetClosed.into());
        }
        if let Some(stop) = rules.stopped.filter(|stop| !stop.is_over(SystemTime::now())) {
            let phrase = Phrase::of_target("", format!(" was stopped {stop}"));
            return Err(Refusal::new(RefusalReason::TargetClosed, phrase));
        }
        drop(rules);
        let tunnels = self.get_or_init(&self.tunnels, |limits| Arc::new(Slots::new(limits.caps.tunnels)));
        let phrase = || RefusalReason::TargetFull.phrase().limited(tunnels.max());
        tunnels
            .take()
            .ok_or_else(|| Refusal::new(RefusalReason::TargetFull, phrase()))
    }

    /// Returns whether an operator lets no new tunnel begin, in this process.
    pub fn is_cordoned(&self) -> bool {
        self.is_cordoned.load(Ordering::Relaxed)
    }

    /// Lets no new tunnel begin, or lets them again. Running tunnels go on.
    pub fn set_cordoned(&self, is_cordoned: bool) {
        self.is_cordoned.store(is_cordoned, Ordering::Relaxed);
    }

    /// Takes one of its slots for dials, at once or after the requests that came before.
    ///
    /// # Errors
    /// [`RefusalReason::TargetBusy`].
    pub async fn begin_dial(&self, timeouts: QueueTimeouts) -> Result<Permit, RefusalReason> {
        let dials = self.get_or_init(&self.dials, |limits| Arc::new(DialQueue::new(limits.caps.dials)));
        dials.acquire(timeouts).await.ok_or(RefusalReason::TargetBusy)
    }

    /// Checks that a client with this identity may have a tunnel.
    ///
    /// # Errors
    /// [`RefusalReason::ClientNotAllowed`].
    pub fn check_client(&self, identity: Option<&CertificateNames>) -> Result<(), Refusal> {
        match (&self.rules.load().allowed_clients, identity) {
            (None, _) => Ok(()),
            (Some(clients), Some(identity)) if clients.iter().any(|name| identity.is(name)) => Ok(()),
            (Some(_), Some(_)) => Err(RefusalReason::ClientNotAllowed.into()),
            (Some(_), None) => {
                let phrase = Phrase::of_target("", " requires a client certificate");
                Err(Refusal::new(RefusalReason::ClientNotAllowed, phrase))
            }
        }
    }

    /// Returns its current rules.
    pub fn rules(&self) -> Arc<TargetRules> {
        self.rules.load_full()
    }

    /// Returns the users that it names itself; `None` leaves the decision to the cluster.
    pub fn user_lists(&self) -> Option<Arc<UserLists>> {
        self.rules.load().user_lists.clone()
    }

    /// Returns its anchors, if it is a target that dials in.
    pub fn dials_in(&self) -> Option<DialsIn> {
        self.rules.load().dials_in.clone()
    }

    /// Returns the host keys that the configuration or an annotation publishes, which may be none; `None` without either.
    pub fn host_keys(&self) -> Option<PublishedKeys> {
        self.rules.load().host_keys.as_ref().map(TargetKeys::published)
    }

    /// Completes when a tunnel that begins now has reached its longest life.
    pub async fn lifetime_elapsed(&self) {
        match self.lifetime() {
            Some(lifetime) => boxed(sleep(lifetime)).await,
            None => pending().await,
        }
    }

    /// Returns the result of `work`, unless the target leaves the allowlist first.
    ///
    /// # Errors
    /// The error of `work`, or [`RefusalReason::NotAllowed`].
    pub async fn while_listed<T, E: From<RefusalReason>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        tokio::select! {
            biased;
            () = self.removed() => Err(RefusalReason::NotAllowed.into()),
            done = work => done,
        }
    }

    /// Completes when the target has left the allowlist.
    pub fn removed(&self) -> WaitForCancellationFuture<'_> {
        self.revocation().cancelled()
    }

    /// Returns its metrics, created at its first use.
    pub fn series(&self, metrics: &Arc<TargetMetrics>) -> &Arc<TargetSeries> {
        self.series
            .get_or_init(|| metrics.series(&self.id.namespace, &self.id.service))
    }

    /// Returns when one of its tunnels was last used; `None` before the first one.
    pub fn last_activity(&self) -> Option<SystemTime> {
        self.series.get()?.last_activity()
    }

    /// Notes the end of a dial.
    pub fn note_dial(&self, error: Option<RefusalReason>) {
        let at = SystemTime::now();
        *self.last_dial.lock() = Some(LastDial { at, error });
    }

    /// Returns its last dial; `None` before the first one.
    pub fn last_dial(&self) -> Option<LastDial> {
        *self.last_dial.lock()
    }

    /// Updates it, for running and new tunnels. Returns whether other users than before may reach it.
    pub(super) fn update(&self, endpoints: Endpoints, rules: &Arc<TargetRules>) -> bool {
        if **self.endpoints.load() != endpoints {
            self.endpoints.store(Arc::new(endpoints));
            self.endpoints_changed.notify_waiters();
        }
        let before = self.rules();
        if before == *rules {
            return false;
        }
        let tunnel = &rules.limits.tunnel;
        self.rates.upload.set(tunnel.upload, tunnel.burst);
        self.rates.download.set(tunnel.download, tunnel.burst);
        // Stored first: limits that a request creates from the old rules at the same time are then set to the new ones.
        self.rules.store(Arc::clone(rules));
        self.apply_limits();
        before.user_lists != rules.user_lists || before.dials_in != rules.dials_in || before.owner != rules.owner
    }

    pub(super) fn remove(&self) {
        self.revocation().cancel();
    }

    fn revocation(&self) -> &CancellationToken {
        self.removed.get_or_init(CancellationToken::new)
    }

    /// Returns the limits in `cell`, which the first request creates.
    fn get_or_init<'a, T>(&self, cell: &'a OnceLock<T>, make: impl FnOnce(&TargetLimits) -> T) -> &'a T {
        if let Some(made) = cell.get() {
            return made;
        }
        let made = cell.get_or_init(|| make(&self.rules.load().limits));
        // An update just before `made` was stored has not changed it.
        self.apply_limits();
        made
    }

    /// Applies the current rules to the limits that requests have created.
    fn apply_limits(&self) {
        let limits = self.rules.load().limits;
        if let Some(shared) = self.shared.get() {
            shared.set(limits.caps.rates(), limits.tunnel.burst);
        }
        if let Some(tunnels) = self.tunnels.get() {
            tunnels.set(limits.caps.tunnels);
        }
        if let Some(dials) = self.dials.get() {
            dials.set(limits.caps.dials);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::limits::TargetCaps;
    use std::num::NonZeroU32;
    use std::time::Duration;
    use tokio::time::timeout;

    fn target(endpoints: Endpoints, limits: TargetLimits) -> Arc<Target> {
        let id = TargetId {
            namespace: "a".into(),
            service: "b".into(),
        };
        Arc::new(Target::new(id, endpoints, rules(limits)))
    }

    fn rules(limits: TargetLimits) -> Arc<TargetRules> {
        let rest = TargetRules::default();
        Arc::new(TargetRules { limits, ..rest })
    }

    #[test]
    fn a_service_covers_its_pods_and_nothing_else() {
        let id = |namespace: &str, service: &str| TargetId {
            namespace: namespace.into(),
            service: service.into(),
        };
        let web = id("n", "web");
        assert!(web.covers(&web) && web.covers(&id("n", "web-0.web")));
        for other in [id("m", "web-0.web"), id("n", "web-0.other"), id("n", "other")] {
            assert!(!web.covers(&other) && !id("n", "web-0.web").covers(&web), "{other}");
        }
        let of_static = id("static", "a.web:22");
        assert!(of_static.covers(&of_static) && !id("static", "web:22").covers(&of_static));
    }

    #[tokio::test]
    async fn a_wait_for_an_endpoint_ends_with_the_first_one() {
        let target = target(Endpoints::default(), TargetLimits::default());
        let waiting = Arc::clone(&target);
        let waiter = tokio::spawn(async move { waiting.ready_endpoints().await });
        tokio::task::yield_now().await;
        let none_ready = Endpoints {
            total: 1,
            ..Endpoints::default()
        };
        target.update(none_ready, &Arc::default());
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        let endpoints = Endpoints::from(vec!["10.0.0.1:22".parse().unwrap()]);
        target.update(endpoints.clone(), &Arc::default());
        let got = timeout(Duration::from_secs(5), waiter).await.unwrap().unwrap();
        assert_eq!(*got, endpoints);
    }

    #[tokio::test(start_paused = true)]
    async fn tunnels_and_dials_are_refused_beyond_their_caps() {
        let few = TargetLimits {
            caps: TargetCaps {
                tunnels: NonZeroU32::new(2),
                dials: NonZeroU32::new(1),
                ..TargetCaps::default()
            },
            ..TargetLimits::default()
        };
        let target = target(Endpoints::default(), few);
        let _tunnels = [target.take_slot().unwrap(), target.take_slot().unwrap()];
        assert_eq!(target.take_slot().unwrap_err().reason, RefusalReason::TargetFull);
        let closed = TargetLimits {
            is_closed: true,
            ..TargetLimits::default()
        };
        target.update(Endpoints::default(), &rules(closed));
        assert_eq!(target.take_slot().unwrap_err().reason, RefusalReason::TargetClosed);
        let stopped = |text: &str| {
            let rest = TargetRules::clone(&rules(few));
            let rules = TargetRules {
                stopped: Some(text.parse().unwrap()),
                ..rest
            };
            target.update(Endpoints::default(), &Arc::new(rules));
            let refusal = target.take_slot().unwrap_err();
            (refusal.reason, refusal.phrase().to_owned())
        };
        let closed = |phrase: &str| (RefusalReason::TargetClosed, phrase.to_owned());
        assert_eq!(stopped("true"), closed("the target was stopped by its owner"));
        let until = "the target was stopped by its owner until 2999-01-15T08:00:00Z";
        assert_eq!(stopped("until 2999-01-15T09:00:00+01:00"), closed(until));
        assert_eq!(stopped("until 2026-01-15T09:00:00Z").0, RefusalReason::TargetFull);
        target.update(Endpoints::default(), &rules(few));
        let second = Duration::from_secs(1);
        let timeouts = QueueTimeouts {
            total: second,
            stalled: second,
        };
        let dial = || target.begin_dial(timeouts);
        let _dial = dial().await.unwrap();
        assert_eq!(dial().await.unwrap_err(), RefusalReason::TargetBusy);
        target.update(Endpoints::default(), &Arc::default());
        let mut more = Vec::new();
        for _ in 0..10 {
            more.push((target.take_slot().unwrap(), dial().await.unwrap()));
        }
    }
}
