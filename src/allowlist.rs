//! Which authorities lead where: one hash lookup in an immutable table that is replaced as a whole.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

pub use self::static_target::{StaticTarget, StaticTargetError};
use crate::authority::Authority;
use crate::limits::{Direction, TunnelLimits};
use crate::metrics::{Metrics, TargetSeries};
use crate::outcome::Refusal;
use crate::throttle::Limit;

mod static_target;

/// The names that may be asked for. Readers never wait; a [`Writer`] replaces the whole table.
#[derive(Debug, Default)]
pub struct Allowlist {
    table: ArcSwap<Table>,
}

type Table = HashMap<Authority, Arc<Target>>;

impl Allowlist {
    /// The target of that name.
    ///
    /// # Errors
    /// [`Refusal::NotAllowed`], whether the name or only its port is unknown.
    pub fn authorize(&self, authority: &Authority) -> Result<Arc<Target>, Refusal> {
        self.table.load().get(authority).cloned().ok_or(Refusal::NotAllowed)
    }

    /// How many targets there are, under however many names.
    pub fn targets(&self) -> usize {
        let table = self.table.load();
        table.values().map(Arc::as_ptr).collect::<HashSet<_>>().len()
    }
}

/// Who a target is, whatever its addresses and limits are at the moment: also its metric labels.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TargetId {
    /// The namespace of its Service, or `static`.
    pub namespace: Box<str>,
    /// The name of its Service, or the authority that the configuration gives.
    pub service: Box<str>,
}

/// One SSH server that may be reached. Tunnels keep it while they run, so what changes here reaches them.
#[derive(Debug)]
pub struct Target {
    id: TargetId,
    addresses: ArcSwap<Vec<SocketAddr>>,
    next_address: AtomicUsize,
    upload: Limit,
    download: Limit,
    lifetime: ArcSwapOption<Duration>,
    revoked: CancellationToken,
    series: OnceLock<Arc<TargetSeries>>,
}

impl Target {
    fn new(id: TargetId, addresses: Vec<SocketAddr>, limits: &TunnelLimits) -> Self {
        Self {
            id,
            addresses: ArcSwap::from_pointee(addresses),
            next_address: AtomicUsize::new(0),
            upload: Limit::new(limits.upload, limits.burst),
            download: Limit::new(limits.download, limits.burst),
            lifetime: ArcSwapOption::from_pointee(limits.lifetime),
            revoked: CancellationToken::new(),
            series: OnceLock::new(),
        }
    }

    /// Who it is.
    pub fn id(&self) -> &TargetId {
        &self.id
    }

    /// Where it is now.
    pub fn addresses(&self) -> Arc<Vec<SocketAddr>> {
        self.addresses.load_full()
    }

    /// Which address to begin with: counts up, so that dials spread.
    pub fn next_address(&self) -> usize {
        self.next_address.fetch_add(1, Ordering::Relaxed)
    }

    /// The limit of each of its tunnels, one for each direction.
    pub fn limit(&self, direction: Direction) -> &Limit {
        match direction {
            Direction::Upload => &self.upload,
            Direction::Download => &self.download,
        }
    }

    /// The longest life of a tunnel that begins now.
    pub fn lifetime(&self) -> Option<Duration> {
        self.lifetime.load().as_deref().copied()
    }

    /// Completes when it has left the allowlist.
    pub fn revoked(&self) -> WaitForCancellationFuture<'_> {
        self.revoked.cancelled()
    }

    /// Its metrics, made when it is first used.
    pub fn series(&self, metrics: &Metrics) -> &Arc<TargetSeries> {
        self.series
            .get_or_init(|| metrics.target(&self.id.namespace, &self.id.service))
    }

    fn update(&self, addresses: Vec<SocketAddr>, limits: &TunnelLimits) {
        self.addresses.store(Arc::new(addresses));
        self.upload.set(limits.upload, limits.burst);
        self.download.set(limits.download, limits.burst);
        self.lifetime.store(limits.lifetime.map(Arc::new));
    }
}

/// The one who may change the allowlist.
#[derive(Debug)]
pub struct Writer {
    allowlist: Arc<Allowlist>,
    known: HashMap<TargetId, Arc<Target>>,
}

impl Writer {
    /// An empty allowlist and its writer.
    pub fn new() -> (Self, Arc<Allowlist>) {
        let allowlist = Arc::new(Allowlist::default());
        let writer = Self {
            allowlist: Arc::clone(&allowlist),
            known: HashMap::new(),
        };
        (writer, allowlist)
    }

    /// Puts these targets in the place of all others.
    ///
    /// A target that stays keeps its tunnels, which follow its new limits; one that goes ends them.
    pub fn publish(&mut self, targets: &[StaticTarget], defaults: TunnelLimits) {
        let mut table = Table::with_capacity(targets.len());
        let mut known = HashMap::with_capacity(targets.len());
        for target in targets {
            let id = TargetId {
                namespace: STATIC.into(),
                service: target.name.to_string().into(),
            };
            let limits = defaults.overridden(&target.limits);
            let addresses = target.addresses.clone();
            let shared = match self.known.remove(&id) {
                Some(shared) => {
                    shared.update(addresses, &limits);
                    shared
                }
                None => Arc::new(Target::new(id.clone(), addresses, &limits)),
            };
            table.insert(target.name.clone(), Arc::clone(&shared));
            known.insert(id, shared);
        }
        self.allowlist.table.store(Arc::new(table));
        // Only now: who is told to go must not find the way back in.
        for gone in std::mem::replace(&mut self.known, known).into_values() {
            gone.revoked.cancel();
        }
    }
}

/// The namespace of targets that the configuration names.
const STATIC: &str = "static";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::TunnelOverrides;

    fn target(name: &str, address: &str) -> StaticTarget {
        StaticTarget {
            name: name.parse().unwrap(),
            addresses: vec![address.parse().unwrap()],
            limits: TunnelOverrides::default(),
        }
    }

    fn authorize(allowlist: &Allowlist, name: &str) -> Result<Arc<Target>, Refusal> {
        allowlist.authorize(&name.parse().unwrap())
    }

    #[test]
    fn exactly_the_published_names_are_allowed() {
        let (mut writer, allowlist) = Writer::new();
        assert_eq!(authorize(&allowlist, "a:22").unwrap_err(), Refusal::NotAllowed);
        writer.publish(
            &[target("a:22", "127.0.0.1:1"), target("b:22", "127.0.0.1:2")],
            TunnelLimits::default(),
        );
        assert_eq!(
            *authorize(&allowlist, "A.:22").unwrap().addresses(),
            ["127.0.0.1:1".parse().unwrap()]
        );
        assert_eq!(authorize(&allowlist, "a:23").unwrap_err(), Refusal::NotAllowed);
        assert_eq!(authorize(&allowlist, "c:22").unwrap_err(), Refusal::NotAllowed);
        assert_eq!(allowlist.targets(), 2);
    }

    #[test]
    fn who_stays_follows_and_who_goes_is_revoked() {
        let (mut writer, allowlist) = Writer::new();
        writer.publish(
            &[target("a:22", "127.0.0.1:1"), target("b:22", "127.0.0.1:2")],
            TunnelLimits::default(),
        );
        let (stays, goes) = (
            authorize(&allowlist, "a:22").unwrap(),
            authorize(&allowlist, "b:22").unwrap(),
        );
        let slower = TunnelLimits {
            download: "1MiB/s".parse().unwrap(),
            lifetime: Some(Duration::from_secs(9)),
            ..TunnelLimits::default()
        };
        writer.publish(&[target("a:22", "127.0.0.1:9")], slower);
        assert_eq!(*stays.addresses(), ["127.0.0.1:9".parse().unwrap()]);
        assert_eq!(stays.limit(Direction::Download).rate(), slower.download);
        assert!(stays.limit(Direction::Upload).rate().is_unlimited());
        assert_eq!(stays.lifetime(), slower.lifetime);
        assert!(!stays.revoked.is_cancelled());
        assert!(goes.revoked.is_cancelled());
        assert_eq!(authorize(&allowlist, "b:22").unwrap_err(), Refusal::NotAllowed);
    }

    #[test]
    fn a_target_may_override_the_default_limits() {
        let (mut writer, allowlist) = Writer::new();
        let mut fast = target("a:22", "127.0.0.1:1");
        fast.limits.download = Some("10MiB/s".parse().unwrap());
        let defaults = TunnelLimits {
            download: "1MiB/s".parse().unwrap(),
            ..TunnelLimits::default()
        };
        writer.publish(&[fast, target("b:22", "127.0.0.1:2")], defaults);
        for (name, rate) in [("a:22", "10MiB/s"), ("b:22", "1MiB/s")] {
            let target = authorize(&allowlist, name).unwrap();
            assert_eq!(target.limit(Direction::Download).rate(), rate.parse().unwrap());
        }
    }
}
