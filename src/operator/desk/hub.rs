//! What the page shows: asked of the replicas while a page asks, once for all pages.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::time::{Instant, sleep};

use super::changed_tunnels::{Changes, Known};
use super::latest::Latest;
use super::refusals::{Refusals, Told};
use crate::daemon::admin::Progress;
use crate::operator::replicas::{Follower, Replicas, Snapshot, TargetRow};

/// The replicas, and what is known of them.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) replicas: Arc<Replicas>,
    /// What the survey has found.
    pub(super) found: Mutex<Found>,
    /// Wakes the survey.
    pub(super) wanted: Notify,
    following: AsyncMutex<Option<Follower>>,
    known: Mutex<Known>,
    asked: Mutex<Option<Instant>>,
    started: u64,
}

/// What is asked for less often than tunnels, and what is told without being asked for.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) targets: Vec<TargetRow>,
    pub(super) drains: HashMap<Arc<str>, Progress>,
    /// Replicas whose events are not read, with the reason.
    pub(super) deaf: HashMap<Arc<str>, String>,
    pub(super) refusals: Refusals,
    /// The tunnels that have ended, of all replicas.
    pub(super) ended: Latest<MOST_ENDED>,
    /// Events that the replicas have dropped, because the desk did not read them in time.
    pub(super) missed: u64,
}

/// The answer to a page.
#[derive(Debug, Serialize)]
pub(super) struct State {
    #[serde(flatten)]
    changes: Changes,
    /// Milliseconds since 1970.
    now: u64,
    started: u64,
    /// Why it is not known which replicas there are.
    fault: Option<String>,
    replicas: Vec<ReplicaTold>,
    targets: Vec<TargetRow>,
    refusals: Told,
    /// How many tunnels have ended since the start of the desk: a page that shows them asks for them when it grows.
    ended: u64,
    /// How many events are not known: ends, refusals and others.
    missed: u64,
}

#[derive(Debug, Serialize)]
struct ReplicaTold {
    name: String,
    error: Option<String>,
    /// The time of its last answer.
    answered: Option<u64>,
    /// Those of its last answer.
    tunnels: usize,
    /// Empty until it is known.
    phase: String,
    resumable: u32,
    connections: u32,
    /// Why its events are not read.
    deaf: Option<String>,
}

impl Hub {
    /// Of these replicas. Nothing is asked yet.
    pub(super) fn new(replicas: Replicas) -> Self {
        Self {
            replicas: Arc::new(replicas),
            found: Mutex::default(),
            wanted: Notify::new(),
            following: AsyncMutex::default(),
            known: Mutex::default(),
            asked: Mutex::default(),
            started: now(),
        }
    }

    /// What has changed since a page's last answer.
    pub(super) async fn state(&self, since: u64) -> State {
        let was_watched = self.is_watched();
        *self.asked.lock() = Some(Instant::now());
        if !was_watched {
            self.wanted.notify_one();
        }
        let snapshot = self.snapshot().await;
        let now = now();
        let mut known = self.known.lock();
        known.see(&snapshot, now);
        let changes = known.since(since);
        drop(known);
        let found = self.found.lock();
        State {
            changes,
            now,
            started: self.started,
            replicas: replicas(&snapshot, &found, now),
            fault: snapshot.error,
            targets: found.targets.clone(),
            refusals: found.refusals.told(now),
            ended: found.ended.noted,
            missed: found.missed,
        }
    }

    /// The tunnels that have ended in the last hour, the last one first.
    pub(super) fn ended(&self) -> Vec<Value> {
        self.found.lock().ended.told(now())
    }

    /// What the replicas have answered. The first time it waits for them, but not for one that hangs.
    async fn snapshot(&self) -> Snapshot {
        let mut following = self.following.lock().await;
        let start = || Follower::start(Arc::clone(&self.replicas), INTERVAL);
        let follower = following.get_or_insert_with(start);
        let mut snapshot = follower.snapshot();
        let wait = sleep(FIRST_ANSWERS);
        tokio::pin!(wait);
        while !snapshot.is_complete() {
            tokio::select! {
                () = follower.changed() => snapshot = follower.snapshot(),
                () = &mut wait => break,
            }
        }
        snapshot
    }

    /// Asks again at once, after a change.
    pub(super) async fn refresh(&self) {
        self.wanted.notify_one();
        if let Some(follower) = &*self.following.lock().await {
            follower.ask_now();
        }
    }

    /// Whether a page has asked lately.
    pub(super) fn is_watched(&self) -> bool {
        self.asked.lock().is_some_and(|asked| asked.elapsed() < LONGEST_PAUSE)
    }

    /// Asks the replicas for no more tunnels until a page asks again.
    pub(super) async fn rest(&self) {
        *self.following.lock().await = None;
    }
}

fn replicas(snapshot: &Snapshot, found: &Found, now: u64) -> Vec<ReplicaTold> {
    let told = snapshot.replicas.iter().map(|seen| {
        let drain = found.drains.get(&seen.replica);
        let ago = |at: Instant| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
        ReplicaTold {
            name: seen.replica.to_string(),
            error: seen.error.as_ref().map(ToString::to_string),
            answered: seen.answered.map(|at| now.saturating_sub(ago(at))),
            tunnels: seen.tunnels.len(),
            phase: drain.map(|drain| drain.phase.clone()).unwrap_or_default(),
            resumable: drain.and_then(|drain| drain.resumable).unwrap_or_default(),
            connections: drain.map_or(0, |drain| drain.connections),
            deaf: found.deaf.get(&seen.replica).cloned(),
        }
    });
    told.collect()
}

/// Milliseconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Between two questions to a replica for its tunnels. Its rates are those of a second.
const INTERVAL: Duration = Duration::from_secs(1);
/// A busy hour has more; their access lines have them all.
const MOST_ENDED: usize = 1000;
const FIRST_ANSWERS: Duration = Duration::from_secs(2);
/// A page asks once a second; one that is hidden does not ask.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
