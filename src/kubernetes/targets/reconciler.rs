//! Applies the events of all sources to the allowlist, the metrics and the snapshot file.

mod empty_namespaces;
mod source_state;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tracing::{info, warn};

use self::source_state::SourceState;
use super::join::{ClusterObjects, TargetPolicy, TargetUpdates};
use super::mass_removal_hold::MassRemovalHold;
use super::notices::{NoticeLog, ServiceNotice};
use super::snapshot::SnapshotFile;
use super::source::{Item, Source, SourceEvent, SourceHandle};
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::watcher::Event;
use crate::kubernetes::metrics::ClusterMetrics;
use crate::kubernetes::objects::model::{Key, Kind};
use crate::kubernetes::writes::event_recorder::EventRecorder;
use crate::policy::allowlist::{Change, Writer};

/// The outputs of the reconciler, besides the snapshot file.
#[derive(Clone, Debug)]
pub(crate) struct Outputs {
    /// The allowlist.
    pub(crate) writer: Writer,
    /// The metrics.
    pub(crate) metrics: ClusterMetrics,
    /// The recorder of Events; `None` if Events are off.
    pub(crate) recorder: Option<EventRecorder>,
}

/// The known state of the cluster, and the allowlist that follows from it.
#[derive(Debug)]
pub(crate) struct Reconciler {
    cluster: ClusterObjects,
    outputs: Outputs,
    sources: Vec<SourceState>,
    /// True if the allowlist has received a complete list, from the cluster or a snapshot.
    has_list: bool,
    /// Until when the list of pods may delay the first complete one; `None` after that time.
    pods_until: Option<Instant>,
    /// True if every source but those of pods has answered since the start, or counts as empty, so that the list is the cluster's
    /// own.
    is_confirmed: bool,
    snapshot: Option<SnapshotFile>,
    log: NoticeLog,
}

/// The reconciler between two steps, which lock it, also after its task was stopped; `None` after a panic.
pub(crate) type IdleReconciler = Arc<Mutex<Option<Box<Reconciler>>>>;

impl Reconciler {
    /// Prepares the reconciler for these tasks and sources: the last one if it had a list, or a new one.
    pub(crate) fn prepare(idle: &IdleReconciler, policy: TargetPolicy, handles: Vec<SourceHandle>, outputs: Outputs) {
        let mut idle = idle.lock();
        let last = idle.take().filter(|last| last.has_list);
        let next = match last {
            Some(last) => {
                let mut next = last.with_sources(policy, handles, outputs);
                // Not only with the first event: what the reload may exclude gets no new tunnel from here on.
                next.settle();
                next
            }
            None => Self::new(policy, handles, outputs),
        };
        *idle = Some(Box::new(next));
    }

    /// Creates a reconciler with the objects of the snapshot, if there is one and the allowlist has nothing newer.
    fn new(policy: TargetPolicy, handles: Vec<SourceHandle>, outputs: Outputs) -> Self {
        let empty = Self {
            cluster: ClusterObjects::new(policy.clone()),
            outputs: outputs.clone(),
            sources: Vec::new(),
            has_list: false,
            pods_until: Some(Instant::now() + MAX_DELAY_BY_PODS),
            is_confirmed: false,
            snapshot: None,
            log: NoticeLog::default(),
        };
        let mut reconciler = empty.with_sources(policy, handles, outputs);
        reconciler.load_snapshot();
        reconciler
    }

    /// Returns this reconciler for other tasks and sources. A source that stays keeps its objects and held removals, and one that
    /// a source of all namespaces follows keeps its objects; the targets of the others stay until they are listed, and no new
    /// tunnel to them begins.
    fn with_sources(mut self, policy: TargetPolicy, handles: Vec<SourceHandle>, outputs: Outputs) -> Self {
        let last = std::mem::take(&mut self.sources);
        let gone = |state: &&SourceState| !handles.iter().any(|handle| state.is_followed_by(&handle.source));
        for Source { kind, namespace, .. } in last.iter().filter(gone).map(|state| &state.handle.source) {
            for key in self.cluster.keys(*kind, namespace.as_deref()) {
                self.cluster.remove(*kind, &key);
            }
        }
        let known = |source: &Source| -> BTreeSet<Box<str>> {
            let known = last.iter().filter(|state| state.is_followed_by(source));
            known
                .filter_map(|state| state.handle.source.namespace.clone())
                .collect()
        };
        let path = policy.options.snapshot_file.clone();
        self.snapshot = path.map(|path| SnapshotFile::new(path, &handles));
        let state = |handle: SourceHandle| match last.iter().find(|state| state.handle.source == handle.source) {
            Some(state) => SourceState {
                handle,
                ..state.clone()
            },
            None => SourceState {
                known: known(&handle.source),
                ..SourceState::new(handle)
            },
        };
        self.sources = handles.into_iter().map(state).collect();
        let unlisted = self.sources.iter().filter(|source| !source.is_listed);
        self.cluster.await_lists(unlisted.map(SourceState::awaited));
        self.outputs = outputs;
        self.is_confirmed = false;
        self.cluster.forget_notices();
        self.cluster.configure(policy);
        source_state::show(&self.sources, &self.outputs.metrics, &self.outputs.writer);
        self
    }

    /// Runs the prepared reconciler until the sender of events or of policies is dropped.
    pub(crate) async fn run(
        idle: IdleReconciler,
        mut events: mpsc::Receiver<SourceEvent>,
        mut policy: watch::Receiver<TargetPolicy>,
    ) {
        let mut address_reads = interval(READ_ADDRESSES_EVERY);
        address_reads.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut batch = Vec::new();
        loop {
            let at = |moment: Option<Instant>| sleep_until(moment.unwrap_or_else(Instant::now));
            let [release, late, save] = idle.lock().as_deref().map_or([None; 3], Self::deadlines);
            tokio::select! {
                changed = policy.changed() => match changed {
                    Ok(()) => Self::step(&idle, |own| own.cluster.configure(policy.borrow_and_update().clone())),
                    Err(_) => return,
                },
                // Queued events are settled together.
                received = events.recv_many(&mut batch, MAX_BATCH) => match received {
                    0 => return,
                    _ => Self::step(&idle, |own| batch.drain(..).for_each(|event| own.apply(event))),
                },
                _ = address_reads.tick() => Self::step(&idle, Self::read_addresses),
                () = at(release), if release.is_some() => Self::step(&idle, Self::release),
                () = at(late), if late.is_some() => Self::step(&idle, |own| own.pods_until = None),
                () = at(save), if save.is_some() => Self::step(&idle, Self::save_snapshot),
            }
        }
    }

    /// Does some work, and settles it. After a panic the state may be what it panics at, and is dropped.
    fn step(idle: &IdleReconciler, work: impl FnOnce(&mut Self)) {
        let mut slot = idle.lock();
        if let Some(mut reconciler) = slot.take() {
            work(&mut reconciler);
            reconciler.settle();
            *slot = Some(reconciler);
        }
    }

    /// Returns the objects whose list is missing, each with its namespace, if it has one.
    pub(super) fn unlisted(&self) -> impl Iterator<Item = String> {
        let unlisted = self.sources.iter().filter(|source| !source.is_listed);
        unlisted.map(|SourceState { handle, .. }| match &handle.source.namespace {
            Some(namespace) => format!("{} of {namespace}", handle.source.kind.name()),
            None => handle.source.kind.name().to_owned(),
        })
    }

    /// Returns the known objects of the cluster.
    pub(super) fn cluster(&self) -> &ClusterObjects {
        &self.cluster
    }

    /// Returns when held removals apply, when pods have delayed the first list for too long, and when the snapshot is due.
    fn deadlines(&self) -> [Option<Instant>; 3] {
        let holds = self.sources.iter().map(|source| &source.removal_hold);
        let release = holds.filter_map(MassRemovalHold::deadline).min();
        [
            release,
            self.pods_until.filter(|_| !self.has_list),
            self.snapshot.as_ref().and_then(SnapshotFile::due),
        ]
    }

    /// Reads the host's own addresses again, and checks all endpoints again if they have changed.
    fn read_addresses(&mut self) {
        let policy = self.cluster.policy();
        if let Some(filter) = policy.filter.read_again() {
            info!("the addresses of this host have changed: all endpoints are checked again");
            self.cluster.configure(TargetPolicy {
                filter,
                ..policy.clone()
            });
        }
    }

    /// Takes an event. The next [`settle`](Self::settle) applies it to the allowlist.
    fn apply(&mut self, SourceEvent { index, event }: SourceEvent) {
        let Some(source) = self.sources.get_mut(index) else {
            return;
        };
        let now = unix_seconds(SystemTime::now());
        let kind = source.handle.source.kind;
        match event {
            Event::Failed(failure) => {
                // A namespace that counts as empty has its own metric, and is requested in vain for as long as it is
                // configured: no alert about failures should fire for that.
                if failure != Failure::Forbidden || !source.is_treated_as_empty {
                    self.outputs.metrics.watch_errors.count([failure.label()]);
                }
                source.has_failed = true;
                source.is_refused &= failure == Failure::Forbidden;
                source.unconfirmed = source.current;
                return;
            }
            Event::Refused => {
                source.is_refused = true;
                return self.treat_as_empty();
            }
            Event::UpToDate => {}
            Event::Applied((key, Some(object))) => {
                source.removal_hold.confirm(&key);
                self.cluster.put(key, object);
            }
            Event::Applied((key, None)) | Event::Deleted((key, _)) => {
                source.removal_hold.confirm(&key);
                self.cluster.remove(kind, &key);
            }
            Event::Listed(objects) => self.replace(index, objects),
        }
        if let Some(source) = self.sources.get_mut(index) {
            let is_first = source.current.replace(now).is_none();
            (source.unconfirmed, source.is_refused, source.is_treated_as_empty) = (None, false, false);
            if is_first {
                self.treat_as_empty();
            }
        }
    }

    /// Replaces the known objects of a source by a complete list. A pod of the list that is no target is removed at once, as by a
    /// watch event: another pod may have its address by now.
    ///
    /// Slices and Namespaces are held as long as their Services. Slices and Namespaces without a known Service do not
    /// count for the hold: an API server that has lost its data creates some, such as the Namespace `default`.
    fn replace(&mut self, index: usize, objects: Vec<Item>) {
        let Some(SourceState {
            handle, removal_hold, ..
        }) = self.sources.get_mut(index)
        else {
            return;
        };
        let kind = handle.source.kind;
        for (key, _) in objects
            .iter()
            .filter(|(_, object)| kind == Kind::Pod && object.is_none())
        {
            removal_hold.confirm(key);
            self.cluster.remove(kind, key);
        }
        let known = self.cluster.keys(kind, handle.source.namespace.as_deref());
        let mut listed = HashSet::new();
        for (key, object) in objects {
            if let Some(object) = object {
                listed.insert(key.clone());
                self.cluster.put(key, object);
            }
        }
        let (mut judged, mut held, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        for key in known {
            let services = self.cluster.services_of(kind, &key);
            let is_missing = !listed.contains(&key);
            if matches!(kind, Kind::Slice | Kind::Namespace) && services.iter().any(|service| self.holds(service)) {
                held.extend(is_missing.then_some(key));
            } else if services.is_empty() {
                missing.extend(is_missing.then_some(key));
            } else {
                judged.push(key);
            }
        }
        let (before, now) = (judged.len(), Instant::now());
        let after = judged.iter().filter(|key| listed.contains(key)).count();
        if !listed.iter().any(|key| !self.cluster.services_of(kind, key).is_empty()) {
            listed.clear();
        }
        let Some(source) = self.sources.get_mut(index) else {
            return;
        };
        source.is_listed = true;
        self.cluster.end_await(kind, source.handle.source.namespace.as_deref());
        let was_held = source.removal_hold.deadline().is_some();
        missing.extend(source.removal_hold.check_list(judged, &listed, now));
        if source.removal_hold.deadline().is_some() && !was_held {
            warn!(
                kind = kind.name(),
                before,
                now = after,
                "a list has lost all or more than half of its objects, which stay for up to 5 minutes"
            );
        }
        source.removal_hold.hold_with_services(held);
        if kind == Kind::Pod {
            source.removal_hold.held().for_each(|pod| self.cluster.withhold(pod));
        }
        missing.iter().for_each(|key| self.cluster.remove(kind, key));
    }

    /// Returns whether the removal of a Service or pod is held.
    fn holds(&self, service: &Key) -> bool {
        let mut services = self
            .sources
            .iter()
            .filter(|source| matches!(source.handle.source.kind, Kind::Service | Kind::Pod));
        services.any(|source| source.removal_hold.holds(service))
    }

    /// Removes the objects whose hold has expired.
    fn release(&mut self) {
        let now = Instant::now();
        for source in &mut self.sources {
            let missing = source.removal_hold.release(now);
            if !missing.is_empty() {
                let kind = source.handle.source.kind;
                let objects = missing.len();
                warn!(kind = kind.name(), objects, "objects missing for 5 minutes are removed");
                for key in missing {
                    self.cluster.remove(kind, &key);
                }
            }
        }
    }

    /// Applies all events so far to the allowlist. A list that is missing delays its own targets, and before the first list
    /// those of others, too; one of pods does so until it fails, for [`MAX_DELAY_BY_PODS`].
    fn settle(&mut self) {
        source_state::show(&self.sources, &self.outputs.metrics, &self.outputs.writer);
        let is_late = self.pods_until.is_none();
        let delays = |source: &SourceState| !(source.is_of_pods() && (source.has_failed || is_late));
        let mut unlisted = self.sources.iter().filter(|source| !source.is_listed);
        if !self.has_list && unlisted.any(delays) {
            return;
        }
        let is_first = !std::mem::replace(&mut self.has_list, true);
        let TargetUpdates { changes, notices } = self.cluster.recompute();
        let has_changed = is_first || !changes.is_empty() || !notices.is_empty();
        self.write(changes, is_first);
        if !self.confirm() && !has_changed {
            return;
        }
        for notice in &notices {
            self.count(notice);
            // Services of the first list are not new: one log line covers them all.
            if !(is_first && matches!(notice, ServiceNotice::Added(..))) {
                self.log.write(notice);
                if let Some(recorder) = &self.outputs.recorder {
                    recorder.note(notice.note());
                }
            }
        }
        // A part of the objects would be taken for all of them after a restart.
        let is_whole = self
            .sources
            .iter()
            .all(|source| source.is_listed || source.is_of_pods());
        if let Some(file) = self.snapshot.as_mut().filter(|_| is_whole) {
            file.schedule();
        }
    }

    fn count(&self, notice: &ServiceNotice) {
        let metrics = &self.outputs.metrics;
        match notice {
            ServiceNotice::Annotation(..) => metrics.annotation_errors.inc(),
            ServiceNotice::EndpointForbidden(..) => metrics.endpoint_errors.count(["forbidden"]),
            ServiceNotice::SliceUnusable(..) => metrics.endpoint_errors.count(["unusable"]),
            ServiceNotice::Added(..) | ServiceNotice::Removed(_) | ServiceNotice::ExternalName(_) => {}
        }
    }

    fn write(&self, changes: Vec<Change>, is_first: bool) {
        let writer = &self.outputs.writer;
        if is_first {
            let set = |change| match change {
                Change::Set(target) => Some(*target),
                Change::Await(_) | Change::Remove(_) => None,
            };
            writer.replace(changes.into_iter().filter_map(set).collect(), false);
        } else if !changes.is_empty() {
            writer.apply(changes);
        }
    }

    /// Makes absent names forbidden: those of pods once these are known, and all others once. Returns whether it does so for these.
    fn confirm(&mut self) -> bool {
        let unsynced = self.sources.iter().filter(|source| !source.is_synced());
        let (pods, others): (Vec<_>, Vec<_>) = unsynced.partition(|source| source.is_of_pods());
        let writer = &self.outputs.writer;
        writer.await_pods(
            pods.into_iter()
                .map(|state| state.handle.source.namespace.clone())
                .collect(),
        );
        let confirms = !self.is_confirmed && others.is_empty();
        if confirms {
            info!("the allowlist has the Services of the cluster");
            writer.confirm();
        }
        self.is_confirmed |= confirms;
        confirms
    }

    fn load_snapshot(&mut self) {
        // A complete allowlist is newer than the snapshot: only the reconciler was restarted.
        let file = self.snapshot.as_ref().filter(|_| !self.outputs.writer.is_complete());
        let Some(snapshot) = file.and_then(SnapshotFile::load) else {
            return;
        };
        let metrics = &self.outputs.metrics;
        metrics.last_sync_timestamp.set(unix_seconds(snapshot.saved));
        for (key, object) in snapshot.objects {
            self.cluster.put(key, object);
        }
        for source in &mut self.sources {
            source.is_listed = true;
        }
        self.cluster.await_lists([]);
        self.settle();
    }

    fn save_snapshot(&mut self) {
        if let Some(file) = &mut self.snapshot {
            file.save(self.cluster.objects().collect());
        }
    }
}

/// Returns the seconds since 1970.
fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// The interval between reads of the host's own addresses, which take well under a millisecond in a pod.
const READ_ADDRESSES_EVERY: Duration = Duration::from_secs(10);
/// The longest time that the first list of pods delays that of Services.
const MAX_DELAY_BY_PODS: Duration = Duration::from_secs(10);
/// The most events that are settled together.
const MAX_BATCH: usize = 1024;

#[cfg(test)]
mod tests;
