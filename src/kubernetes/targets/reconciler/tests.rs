//! Events in, allowlist and metrics out.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::advance;

use super::*;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::objects::annotations::AnnotationError;
use crate::kubernetes::objects::model::{Endpoint, Kind, Object, Pod, Service, ServicePort, Slice, SlicePort, State};
use crate::kubernetes::options::Options;
use crate::kubernetes::targets::source::sources;
use crate::policy::allowlist::Allowlist;
use crate::tunnel::exposition::{Registry, page, registry};
use crate::tunnel::limits::Limits;
use crate::tunnel::outcome::RefusalReason;

struct Stage {
    reconciler: Reconciler,
    allowlist: Arc<Allowlist>,
    metrics: ClusterMetrics,
    registry: Registry,
}

fn stage(snapshot: Option<PathBuf>) -> Stage {
    stage_of(&Options::default(), snapshot)
}

/// The same for other options.
fn stage_of(options: &Options, snapshot: Option<PathBuf>) -> Stage {
    let (writer, allowlist) = Writer::new();
    writer.await_services(None);
    let registry = registry().unwrap();
    let metrics = ClusterMetrics::new(&registry).unwrap();
    let outputs = Outputs {
        writer,
        metrics: metrics.clone(),
        recorder: None,
    };
    let options = Options {
        snapshot_file: snapshot,
        ..options.clone()
    };
    let policy = TargetPolicy::new(&options, &Limits::default());
    let handles = SourceHandle::all(sources(&options));
    let reconciler = Reconciler::new(policy, handles, outputs);
    Stage {
        reconciler,
        allowlist,
        metrics,
        registry,
    }
}

impl Stage {
    fn take(&mut self, index: usize, event: Event<Item>) {
        self.reconciler.apply(SourceEvent { index, event });
        self.reconciler.settle();
    }

    fn authorize(&self, name: &str) -> Result<(), RefusalReason> {
        self.allowlist.find_target(&name.parse().unwrap()).map(drop)
    }

    fn shows(&self, line: &str) -> bool {
        page(&self.registry).unwrap().lines().any(|shown| shown == line)
    }
}

fn key(name: &str) -> Key {
    Key {
        namespace: "n".into(),
        name: name.into(),
    }
}

fn service(name: &str) -> Item {
    let service = Service {
        port: Some(ServicePort {
            number: 22,
            name: Box::default(),
            is_implied: false,
        }),
        ..Service::default()
    };
    (key(name), Some(Object::Service(Box::new(service))))
}

fn services(count: usize) -> Event<Item> {
    Event::Listed((0..count).map(|index| service(&format!("s{index}"))).collect())
}

#[test]
fn a_name_is_forbidden_only_once_every_source_has_been_listed() {
    let mut stage = stage(None);
    stage.take(0, services(1));
    assert_eq!(stage.authorize("s0.n:22"), Err(RefusalReason::AllowlistNotReady));
    assert_eq!(stage.metrics.last_sync_timestamp.get(), 0.0);
    stage.take(1, Event::Listed(Vec::new()));
    assert_eq!(stage.authorize("s0.n:22"), Ok(()));
    assert_eq!(stage.authorize("s1.n:22"), Err(RefusalReason::NotAllowed));
    assert!(stage.metrics.last_sync_timestamp.get() > 1.7e9);
    let (key, object) = service("s1");
    stage.take(0, Event::Applied((key.clone(), object)));
    assert_eq!(stage.authorize("s1.n:22"), Ok(()));
    stage.take(0, Event::Deleted((key, None)));
    assert_eq!(stage.authorize("s1.n:22"), Err(RefusalReason::NotAllowed));
}

#[test]
fn failures_change_nothing_but_their_metric() {
    let mut stage = stage(None);
    stage.take(0, services(1));
    stage.take(1, Event::Listed(Vec::new()));
    let synced = stage.metrics.last_sync_timestamp.get();
    stage.take(0, Event::Failed(Failure::Expired));
    assert!(stage.shows("switchboard_watch_errors_total{kind=\"expired\"} 1"));
    assert_eq!(stage.metrics.last_sync_timestamp.get(), synced);
    assert_eq!(stage.authorize("s0.n:22"), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_list_that_lost_most_objects_is_held_and_listed_again_soon() {
    let mut stage = stage(None);
    stage.take(0, services(30));
    stage.take(1, Event::Listed(Vec::new()));
    stage.take(0, services(1));
    assert!(stage.shows("switchboard_allowlist_removals_held 1"));
    assert_eq!(stage.authorize("s29.n:22"), Ok(()));
    let wants_list = |stage: &Stage| stage.reconciler.sources[0].handle.wants_list.load(Ordering::Relaxed);
    assert!(wants_list(&stage));
    stage.take(0, services(1));
    assert!(wants_list(&stage));
    advance(Duration::from_secs(20)).await;
    stage.take(0, services(1));
    assert!(stage.shows("switchboard_allowlist_removals_held 0"));
    assert!(!wants_list(&stage));
    assert_eq!(stage.authorize("s29.n:22"), Err(RefusalReason::NotAllowed));
}

/// Returns a slice of the Service of that name, with one endpoint.
fn slice(service: &str) -> Item {
    let slice = Slice {
        service: service.into(),
        ports: Box::new([SlicePort {
            name: Box::default(),
            number: 22,
        }]),
        endpoints: Box::new([Endpoint {
            address: "10.0.0.1".parse().unwrap(),
            state: State::Ready,
            node: Box::default(),
            hostname: Box::default(),
        }]),
        ..Slice::default()
    };
    (key(&format!("{service}-x")), Some(Object::Slice(Box::new(slice))))
}

fn slices(count: usize) -> Event<Item> {
    Event::Listed((0..count).map(|index| slice(&format!("s{index}"))).collect())
}

/// Returns the slices and Namespaces that an API server makes for itself.
fn own(kind: Kind) -> Event<Item> {
    let (mut key, mut object) = slice("kubernetes");
    key.namespace = "default".into();
    if kind == Kind::Namespace {
        (key, object) = (Key::new("", "default"), Some(Object::Namespace));
    }
    Event::Listed(vec![(key, object)])
}

impl Stage {
    fn take_all(&mut self, sources: [usize; 3], event: impl Fn(usize) -> Event<Item>) {
        sources.into_iter().for_each(|source| self.take(source, event(source)));
    }

    /// Takes a slot of a target, and releases it.
    fn login(&self, name: &str) -> Result<(), RefusalReason> {
        let target = self.allowlist.find_target(&name.parse().unwrap())?;
        target.take_slot().map(drop).map_err(|refusal| refusal.reason)
    }

    fn has_endpoint(&self, name: &str) -> bool {
        let target = self.allowlist.find_target(&name.parse().unwrap());
        target.is_ok_and(|target| !target.endpoints().addresses.is_empty())
    }
}

#[tokio::test(start_paused = true)]
async fn what_belongs_to_services_that_are_held_is_held_in_whatever_order_the_lists_come() {
    let options = Options {
        namespace_selector: Some("a!=b".into()),
        ..Options::default()
    };
    for (count, order) in [(30, [0, 1, 2]), (30, [2, 1, 0]), (3, [0, 1, 2]), (3, [2, 1, 0])] {
        let mut stage = stage_of(&options, None);
        let namespace = (Key::new("", "n"), Some(Object::Namespace));
        let all = |source| match source {
            0 => services(count),
            1 => slices(count),
            _ => Event::Listed(vec![namespace.clone()]),
        };
        let lost = |source| match source {
            0 => Event::Listed(Vec::new()),
            1 => own(Kind::Slice),
            _ => own(Kind::Namespace),
        };
        stage.take_all(order, all);
        for seconds in [0, 20, 20] {
            advance(Duration::from_secs(seconds)).await;
            for source in order {
                stage.take(source, lost(source));
                assert!(stage.has_endpoint("s2.n:22"), "{count} {order:?} {source}");
            }
        }
        // They are back.
        stage.take_all(order, all);
        assert!(stage.shows("switchboard_allowlist_removals_held 0"));
        stage.take_all(order, lost);
        advance(Duration::from_secs(300)).await;
        stage.reconciler.release();
        stage.reconciler.settle();
        assert_eq!(stage.authorize("s2.n:22"), Err(RefusalReason::NotAllowed));
        stage.take_all(order, lost);
        assert_eq!(stage.reconciler.cluster.keys(Kind::Slice, Some("n")), []);
        assert!(stage.shows("switchboard_allowlist_removals_held 0"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_later_list_of_slices_confirms_nothing_about_services_that_are_held() {
    let mut stage = stage(None);
    stage.take(0, services(30));
    stage.take(1, slices(30));
    stage.take(1, slices(1));
    stage.take(0, services(1));
    advance(Duration::from_secs(20)).await;
    stage.take(1, slices(1));
    assert!(stage.has_endpoint("s29.n:22"));
    stage.take(0, services(1));
    assert_eq!(stage.authorize("s29.n:22"), Err(RefusalReason::NotAllowed));
    stage.take(1, slices(1));
    assert_eq!(stage.reconciler.cluster.keys(Kind::Slice, None), [key("s0-x")]);
    assert!(stage.has_endpoint("s0.n:22") && stage.shows("switchboard_allowlist_removals_held 0"));
}

#[test]
fn a_faulty_annotation_is_counted_once() {
    let mut stage = stage(None);
    let (key, mut object) = service("s0");
    if let Some(Object::Service(service)) = &mut object {
        let reason = "expected a rate".to_owned();
        service.faults.push(AnnotationError::new("upload", reason));
    }
    for _ in 0..2 {
        stage.take(0, Event::Listed(vec![(key.clone(), object.clone())]));
        stage.take(1, Event::Listed(Vec::new()));
    }
    assert!(stage.shows("switchboard_annotation_errors_total 1"));
}

#[tokio::test]
async fn a_snapshot_is_served_until_every_source_has_been_listed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot");
    let mut first = stage(Some(file.clone()));
    first.take(0, services(2));
    let slice = Slice {
        service: "s0".into(),
        ..Slice::default()
    };
    first.take(
        1,
        Event::Listed(vec![(key("s0-1"), Some(Object::Slice(Box::new(slice))))]),
    );
    first.reconciler.save_snapshot();
    while !file.exists() {
        tokio::task::yield_now().await;
    }
    let mut second = stage(Some(file));
    assert_eq!(second.authorize("s1.n:22"), Ok(()));
    // Unknown, since the cluster may have it by now.
    assert_eq!(second.authorize("s2.n:22"), Err(RefusalReason::AllowlistNotReady));
    assert_eq!(second.reconciler.cluster.keys(Kind::Slice, None), [key("s0-1")]);
    second.take(0, services(1));
    assert_eq!(second.authorize("s1.n:22"), Err(RefusalReason::AllowlistNotReady));
    second.take(1, Event::Listed(Vec::new()));
    assert_eq!(second.authorize("s1.n:22"), Err(RefusalReason::NotAllowed));
}

/// Returns the Services (0) and slices (1) of the namespace `n`, those (2, 3) of the namespace `m`.
fn two_namespaces() -> Options {
    Options {
        namespaces: vec!["n".into(), "m".into()],
        ..Options::default()
    }
}

impl Stage {
    /// The API server forbids to read `m` for that many attempts, the last of which is `lasting` if the right is missing.
    fn forbid(&mut self, attempts: u32, is_lasting: bool) {
        for source in [2, 3] {
            for _ in 0..attempts {
                self.take(source, Event::Failed(Failure::Forbidden));
            }
            if is_lasting {
                self.take(source, Event::Refused);
            }
        }
    }
}

#[test]
fn a_namespace_that_is_forbidden_from_the_start_counts_as_empty() {
    let mut stage = stage_of(&two_namespaces(), None);
    stage.forbid(60, true);
    assert_eq!(
        stage.authorize("s0.n:22"),
        Err(RefusalReason::AllowlistNotReady),
        "as long as no other namespace can be read, rights are missing and not a namespace"
    );
    stage.take(0, services(1));
    stage.take(1, Event::Listed(Vec::new()));
    assert_eq!(
        stage.authorize("s0.n:22"),
        Ok(()),
        "nothing more is needed from the other one"
    );
    assert_eq!(stage.authorize("s0.m:22"), Err(RefusalReason::NotAllowed));
    assert!(stage.shows("switchboard_allowlist_namespaces_forbidden 1"));
    assert!(stage.metrics.last_sync_timestamp.get() > 1.7e9);
    // From now on the gauge shows it, and no failure more is counted, which would fire an alert for ever.
    let is_given_up = |stage: &Stage, source: usize| stage.reconciler.sources[source].is_treated_as_empty;
    assert_eq!(
        [0, 1, 2, 3].map(|source| is_given_up(&stage, source)),
        [false, false, true, true]
    );
    stage.forbid(600, true);
    assert!(stage.shows("switchboard_watch_errors_total{kind=\"forbidden\"} 120"));
    stage.take(2, Event::Failed(Failure::Connect));
    assert!(stage.shows("switchboard_watch_errors_total{kind=\"connect\"} 1"));
    stage.take(2, Event::Listed(Vec::new()));
    assert!(!is_given_up(&stage, 2) && is_given_up(&stage, 3));
    stage.take(3, Event::Listed(Vec::new()));
    assert!(stage.shows("switchboard_allowlist_namespaces_forbidden 0"));
}

#[test]
fn a_refusal_that_passes_makes_no_namespace_empty() {
    let mut stage = stage_of(&two_namespaces(), None);
    stage.take(0, services(1));
    stage.take(1, Event::Listed(Vec::new()));
    stage.forbid(9, false);
    assert_eq!(stage.authorize("s0.m:22"), Err(RefusalReason::AllowlistNotReady));
    assert!(stage.shows("switchboard_allowlist_namespaces_forbidden 0"));
}

#[test]
fn a_refusal_before_another_failure_makes_no_namespace_empty_later() {
    let mut stage = stage_of(&two_namespaces(), None);
    stage.forbid(9, true);
    for source in [2, 3] {
        stage.take(source, Event::Failed(Failure::Connect));
    }
    stage.take(0, services(1));
    stage.take(1, Event::Listed(Vec::new()));
    assert_eq!(stage.authorize("s0.m:22"), Err(RefusalReason::AllowlistNotReady));
    assert!(stage.shows("switchboard_allowlist_namespaces_forbidden 0"));
}

#[test]
fn rights_that_are_lost_later_remove_no_object() {
    let mut stage = stage_of(&two_namespaces(), None);
    for source in [0, 1, 3] {
        stage.take(source, Event::Listed(Vec::new()));
    }
    let (mut key, object) = service("s0");
    key.namespace = "m".into();
    stage.take(2, Event::Listed(vec![(key.clone(), object)]));
    stage.forbid(600, true);
    assert_eq!(stage.authorize("s0.m:22"), Ok(()));
    assert!(stage.shows("switchboard_allowlist_namespaces_forbidden 0"));
    // Events have deleted its objects before: nothing is left that could be removed.
    stage.take(2, Event::Deleted((key, None)));
    stage.forbid(11, true);
    assert!(stage.shows("switchboard_allowlist_namespaces_forbidden 1"));
}

impl Stage {
    /// Starts the tasks again for other options, as a reload does.
    fn reload(self, options: &Options) -> Self {
        let Self {
            reconciler,
            allowlist,
            metrics,
            registry,
        } = self;
        let policy = TargetPolicy::new(options, &Limits::default());
        let handles = SourceHandle::all(sources(options));
        let outputs = reconciler.outputs.clone();
        let mut reconciler = reconciler.with_sources(policy, handles, outputs);
        reconciler.settle();
        Self {
            reconciler,
            allowlist,
            metrics,
            registry,
        }
    }
}

#[tokio::test]
async fn a_reconciler_that_is_stopped_leaves_its_state_and_one_that_panics_none() {
    let mut stage = stage(None);
    stage.take_all_of(0, services(2), slices(2));
    let policy = watch::Sender::new(stage.reconciler.cluster.policy().clone());
    let idle = IdleReconciler::new(Mutex::new(Some(Box::new(stage.reconciler))));
    let (events, receiver) = mpsc::channel(1);
    let running = tokio::spawn(Reconciler::run(Arc::clone(&idle), receiver, policy.subscribe()));
    let (index, event) = (0, services(3));
    events.send(SourceEvent { index, event }).await.unwrap();
    let known = || {
        idle.lock()
            .as_ref()
            .map(|state| state.cluster.keys(Kind::Service, None).len())
    };
    while known() != Some(3) {
        tokio::task::yield_now().await;
    }
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    assert_eq!(known(), Some(3));
    let state = Arc::clone(&idle);
    let panicked = std::thread::spawn(move || Reconciler::step(&state, |_| panic!("a defect")));
    assert!(panicked.join().is_err() && known().is_none());
}

impl Stage {
    /// Takes an event of a namespace's Services, and one of its slices, which are the sources from `first`.
    fn take_all_of(&mut self, first: usize, services: Event<Item>, slices: Event<Item>) {
        self.take(first, services);
        self.take(first + 1, slices);
    }
}

/// Every key that decides which objects are targets, by the objects that a reload of it lists again.
mod of_pods;
mod reloads;
