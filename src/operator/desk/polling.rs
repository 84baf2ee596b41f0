//! Beside the tunnels: the drain, the targets and the refusals of the replicas while a page asks, and their events all the time,
//! so that the latest refusals and ends are known.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::hub::{Hub, now};
use crate::daemon::admin::Progress;
use crate::daemon::admin::api::{Refusals, Target};
use crate::operator::replicas::{Ask, Happening, Query, Replica, Told, by_target, watch};

/// Looks until it is dropped.
pub(super) async fn run(hub: Arc<Hub>) {
    let (sender, told) = mpsc::channel(MOST_UNREAD);
    let _counting = AbortOnDropHandle::new(tokio::spawn(count(Arc::clone(&hub), told)));
    let mut watches = HashMap::new();
    let mut replicas: Vec<Replica> = Vec::new();
    let mut find_at = Instant::now();
    loop {
        if Instant::now() >= find_at {
            // An error is shown by what follows the tunnels.
            if let Ok(Ok(found)) = timeout(LONGEST_FIND, hub.replicas.find()).await {
                keep(&hub, &mut watches, &found, &sender);
                replicas = found;
            }
            find_at = Instant::now() + BETWEEN_FINDS;
        }
        if hub.is_watched() {
            look(&hub, &replicas).await;
        } else {
            hub.rest().await;
        }
        tokio::select! {
            () = sleep(BETWEEN_LOOKS) => {}
            () = hub.wanted.notified() => {}
        }
    }
}

/// Watches the events of each replica that there is, and forgets those that there are no more.
fn keep(
    hub: &Hub,
    watches: &mut HashMap<Arc<str>, AbortOnDropHandle<()>>,
    replicas: &[Replica],
    sender: &mpsc::Sender<Told>,
) {
    let is_there = |name: &Arc<str>| replicas.iter().any(|replica| replica.name() == name);
    watches.retain(|name, _| is_there(name));
    for replica in replicas {
        let begin = || watch(replica.clone(), sender.clone());
        watches.entry(Arc::clone(replica.name())).or_insert_with(begin);
    }
    let mut found = hub.found.lock();
    found.drains.retain(|name, _| is_there(name));
    found.deaf.retain(|name, _| is_there(name));
    found.refusals.keep(is_there);
}

async fn count(hub: Arc<Hub>, mut told: mpsc::Receiver<Told>) {
    while let Some(Told { replica, happening }) = told.recv().await {
        let mut found = hub.found.lock();
        match happening {
            Happening::Connected => {
                found.deaf.remove(&replica);
            }
            Happening::Lost(error) => {
                found.deaf.insert(replica, error.to_string());
            }
            Happening::Event(name, data) if name == "refused" => found.refusals.note(&replica, data, now()),
            Happening::Event(name, data) if name == "closed" => found.ended.note(&replica, data, now()),
            Happening::Event(name, data) if name == "missed" => {
                let events = data.get("events").and_then(Value::as_u64).unwrap_or_default();
                found.missed = found.missed.saturating_add(events);
            }
            Happening::Event(..) => {}
        }
    }
}

/// Asks each replica for its drain and its refusals, and all for their targets.
async fn look(hub: &Arc<Hub>, replicas: &[Replica]) {
    let permits = Arc::new(Semaphore::new(MOST_AT_ONCE));
    let mut asking = JoinSet::new();
    for replica in replicas {
        let (hub, replica, permits) = (Arc::clone(hub), replica.clone(), Arc::clone(&permits));
        asking.spawn(async move {
            // Never closed.
            let _permit = permits.acquire_owned().await;
            // Whether a replica answers is shown by its tunnels.
            if let Ok(drain) = replica.ask::<Progress>(&Ask::get("/drain")).await {
                hub.found.lock().drains.insert(Arc::clone(replica.name()), drain);
            }
            if let Ok(refusals) = replica.ask::<Refusals>(&Ask::get("/refusals")).await {
                hub.found.lock().refusals.learn(replica.name(), refusals);
            }
        });
    }
    let listed = hub.replicas.list::<Target>(&Query::default()).await;
    asking.join_all().await;
    if let Ok(listed) = listed {
        hub.found.lock().targets = by_target(&listed);
    }
}

const BETWEEN_LOOKS: Duration = Duration::from_secs(2);
const BETWEEN_FINDS: Duration = Duration::from_secs(10);
const LONGEST_FIND: Duration = Duration::from_secs(30);
const MOST_AT_ONCE: usize = 16;
/// Of all replicas; more wait in the replicas, which drop the oldest and say how many.
const MOST_UNREAD: usize = 1024;
