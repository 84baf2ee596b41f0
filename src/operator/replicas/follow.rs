//! The tunnels of all replicas, asked for again and again: each replica by a task of its own, so that one that hangs delays no
//! other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::Replicas;
use super::listing::{self, Of, State};
use super::replica::Replica;
use super::request::ReplicaError;
use crate::daemon::admin::api::{Query, Tunnel};

/// What is known of all replicas.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// In the order of their names.
    pub replicas: Vec<Seen>,
    /// Why it is not known which replicas there are now.
    pub error: Option<String>,
}

/// What is known of one replica.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its name.
    pub replica: Arc<str>,
    /// The tunnels of its last answer.
    pub tunnels: Arc<[Tunnel]>,
    /// When that came; `None` before the first.
    pub answered: Option<Instant>,
    /// Why there is none since then.
    pub error: Option<ReplicaError>,
}

impl Snapshot {
    /// Whether each replica has answered or failed once.
    pub fn is_complete(&self) -> bool {
        let is_known = |seen: &Seen| seen.answered.is_some() || seen.error.is_some();
        self.error.is_some() || (!self.replicas.is_empty() && self.replicas.iter().all(is_known))
    }
}

/// Asks until it is dropped.
#[derive(Debug)]
pub struct Follower {
    seen: watch::Receiver<Snapshot>,
    wanted: Arc<Notify>,
    _running: AbortOnDropHandle<()>,
}

impl Follower {
    /// Begins. Each replica is asked once in `interval`, and less often if its answers take long.
    pub fn start(replicas: Arc<Replicas>, interval: Duration) -> Self {
        let (sender, seen) = watch::channel(Snapshot::default());
        let wanted = Arc::new(Notify::new());
        let terms = Arc::new(Terms {
            interval,
            sender,
            wanted: Arc::clone(&wanted),
        });
        let running = AbortOnDropHandle::new(tokio::spawn(find(replicas, terms)));
        Self {
            seen,
            wanted,
            _running: running,
        }
    }

    /// What is known now.
    pub fn snapshot(&mut self) -> Snapshot {
        self.seen.borrow_and_update().clone()
    }

    /// Completes when there is something new since the last [`snapshot`](Self::snapshot).
    pub async fn changed(&mut self) {
        if self.seen.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Asks all replicas now, as after a change.
    pub fn ask_now(&self) {
        self.wanted.notify_waiters();
    }
}

#[derive(Debug)]
struct Terms {
    interval: Duration,
    sender: watch::Sender<Snapshot>,
    wanted: Arc<Notify>,
}

/// Finds the replicas, and keeps a task for each.
async fn find(replicas: Arc<Replicas>, terms: Arc<Terms>) {
    let mut running: HashMap<Arc<str>, AbortOnDropHandle<()>> = HashMap::new();
    loop {
        match timeout(LONGEST_FIND, replicas.find()).await {
            Ok(Ok(found)) => {
                terms.keep(&found);
                running.retain(|name, _| found.iter().any(|replica| replica.name() == name));
                for replica in found {
                    let name = Arc::clone(replica.name());
                    let asking = || AbortOnDropHandle::new(tokio::spawn(ask(replica, Arc::clone(&terms))));
                    running.entry(name).or_insert_with(asking);
                }
            }
            Ok(Err(error)) => terms.fail(error.to_string()),
            Err(_) => terms.fail("cannot find the replicas: no answer in time".to_owned()),
        }
        sleep(BETWEEN_FINDS).await;
    }
}

async fn ask(replica: Replica, terms: Arc<Terms>) {
    loop {
        let start = Instant::now();
        let answer = listing::all::<Tunnel>(&replica, &Query::default()).await;
        terms.see(replica.name(), answer.map(|(tunnels, _)| tunnels.into()));
        // A fourth of the time at most: a long list over a slow line is no work without end.
        let next = start + terms.interval.max(start.elapsed() * 4);
        tokio::select! {
            () = sleep_until(next) => {}
            () = terms.wanted.notified() => {}
        }
    }
}

impl Terms {
    fn keep(&self, found: &[Replica]) {
        self.sender.send_modify(|snapshot| {
            snapshot.error = None;
            let seen = found.iter().map(|replica| {
                let known = snapshot.replicas.iter().find(|seen| seen.replica == *replica.name());
                known.cloned().unwrap_or_else(|| Seen {
                    replica: Arc::clone(replica.name()),
                    tunnels: Arc::default(),
                    answered: None,
                    error: None,
                })
            });
            snapshot.replicas = seen.collect();
        });
    }

    fn fail(&self, error: String) {
        self.sender.send_modify(|snapshot| snapshot.error = Some(error));
    }

    fn see(&self, replica: &Arc<str>, answer: Result<Arc<[Tunnel]>, ReplicaError>) {
        self.sender.send_modify(|snapshot| {
            let Some(seen) = snapshot.replicas.iter_mut().find(|seen| seen.replica == *replica) else {
                return;
            };
            match answer {
                Ok(tunnels) => {
                    (seen.tunnels, seen.answered, seen.error) = (tunnels, Some(Instant::now()), None);
                }
                Err(error) => seen.error = Some(error),
            }
        });
    }
}

impl Of<Tunnel> {
    /// `namespace/service` of its target.
    pub fn target(&self) -> String {
        format!("{}/{}", self.item.target_namespace, self.item.target_service)
    }
}

impl State {
    /// Whether the replica answers.
    pub fn answers(&self) -> bool {
        self.error.is_none()
    }
}

const BETWEEN_FINDS: Duration = Duration::from_secs(10);
const LONGEST_FIND: Duration = Duration::from_secs(30);
