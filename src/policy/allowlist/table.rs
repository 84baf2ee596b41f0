//! The allowlist, and the immutable table that its lookups read: static targets by authority, and Services in shards.
//! A writer replaces the table as a whole, so that readers never wait.
//!
//! A Service has many names (`svc.ns`, `svc.ns.svc`, …), each at two ports. A lookup reduces a name to the shortest, so
//! a Service needs one entry. The entries are in shards, so that a change copies one shard and not the table.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{SetOnce, watch};
use tokio::time::sleep;

use super::target::{Endpoints, Target, TargetId};
use super::wake::{WakeRequests, WakeResult};
use crate::base::authority::{Authority, short_host};
use crate::base::fnv::fnv1a;
use crate::protocol::listing::NameFilter;
use crate::tunnel::outcome::{Refusal, RefusalReason};

/// The names that clients may ask for. A [`Writer`](super::Writer) changes them.
#[derive(Debug, Default)]
pub struct Allowlist {
    pub(super) table: ArcSwap<Table>,
    /// The number of static targets whose name a Service claims too.
    pub(super) shadowing: AtomicUsize,
    /// Set with the first list or a snapshot.
    pub(super) completed: SetOnce<()>,
    /// Sent when targets have other lists of users than before.
    pub(super) user_lists: watch::Sender<()>,
    /// The wake requests of targets.
    pub(super) wakes: WakeRequests,
    /// As [`unconfirmed_since`](Self::unconfirmed_since).
    pub(super) unconfirmed_since: Mutex<Option<SystemTime>>,
    /// `None` while no cluster is watched.
    pub(super) cluster: Mutex<Option<Box<dyn ClusterView>>>,
}

/// The cluster as its watches have seen it.
pub trait ClusterView: fmt::Debug + Send {
    /// Returns remarks about a Service: why it is not on the allowlist, or is not reached, and what does not apply as written.
    ///
    /// # Errors
    /// [`NoRemarks::Busy`]: it does not wait for long.
    fn remarks(&self, id: &TargetId) -> Result<Vec<String>, NoRemarks>;

    /// Returns the objects whose list is missing, such as `pods of team-a`; none while changes are applied for longer
    /// than it waits.
    fn unlisted(&self) -> Vec<String>;
}

/// Why there are no remarks about a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRemarks {
    /// It is static, or no cluster is watched.
    NoCluster,
    /// The watches apply a change at the moment.
    Busy,
}

impl Allowlist {
    /// Returns when the Services of the cluster were last known to be current, if the API server does not answer now;
    /// `None` while it answers.
    pub fn unconfirmed_since(&self) -> Option<SystemTime> {
        *self.unconfirmed_since.lock()
    }

    /// Returns the objects of the cluster whose list is missing; none while the cluster does not answer.
    pub fn unlisted(&self) -> Vec<String> {
        let cluster = self.cluster.lock();
        cluster.as_ref().map(|cluster| cluster.unlisted()).unwrap_or_default()
    }

    /// Returns the cluster's remarks about a Service.
    ///
    /// # Errors
    /// The reason why there are none.
    pub fn remarks(&self, id: &TargetId) -> Result<Vec<String>, NoRemarks> {
        let cluster = self.cluster.lock();
        let cluster = cluster
            .as_ref()
            .filter(|_| !id.is_static())
            .ok_or(NoRemarks::NoCluster)?;
        cluster.remarks(id)
    }

    /// Returns the identity of the Service that a host names, whether it is listed or not; `None` if it names none.
    pub fn service_named(&self, host: &str) -> Option<TargetId> {
        let table = self.table.load();
        let (service, namespace) = table.options.suffixes.strip(host).rsplit_once('.')?;
        let (namespace, service) = (namespace.into(), service.into());
        Some(TargetId { namespace, service })
    }

    /// Returns the ports at which clients request a Service; `None` if it is not listed.
    pub fn ports(&self, id: &TargetId) -> Option<[u16; 2]> {
        Some(self.table.load().route(&id.short_name())?.ports)
    }

    /// Returns the target of an authority.
    ///
    /// # Errors
    /// [`RefusalReason::NotAllowed`] for an unknown name or port; [`RefusalReason::AllowlistNotReady`] instead, as long
    /// as the Services of the cluster are not known completely.
    pub fn find_target(&self, authority: &Authority) -> Result<Arc<Target>, RefusalReason> {
        let table = self.table.load();
        match table.find(authority) {
            Some(target) => Ok(Arc::clone(target)),
            None if table.awaits(authority) => Err(RefusalReason::AllowlistNotReady),
            None => Err(RefusalReason::NotAllowed),
        }
    }

    /// Returns the one static target that lists show by this name, without the domain of its cluster.
    pub fn find_short(&self, shown: &Authority) -> Option<Arc<Target>> {
        let table = self.table.load();
        let is_shown = |name: &Authority| short_host(name.host()) == shown.host() && name.port() == shown.port();
        let mut found = table.statics.iter().filter(|(name, _)| is_shown(name));
        let (_, target) = found.next()?;
        found.next().is_none().then(|| Arc::clone(target))
    }

    /// Returns whether the authority, if it had no target, might belong to a Service that is not known yet.
    pub fn awaits(&self, authority: &Authority) -> bool {
        self.table.load().awaits(authority)
    }

    /// Wakes a target that has no endpoint, if its Service allows it. Only for clients that may reach the target.
    pub fn wake(&self, target: &Target, client: IpAddr) -> WakeResult {
        let timeout = self.table.load().options.wake;
        match timeout.filter(|_| target.endpoints().addresses.is_empty()) {
            Some(timeout) => self.wakes.request(target, client, timeout),
            None => WakeResult::NotRequested,
        }
    }

    /// Returns the endpoints of a target. Waits for one while there is none, since a pod may be about to start.
    ///
    /// # Errors
    /// After [`Options::wait_for_ready`], [`RefusalReason::TargetStarting`] while it starts, else
    /// [`RefusalReason::NoEndpoint`]; [`RefusalReason::NotAllowed`] once it leaves the allowlist.
    pub async fn wait_for_endpoints(&self, target: &Target) -> Result<Arc<Endpoints>, Refusal> {
        let timeout = self.table.load().options.wait_for_ready;
        tokio::select! {
            biased;
            endpoints = target.ready_endpoints() => {
                if target.rules().workloads.wake.is_some() {
                    self.wakes.started(target.id());
                }
                Ok(endpoints)
            }
            () = target.removed() => Err(RefusalReason::NotAllowed.into()),
            () = sleep(timeout) => Err(self.without_endpoint(target)),
        }
    }

    /// Returns how long a request waits for a target that is not ready.
    pub fn wait_for_ready(&self) -> Duration {
        self.table.load().options.wait_for_ready
    }

    fn without_endpoint(&self, target: &Target) -> Refusal {
        if let Some(left) = self.wakes.time_left(target.id()) {
            let phrase = format!("{} is starting, try again in 30 s", target.id());
            let refusal = RefusalReason::TargetStarting;
            return Refusal::of_target(refusal, &phrase, refusal.phrase()).starting(left);
        }
        let Endpoints { ready, total, .. } = *target.endpoints();
        let phrase = format!("no ready endpoint for {} ({ready} of {total} ready)", target.id());
        let unnamed = RefusalReason::NoEndpoint
            .phrase()
            .followed_by(&format!(" ({ready} of {total} ready)"));
        Refusal::of_target(RefusalReason::NoEndpoint, &phrase, unnamed)
    }

    /// Returns the number of targets, each counted once however many names it has.
    pub fn targets(&self) -> usize {
        let table = self.table.load();
        table.statics.len() + table.services().count()
    }

    /// Returns every target, each once however many names it has, in no order.
    pub fn all(&self) -> Vec<Arc<Target>> {
        let table = self.table.load();
        table.statics.values().chain(table.services()).cloned().collect()
    }

    /// Returns the targets of which a name matches, in no order.
    ///
    /// # Errors
    /// [`RefusalReason::AllowlistNotReady`], as long as the Services or pods of the cluster are not known completely.
    pub fn list(&self, filter: &NameFilter) -> Result<Vec<Arc<Target>>, RefusalReason> {
        let table = self.table.load();
        if !table.complete || !table.awaited_pods.is_empty() {
            return Err(RefusalReason::AllowlistNotReady);
        }
        let targets = table.statics.values().chain(table.services());
        let is_meant = |target: &&Arc<Target>| filter.is_empty() || filter.is_part_of_any(&table.names(target.id()).0);
        Ok(targets.filter(is_meant).cloned().collect())
    }

    /// Returns the names of a target, the longest first, and the port at which clients request it: 22 if it has that one. Those
    /// that lead to a static target are none of a Service.
    pub fn names(&self, id: &TargetId) -> (Vec<String>, u16) {
        self.table.load().names(id)
    }

    /// Returns the number of static targets whose name a Service claims too.
    pub fn conflicts(&self) -> usize {
        self.shadowing.load(Ordering::Relaxed)
    }

    /// Completes once the targets are known: from the cluster, from a snapshot of it, or at once without a cluster.
    pub async fn completed(&self) {
        if !self.table.load().complete {
            self.completed.wait().await;
        }
    }

    /// Returns a receiver of later changes of the users that targets name, so that tunnels of removed users can end.
    pub fn user_lists_changed(&self) -> watch::Receiver<()> {
        self.user_lists.subscribe()
    }

    pub(super) fn table(&self) -> Table {
        Table::clone(&self.table.load())
    }

    pub(super) fn store(&self, table: Table, shadowing: usize) {
        self.table.store(Arc::new(table));
        self.shadowing.store(shadowing, Ordering::Relaxed);
    }
}

/// The static targets.
pub(super) type Statics = HashMap<Authority, Arc<Target>>;
/// A part of the Services, by their shortest names.
pub(super) type Shard = HashMap<Arc<str>, Route>;

/// A Service's target, and the ports at which it is reached.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) target: Arc<Target>,
    pub(super) ports: [u16; 2],
    /// True if the target has another name, at which it counts.
    pub(super) is_alias: bool,
}

/// The allowlist at one time.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) statics: Arc<Statics>,
    pub(super) options: Options,
    pub(super) shards: Vec<Arc<Shard>>,
    /// True if all targets are known: only then is an absent name forbidden, otherwise it is unknown.
    pub(super) complete: bool,
    /// The namespaces whose Services are not known completely; empty for all, and while `complete`.
    pub(super) awaited: Vec<Box<str>>,
    /// The namespaces, `None` for all, whose pods without a Service are not known completely.
    pub(super) awaited_pods: Vec<Option<Box<str>>>,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            statics: Arc::default(),
            options: Options::default(),
            shards: vec![Arc::default(); SHARDS],
            complete: true,
            awaited: Vec::new(),
            awaited_pods: Vec::new(),
        }
    }
}

impl Table {
    /// Returns the target of an authority. A static target takes precedence over a Service.
    pub(super) fn find(&self, authority: &Authority) -> Option<&Arc<Target>> {
        self.statics.get(authority).or_else(|| self.service(authority))
    }

    /// Returns the Service of an authority.
    pub(super) fn service(&self, authority: &Authority) -> Option<&Arc<Target>> {
        let route = self.route(self.options.suffixes.strip(authority.host()))?;
        route.ports.contains(&authority.port()).then_some(&route.target)
    }

    /// Returns whether a Service or pod of an absent authority may yet be listed.
    pub(super) fn awaits(&self, authority: &Authority) -> bool {
        let name = self.options.suffixes.strip(authority.host());
        let Some((rest, namespace)) = name.rsplit_once('.') else {
            return !self.complete && self.awaited.is_empty();
        };
        let of_pod = rest.rsplit_once('.').filter(|_| namespace == TargetId::POD_DOMAIN);
        let is_of_pod = |own: &Option<Box<str>>| {
            of_pod.is_some_and(|(_, namespace)| own.as_deref().is_none_or(|own| own == namespace))
        };
        self.awaited_pods.iter().any(is_of_pod)
            || !self.complete && (self.awaited.is_empty() || self.awaited.iter().any(|own| **own == *namespace))
    }

    /// Returns the targets of all Services, in no order.
    pub(super) fn services(&self) -> impl Iterator<Item = &Arc<Target>> {
        let routes = self.shards.iter().flat_map(|shard| shard.values());
        routes.filter(|route| !route.is_alias).map(|route| &route.target)
    }

    /// As [`Allowlist::names`].
    fn names(&self, id: &TargetId) -> (Vec<String>, u16) {
        if id.is_static() {
            let name = id.service.parse::<Authority>();
            return name.map_or((Vec::new(), SSH_PORT), |name| {
                (vec![name.host().to_owned()], name.port())
            });
        }
        let short_name = id.short_name();
        let ports = self.route(&short_name).map_or([SSH_PORT; 2], |route| route.ports);
        let port = if ports.contains(&SSH_PORT) { SSH_PORT } else { ports[0] };
        let suffixes = self.options.suffixes.0.iter().map(AsRef::as_ref).chain([""]);
        let mut names: Vec<_> = suffixes.map(|suffix| format!("{short_name}{suffix}")).collect();
        let is_shadowed = |name: &str| {
            let authority = format!("{name}:{port}").parse::<Authority>();
            authority.is_ok_and(|authority| self.statics.contains_key(&authority))
        };
        names.retain(|name| self.statics.is_empty() || !is_shadowed(name));
        (names, port)
    }

    /// Returns the route of a Service by its shortest name.
    pub(super) fn route(&self, name: &str) -> Option<&Route> {
        self.shards.get(shard_of(name))?.get(name)
    }
}

/// The names of Services, and what happens to a client whose Service has no endpoint or is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The suffixes of a Service's names.
    pub suffixes: Arc<Suffixes>,
    /// True if the tunnels of a Service go on when it leaves the allowlist.
    pub keeps_removed: bool,
    /// The longest wait of a client for an endpoint of a Service that has none.
    pub wait_for_ready: Duration,
    /// The time that a woken target has to start; `None` wakes no target.
    pub wake: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            suffixes: Arc::default(),
            keeps_removed: false,
            wait_for_ready: Duration::from_secs(10),
            wake: None,
        }
    }
}

/// The suffixes of a Service's names after `svc.ns`: `.svc`, `.svc.<cluster domain>` and the public suffixes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suffixes(Vec<Box<str>>);

impl Suffixes {
    /// Creates the suffixes of a cluster with that domain. Case, dots at the end, and a dot before a public
    /// suffix do not matter.
    pub fn new<'a>(cluster_domain: &str, public: impl IntoIterator<Item = &'a str>) -> Self {
        let spelled = |name: &str| format!(".{}", name.trim_matches('.').to_ascii_lowercase()).into();
        let cluster = [spelled("svc"), spelled(&format!("svc.{cluster_domain}"))];
        let mut suffixes: Vec<Box<str>> = cluster.into_iter().chain(public.into_iter().map(spelled)).collect();
        suffixes.retain(|suffix| suffix.len() > 1);
        // The longest first: of two that match, the longer one is meant.
        suffixes.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        suffixes.dedup();
        Self(suffixes)
    }

    /// Returns the host without its suffix: the shortest name of a Service, `svc.ns`. Any other host is returned as is.
    pub fn strip<'a>(&self, host: &'a str) -> &'a str {
        self.0
            .iter()
            .filter_map(|suffix| host.strip_suffix(&**suffix))
            .find(|rest| rest.contains('.'))
            .unwrap_or(host)
    }
}

/// Returns the shard of a name, the same in every process.
pub(super) fn shard_of(name: &str) -> usize {
    usize::try_from((fnv1a(name.as_bytes()) >> 32) % SHARDS as u64).unwrap_or_default()
}

/// The port of SSH (RFC 4253 section 4.1).
const SSH_PORT: u16 = 22;
/// With 256 shards, a change among 100,000 Services copies 400 entries.
const SHARDS: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_stripped_to_the_shortest() {
        let suffixes = Suffixes::new("Cluster.Local.", ["ssh.example.com", ".example.com", ""]);
        for (host, name) in [
            ("svc-a.team-a", "svc-a.team-a"),
            ("svc-a.team-a.svc", "svc-a.team-a"),
            ("svc-a.team-a.svc.cluster.local", "svc-a.team-a"),
            ("svc-a.team-a.ssh.example.com", "svc-a.team-a"),
            ("svc-a.team-a.example.com", "svc-a.team-a"),
            // A Service in the namespace `ssh`, and one in the namespace `svc`.
            ("svc-a.ssh.example.com", "svc-a.ssh"),
            ("svc-a.svc", "svc-a.svc"),
            ("svc-a.svc.svc", "svc-a.svc"),
            ("svc-a.team-a.cluster.local", "svc-a.team-a.cluster.local"),
            ("svc-a", "svc-a"),
            ("10.0.0.1", "10.0.0.1"),
        ] {
            assert_eq!(suffixes.strip(host), name, "{host}");
        }
    }
}
