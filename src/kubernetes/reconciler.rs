//! Takes the news of all sources, and keeps the allowlist, the metrics and the snapshot as they say.

use std::collections::HashSet;
use std::future::pending;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};
use tracing::{error, info, warn};

use super::join::{Join, Note, Rules};
use super::model::{Key, Object};
use super::shrink::Shrink;
use super::snapshot;
use super::watch::{News, Source, What};
use crate::allowlist::{Change, Writer};
use crate::metrics::Metrics;

/// The one who joins, for as long as its sources are followed.
#[derive(Debug)]
pub(crate) struct Reconciler {
    join: Join,
    writer: Writer,
    metrics: Metrics,
    sources: Vec<Followed>,
    /// Whether the allowlist has been told a complete list.
    complete: bool,
    /// Whether that is the cluster's, and not a snapshot's.
    answered: bool,
    snapshot: Option<File>,
    lines: Quota,
}

#[derive(Debug)]
struct Followed {
    source: Source,
    shrink: Shrink,
    /// Whether the next list is wanted soon.
    doubt: Arc<AtomicBool>,
    /// When it was last known to be current, in seconds since 1970.
    current: Option<f64>,
    listed: bool,
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    /// Which objects are asked for.
    settings: String,
    /// When to write it, if there is something new.
    due: Option<Instant>,
    written: Option<Instant>,
}

impl Reconciler {
    /// One that knows what the snapshot says, or nothing.
    pub(crate) fn new(
        rules: Rules,
        sources: Vec<(Source, Arc<AtomicBool>)>,
        snapshot: Option<PathBuf>,
        outputs: (Writer, Metrics),
    ) -> Self {
        let (writer, metrics) = outputs;
        let settings = settings(&sources);
        let followed = |(source, doubt)| Followed {
            source,
            shrink: Shrink::default(),
            doubt,
            current: None,
            listed: false,
        };
        let mut keeper = Self {
            join: Join::new(rules),
            writer,
            metrics,
            sources: sources.into_iter().map(followed).collect(),
            complete: false,
            answered: false,
            snapshot: snapshot.map(|path| File {
                path,
                settings,
                due: None,
                written: None,
            }),
            lines: Quota::default(),
        };
        keeper.load();
        keeper
    }

    /// Keeps, until there are no more news or rules.
    pub(crate) async fn run(mut self, mut news: mpsc::Receiver<News>, mut rules: watch::Receiver<Rules>) {
        loop {
            let held = self.sources.iter().filter_map(|source| source.shrink.until()).min();
            let due = self.snapshot.as_ref().and_then(|file| file.due);
            tokio::select! {
                changed = rules.changed() => match changed {
                    Ok(()) => self.join.configure(rules.borrow_and_update().clone()),
                    Err(_) => return,
                },
                first = news.recv() => match first {
                    Some(first) => {
                        self.take(first);
                        // What has gathered meanwhile is settled together.
                        for _ in 0..MOST_TOGETHER {
                            let Ok(next) = news.try_recv() else { break };
                            self.take(next);
                        }
                    }
                    None => return,
                },
                () = until(held) => self.release(),
                () = until(due) => self.save(),
            }
            self.settle();
        }
    }

    fn take(&mut self, News { source, what }: News) {
        let Some(followed) = self.sources.get_mut(source) else {
            return;
        };
        let now = seconds(SystemTime::now());
        let kind = followed.source.kind;
        match what {
            What::Failed(failure) => {
                self.metrics.watch_failed(failure.label());
                return;
            }
            What::Current => {}
            What::Put(key, object) => {
                followed.shrink.told(&key);
                self.join.put(key, object);
            }
            What::Gone(key) => {
                followed.shrink.told(&key);
                self.join.remove(kind, &key);
            }
            What::Listed(objects) => self.listed(source, objects),
        }
        if let Some(followed) = self.sources.get_mut(source) {
            followed.current = Some(now);
        }
        self.show_age();
    }

    fn listed(&mut self, source: usize, objects: Vec<(Key, Object)>) {
        let Some(followed) = self.sources.get_mut(source) else {
            return;
        };
        let kind = followed.source.kind;
        let known = self.join.keys(kind, followed.source.namespace.as_deref());
        let listed: HashSet<&Key> = objects.iter().map(|(key, _)| key).collect();
        let was_held = followed.shrink.until().is_some();
        let (before, now) = (known.len(), listed.len());
        let gone = followed.shrink.listed(known, &listed, Instant::now());
        let is_held = followed.shrink.until().is_some();
        followed.listed = true;
        if is_held && !was_held {
            warn!(
                kind = kind.name(),
                before, now, "a list has lost most of its objects: what is missing stays for up to 5 minutes"
            );
        }
        for (key, object) in objects {
            self.join.put(key, object);
        }
        for key in gone {
            self.join.remove(kind, &key);
        }
        self.show_held();
    }

    /// Gives up what was held for too long.
    fn release(&mut self) {
        let now = Instant::now();
        for followed in &mut self.sources {
            let gone = followed.shrink.release(now);
            if !gone.is_empty() {
                let kind = followed.source.kind;
                warn!(
                    kind = kind.name(),
                    objects = gone.len(),
                    "what was held back is gone now"
                );
                for key in gone {
                    self.join.remove(kind, &key);
                }
            }
        }
        self.show_held();
    }

    fn settle(&mut self) {
        let is_first = !self.complete;
        if is_first && !self.sources.iter().all(|followed| followed.listed) {
            return;
        }
        self.complete = true;
        let settled = self.join.settle();
        let answers = !self.answered && self.sources.iter().all(|followed| followed.current.is_some());
        if !is_first && !answers && settled.changes.is_empty() && settled.notes.is_empty() {
            return;
        }
        self.answered |= answers;
        self.writer.contested(self.join.contested());
        if is_first {
            let set = |change| match change {
                Change::Set(target) => Some(*target),
                Change::Remove(_) => None,
            };
            let targets: Vec<_> = settled.changes.into_iter().filter_map(set).collect();
            self.writer.replace(targets, answers);
        } else {
            self.writer.apply(settled.changes);
        }
        if answers {
            info!("the allowlist has the Services of the cluster");
            self.writer.confirm();
        }
        for note in &settled.notes {
            self.tell(note, is_first);
        }
        if let Some(file) = &mut self.snapshot {
            let soonest = file.written.map_or_else(Instant::now, |written| written + WRITE_EVERY);
            file.due.get_or_insert(soonest.max(Instant::now() + WRITE_AFTER));
        }
    }

    fn tell(&mut self, note: &Note, is_first: bool) {
        if matches!(note, Note::Annotation(..)) {
            self.metrics.annotation_errors.inc();
        }
        // The first list is told in one line.
        if (is_first && matches!(note, Note::Added(_))) || !self.lines.take() {
            return;
        }
        match note {
            Note::Added(service) => info!(%service, "on the allowlist"),
            Note::Removed(service) => info!(%service, "no longer on the allowlist"),
            Note::Annotation(service, fault) => {
                let (key, reason) = (&fault.key, &fault.reason);
                info!(%service, annotation = %key, "the annotation does not do what it says: {reason}");
            }
            Note::Refused(service, address, class) => {
                let class = class.name();
                warn!(%service, %address, class, "an endpoint of the Service must not be dialled");
            }
            Note::External(service) => info!(%service, "an ExternalName Service is never on the allowlist"),
            Note::Outdone { loser, winner, name } => {
                warn!(%name, service = %loser, %winner, "two Services claim one name: the older has it");
            }
        }
    }

    fn show_age(&self) {
        let oldest = self.sources.iter().map(|followed| followed.current);
        // Until all have been asked the age is that of the snapshot, or there is none.
        let oldest: Option<Vec<f64>> = oldest.collect();
        if let Some(oldest) = oldest.and_then(|times| times.into_iter().reduce(f64::min)) {
            self.metrics.allowlist_last_sync_timestamp.set(oldest);
        }
    }

    fn show_held(&self) {
        let mut is_held = false;
        for followed in &self.sources {
            let is_doubtful = followed.shrink.until().is_some();
            followed.doubt.store(is_doubtful, Ordering::Relaxed);
            is_held |= is_doubtful;
        }
        self.metrics.allowlist_shrink_held.set(i64::from(is_held));
    }

    fn load(&mut self) {
        // What is being served is newer.
        let Some(file) = self.snapshot.as_ref().filter(|_| !self.writer.is_complete()) else {
            return;
        };
        match snapshot::read(&file.path, &file.settings) {
            Ok(snapshot) => {
                let age = snapshot.saved.elapsed().unwrap_or_default();
                warn!(path = %file.path.display(), objects = snapshot.objects.len(), ?age, "serving the last snapshot until the cluster answers");
                self.metrics.allowlist_last_sync_timestamp.set(seconds(snapshot.saved));
                for (key, object) in snapshot.objects {
                    self.join.put(key, object);
                }
                for followed in &mut self.sources {
                    followed.listed = true;
                }
                self.settle();
            }
            Err(error) => info!(path = %file.path.display(), "no snapshot to begin with: {error}"),
        }
    }

    fn save(&mut self) {
        let Some(file) = &mut self.snapshot else { return };
        file.due = None;
        file.written = Some(Instant::now());
        let objects: Vec<_> = self.join.objects().collect();
        let (path, settings) = (file.path.clone(), file.settings.clone());
        // Its end is not waited for: the next one comes 30 s later.
        drop(spawn_blocking(move || {
            let text = snapshot::encode(&objects, &settings, SystemTime::now());
            if let Err(error) = text.and_then(|text| snapshot::write(&path, &text)) {
                error!(path = %path.display(), "cannot write the snapshot: {error}");
            }
        }));
    }
}

/// Which objects are asked for, as a text.
fn settings(sources: &[(Source, Arc<AtomicBool>)]) -> String {
    let one = |(source, _): &(Source, Arc<AtomicBool>)| {
        let Source {
            index: _,
            kind,
            namespace,
            selector,
            prefix,
            kubeconfig: _,
        } = source;
        format!("{} {namespace:?} {selector:?} {prefix:?}\n", kind.name())
    };
    sources.iter().map(one).collect()
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// How many log lines may be written: tenants cause them.
#[derive(Debug)]
struct Quota {
    minute: Instant,
    lines: u32,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            minute: Instant::now(),
            lines: 0,
        }
    }
}

impl Quota {
    fn take(&mut self) -> bool {
        if self.minute.elapsed() >= Duration::from_secs(60) {
            if let Some(lost) = self.lines.checked_sub(MOST_LINES).filter(|lost| *lost > 0) {
                info!(lines = lost, "more was said about Services than is logged");
            }
            *self = Self::default();
        }
        self.lines = self.lines.saturating_add(1);
        self.lines <= MOST_LINES
    }
}

const MOST_TOGETHER: usize = 1024;
/// Lines a minute.
const MOST_LINES: u32 = 200;
/// How soon after a change the snapshot is written, and how often.
const WRITE_AFTER: Duration = Duration::from_secs(1);
const WRITE_EVERY: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allowlist::Allowlist;
    use crate::kubernetes::failure::Failure;
    use crate::kubernetes::model::{Kind, ServiceFacts, ServicePort, SliceFacts};
    use crate::kubernetes::{Options, rules_of};
    use crate::limits::Limits;
    use crate::outcome::Refusal;
    use tokio::time::advance;

    struct Kept {
        keeper: Reconciler,
        allowlist: Arc<Allowlist>,
        metrics: Metrics,
    }

    fn kept(snapshot: Option<PathBuf>) -> Kept {
        let (writer, allowlist) = Writer::new();
        writer.await_services();
        let metrics = Metrics::new().unwrap();
        let rules = rules_of(&Options::default(), &Limits::default());
        let source = |source| (source, Arc::default());
        let sources = crate::kubernetes::sources(&Options::default());
        let sources = sources.into_iter().map(source).collect();
        let keeper = Reconciler::new(rules, sources, snapshot, (writer, metrics.clone()));
        Kept {
            keeper,
            allowlist,
            metrics,
        }
    }

    impl Kept {
        fn hears(&mut self, source: usize, what: What) {
            self.keeper.take(News { source, what });
            self.keeper.settle();
        }

        fn asked(&self, name: &str) -> Result<(), Refusal> {
            self.allowlist.authorize(&name.parse().unwrap()).map(drop)
        }

        fn shows(&self, line: &str) -> bool {
            self.metrics.encode().unwrap().lines().any(|shown| shown == line)
        }
    }

    fn key(name: &str) -> Key {
        Key {
            namespace: "n".into(),
            name: name.into(),
        }
    }

    fn service(name: &str) -> (Key, Object) {
        let facts = ServiceFacts {
            port: Some(ServicePort {
                number: 22,
                name: Box::default(),
                is_implied: false,
            }),
            ..ServiceFacts::default()
        };
        (key(name), Object::Service(Box::new(facts)))
    }

    fn services(count: usize) -> What {
        What::Listed((0..count).map(|index| service(&format!("s{index}"))).collect())
    }

    #[test]
    fn a_name_is_forbidden_only_once_every_source_has_been_listed() {
        let mut kept = kept(None);
        kept.hears(0, services(1));
        assert_eq!(kept.asked("s0.n:22"), Err(Refusal::AllowlistUnknown));
        assert_eq!(kept.metrics.allowlist_last_sync_timestamp.get(), 0.0);
        kept.hears(1, What::Listed(Vec::new()));
        assert_eq!(kept.asked("s0.n:22"), Ok(()));
        assert_eq!(kept.asked("s1.n:22"), Err(Refusal::NotAllowed));
        assert!(kept.metrics.allowlist_last_sync_timestamp.get() > 1.7e9);
        let (key, object) = service("s1");
        kept.hears(0, What::Put(key.clone(), object));
        assert_eq!(kept.asked("s1.n:22"), Ok(()));
        kept.hears(0, What::Gone(key));
        assert_eq!(kept.asked("s1.n:22"), Err(Refusal::NotAllowed));
    }

    #[test]
    fn failures_change_nothing_but_their_metric() {
        let mut kept = kept(None);
        kept.hears(0, services(1));
        kept.hears(1, What::Listed(Vec::new()));
        let synced = kept.metrics.allowlist_last_sync_timestamp.get();
        kept.hears(0, What::Failed(Failure::Expired));
        assert!(kept.shows("switchboard_watch_errors_total{kind=\"expired\"} 1"));
        assert_eq!(kept.metrics.allowlist_last_sync_timestamp.get(), synced);
        assert_eq!(kept.asked("s0.n:22"), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_shrank_is_held_and_the_next_one_is_wanted_soon() {
        let mut kept = kept(None);
        kept.hears(0, services(30));
        kept.hears(1, What::Listed(Vec::new()));
        kept.hears(0, services(1));
        assert!(kept.shows("switchboard_allowlist_shrink_held 1"));
        assert_eq!(kept.asked("s29.n:22"), Ok(()));
        let is_doubtful = |kept: &Kept| kept.keeper.sources[0].doubt.load(Ordering::Relaxed);
        assert!(is_doubtful(&kept));
        kept.hears(0, services(1));
        assert!(is_doubtful(&kept));
        advance(Duration::from_secs(20)).await;
        kept.hears(0, services(1));
        assert!(kept.shows("switchboard_allowlist_shrink_held 0"));
        assert!(!is_doubtful(&kept));
        assert_eq!(kept.asked("s29.n:22"), Err(Refusal::NotAllowed));
    }

    #[test]
    fn a_faulty_annotation_is_counted_once() {
        let mut kept = kept(None);
        let (key, mut object) = service("s0");
        if let Object::Service(facts) = &mut object {
            facts.faults.push(crate::kubernetes::annotations::AnnotationFault {
                key: "upload".into(),
                reason: "expected a rate".into(),
            });
        }
        for _ in 0..2 {
            kept.hears(0, What::Listed(vec![(key.clone(), object.clone())]));
            kept.hears(1, What::Listed(Vec::new()));
        }
        assert!(kept.shows("switchboard_annotation_errors_total 1"));
    }

    #[tokio::test]
    async fn a_snapshot_is_served_until_the_cluster_says_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("snapshot");
        let mut first = kept(Some(file.clone()));
        first.hears(0, services(2));
        let slice = SliceFacts {
            service: "s0".into(),
            ..SliceFacts::default()
        };
        first.hears(1, What::Listed(vec![(key("s0-1"), Object::Slice(Box::new(slice)))]));
        first.keeper.save();
        while !file.exists() {
            tokio::task::yield_now().await;
        }
        let mut second = kept(Some(file));
        assert_eq!(second.asked("s1.n:22"), Ok(()));
        // It may have come since.
        assert_eq!(second.asked("s2.n:22"), Err(Refusal::AllowlistUnknown));
        assert_eq!(second.keeper.join.keys(Kind::Slice, None), [key("s0-1")]);
        second.hears(0, services(1));
        assert_eq!(second.asked("s1.n:22"), Err(Refusal::AllowlistUnknown));
        second.hears(1, What::Listed(Vec::new()));
        assert_eq!(second.asked("s1.n:22"), Err(Refusal::NotAllowed));
    }
}
