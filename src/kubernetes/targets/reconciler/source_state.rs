//! The reconciler's knowledge of one source.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::Ordering;

use crate::kubernetes::metrics::ClusterMetrics;
use crate::kubernetes::objects::model::Kind;
use crate::kubernetes::targets::join::AwaitedList;
use crate::kubernetes::targets::mass_removal_hold::MassRemovalHold;
use crate::kubernetes::targets::source::{Source, SourceHandle};
use crate::policy::allowlist::Writer;

/// A source, and what its events have said.
#[derive(Clone, Debug)]
pub(super) struct SourceState {
    /// The source.
    pub(super) handle: SourceHandle,
    /// Its held removals.
    pub(super) removal_hold: MassRemovalHold,
    /// When its objects were last known to be current, in seconds since 1970; `None` before that.
    pub(super) current: Option<f64>,
    /// True if its objects are known, from a list or from a snapshot.
    pub(super) is_listed: bool,
    /// Where it is of all namespaces and not listed: those whose objects are known from sources of before a reload.
    pub(super) known: BTreeSet<Box<str>>,
    /// The `current` of before its failures; `None` while the API server answers.
    pub(super) unconfirmed: Option<f64>,
    /// True if a list or watch has failed.
    pub(super) has_failed: bool,
    /// True if the API server has answered only 403 for at least 10 s.
    pub(super) is_refused: bool,
    /// True if its namespace counts as empty because the API server forbids it.
    pub(super) is_treated_as_empty: bool,
}

impl SourceState {
    /// Creates the state of a source that has not been listed.
    pub(super) fn new(handle: SourceHandle) -> Self {
        Self {
            handle,
            removal_hold: MassRemovalHold::default(),
            current: None,
            is_listed: false,
            known: BTreeSet::new(),
            unconfirmed: None,
            has_failed: false,
            is_refused: false,
            is_treated_as_empty: false,
        }
    }

    /// Returns whether this source follows its objects, too: it is the same one, or the same one of all namespaces. A hold of
    /// removals ends with its source, and so do the objects.
    pub(super) fn is_followed_by(&self, source: &Source) -> bool {
        let own = &self.handle.source;
        let is_wider = || {
            let of_all = Source {
                namespace: None,
                ..own.clone()
            };
            source.namespace.is_none() && self.is_listed && !self.removal_hold.is_active() && of_all == *source
        };
        own == source || is_wider()
    }

    /// Returns its list as a missing one.
    pub(super) fn awaited(&self) -> AwaitedList {
        let Source { kind, namespace, .. } = &self.handle.source;
        ((*kind, namespace.clone()), self.known.clone())
    }

    /// Returns whether its objects are pods.
    pub(super) fn is_of_pods(&self) -> bool {
        self.handle.source.kind == Kind::Pod
    }

    /// Returns whether it has answered, or need not: its namespace counts as empty, or it is of pods that must not be read.
    pub(super) fn is_synced(&self) -> bool {
        self.current.is_some() || self.is_treated_as_empty || (self.is_of_pods() && self.is_refused)
    }
}

/// Sets the metrics of the sources, and requests another list of each source that holds removals.
///
/// The time of the last sync is that of the oldest source. Until every source has answered, it stays at the time of the
/// snapshot, or at 0.
pub(super) fn show(sources: &[SourceState], metrics: &ClusterMetrics, writer: &Writer) {
    let mut is_held = false;
    for source in sources {
        let holds = source.removal_hold.is_active();
        source.handle.wants_list.store(holds, Ordering::Relaxed);
        is_held |= holds;
    }
    metrics.removals_held.set(i64::from(is_held));
    let missing = sources.iter().filter(|source| !source.is_listed).count();
    metrics.lists_missing.set(i64::try_from(missing).unwrap_or(i64::MAX));
    let (empty, read): (Vec<_>, Vec<_>) = sources.iter().partition(|source| source.is_treated_as_empty);
    let namespaces: HashSet<_> = empty.iter().map(|source| &source.handle.source.namespace).collect();
    let namespaces = i64::try_from(namespaces.len()).unwrap_or(i64::MAX);
    metrics.namespaces_forbidden.set(namespaces);
    let unconfirmed = read.iter().filter_map(|source| source.unconfirmed);
    writer.set_unconfirmed(unconfirmed.reduce(f64::min));
    let current: Option<Vec<f64>> = read.iter().map(|source| source.current).collect();
    if let Some(oldest) = current.and_then(|times| times.into_iter().reduce(f64::min)) {
        metrics.last_sync_timestamp.set(oldest);
    }
}
