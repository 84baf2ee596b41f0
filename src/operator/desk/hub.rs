//! Polls the replicas while a page sends requests: each by its own task, so that one that hangs delays no other. The ended
//! tunnels of the past hour are read first, and the events all the time, so that each end is known.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::state::{Changes, MAX_REFUSED, ReplicaState, State, now};
use crate::daemon::admin::DrainStatus;
use crate::daemon::admin::api::{EndedTunnel, Refusals, Restriction, Target, Tunnel};
use crate::operator::replicas::{AdminRequest, DiscoveryError, Events, Query, Replica, ReplicaError, Replicas};

/// The replicas and their state.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) replicas: Replicas,
    state: watch::Sender<State>,
    /// The time of the last request of a page; `None` before the first.
    asked: watch::Sender<Option<Instant>>,
    /// Wakes the polling tasks.
    wanted: watch::Sender<()>,
}

impl Hub {
    /// Creates a hub that has sent no request yet.
    pub(super) fn new(replicas: Replicas) -> Self {
        Self {
            replicas,
            state: watch::Sender::new(State::new()),
            asked: watch::Sender::default(),
            wanted: watch::Sender::default(),
        }
    }

    /// Returns the changes since a page's last answer. Waits up to [`FIRST_ANSWERS`] until each replica has answered or
    /// failed.
    pub(super) async fn changes(&self, since: u64) -> Changes {
        self.asked.send_replace(Some(Instant::now()));
        let mut state = self.state.subscribe();
        let complete = timeout(FIRST_ANSWERS, state.wait_for(State::is_complete));
        // After the timeout, the state so far is the answer.
        drop(complete.await);
        self.state.borrow().changes_since(since, now())
    }

    /// Returns the tunnels that have ended in the last hour, the latest first.
    pub(super) fn ended(&self) -> Vec<Value> {
        self.state.borrow().ended(now())
    }

    /// Polls again at once, after a change.
    pub(super) fn refresh(&self) {
        self.wanted.send_replace(());
    }

    /// Returns the replica with that name; `None` if it is gone.
    pub(super) fn replica(&self, name: &str) -> Option<Replica> {
        self.state.borrow().replica(name)
    }

    fn with(&self, name: &str, change: impl FnOnce(&mut ReplicaState)) {
        self.state.send_modify(|state| state.with(name, change));
    }
}

/// Finds the replicas, and runs the tasks of each. Never returns.
pub(super) async fn run(hub: Arc<Hub>) {
    let mut running = HashMap::new();
    loop {
        let late = |_| Err(DiscoveryError("no answer in time".to_owned()));
        match timeout(DISCOVERY_TIMEOUT, hub.replicas.find())
            .await
            .unwrap_or_else(late)
        {
            Ok(found) => {
                let names: Vec<_> = found.iter().map(|replica| Arc::clone(replica.name())).collect();
                hub.state.send_modify(|state| state.keep(found));
                // A task that has ended has panicked, or its replica was gone.
                let is_alive = |tasks: &[AbortOnDropHandle<()>; 2]| !tasks.iter().any(AbortOnDropHandle::is_finished);
                running.retain(|name, tasks| names.contains(name) && is_alive(tasks));
                for name in names {
                    let begin = || {
                        let asking = tokio::spawn(poll_replica(Arc::clone(&hub), Arc::clone(&name)));
                        let hearing = tokio::spawn(hear(Arc::clone(&hub), Arc::clone(&name)));
                        [asking, hearing].map(AbortOnDropHandle::new)
                    };
                    running.entry(Arc::clone(&name)).or_insert_with(begin);
                }
            }
            Err(error) => hub.state.send_modify(|state| state.fail(error.to_string())),
        }
        sleep(BETWEEN_FINDS).await;
    }
}

/// Polls a replica while pages send requests.
async fn poll_replica(hub: Arc<Hub>, name: Arc<str>) {
    let (mut asked, mut wanted) = (hub.asked.subscribe(), hub.wanted.subscribe());
    let is_watched = |asked: &Option<Instant>| asked.is_some_and(|asked| asked.elapsed() < MAX_PAUSE);
    let mut looking: Option<AbortOnDropHandle<()>> = None;
    loop {
        if !is_watched(&asked.borrow()) {
            hub.with(&name, ReplicaState::rest);
        }
        if asked.wait_for(is_watched).await.is_err() {
            return;
        }
        let Some(replica) = hub.replica(&name) else { return };
        let start = Instant::now();
        let tunnels = replica.list::<Tunnel>(&Query::default()).await;
        // A failure also clears the targets: a pending poll must not set them again.
        looking = looking.filter(|looking| tunnels.is_ok() && !looking.is_finished());
        let is_free = tunnels.is_ok() && looking.is_none();
        hub.state.send_modify(|state| state.set_counts(&name, tunnels, now()));
        if is_free {
            // In its own task: a request that hangs must not delay the tunnels.
            let hub = Arc::clone(&hub);
            looking = Some(AbortOnDropHandle::new(tokio::spawn(async move {
                let start = Instant::now();
                poll_once(&hub, replica).await;
                sleep_until(next(start, BETWEEN_LOOKS)).await;
            })));
        }
        tokio::select! {
            () = sleep_until(next(start, INTERVAL)) => {}
            // A poll from before the change is useless now.
            Ok(()) = wanted.changed() => looking = None,
        }
    }
}

/// Returns when to poll again after an answer that has just arrived. Polls take at most a quarter of the time, however slow.
fn next(start: Instant, interval: Duration) -> Instant {
    start + interval.max(start.elapsed() * 4)
}

/// Polls all but the tunnels once. Errors are ignored: the poll of tunnels shows them.
async fn poll_once(hub: &Hub, replica: Replica) {
    let drain = replica.request::<DrainStatus>(&AdminRequest::get("/drain")).await;
    let refusals = AdminRequest::get(format!("/refusals?detail&limit={MAX_REFUSED}"));
    let refusals = replica.request::<Refusals>(&refusals).await;
    let targets = replica.list::<Target>(&Query::default()).await;
    let restrictions = replica.list::<Restriction>(&Query::default()).await;
    hub.with(replica.name(), |state| {
        state.update(drain.ok(), refusals.ok(), targets.unwrap_or_default());
        state.restrictions = restrictions.unwrap_or_default();
    });
}

/// Reads the events of a replica until it is gone.
async fn hear(hub: Arc<Hub>, name: Arc<str>) {
    while let Some(replica) = hub.replica(&name) {
        let Err(error) = read(&hub, &replica).await;
        hub.with(&name, |state| state.event_errors = Some(error.to_string()));
        sleep(BETWEEN_TRIES).await;
    }
}

async fn read(hub: &Hub, replica: &Replica) -> Result<Infallible, ReplicaError> {
    let name = replica.name();
    let mut events = Events::subscribe(replica).await?;
    hub.with(name, |state| state.event_errors = None);
    // An older version has no such list.
    let past = replica.list::<EndedTunnel>(&Query::default()).await.unwrap_or_default();
    hub.state.send_modify(|state| state.note_past(name, &past, now()));
    loop {
        let told = events.next().await?;
        let at = now();
        hub.state.send_modify(|state| {
            told.into_iter()
                .for_each(|(event, data)| state.note(name, &event, data, at));
        });
    }
}

/// Between two polls of a replica's tunnels. A replica measures their rates over a second or more.
const INTERVAL: Duration = Duration::from_secs(1);
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);
const BETWEEN_FINDS: Duration = Duration::from_secs(10);
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two attempts to read the events of a replica.
const BETWEEN_TRIES: Duration = Duration::from_secs(5);
const FIRST_ANSWERS: Duration = Duration::from_secs(2);
/// A page sends a request each second, but not while it is hidden.
const MAX_PAUSE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;

    use super::*;
    use crate::operator::replicas::Source;

    /// Returns the path of the next request, and its connection.
    async fn request(listener: &TcpListener) -> (String, TcpStream) {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        let request = String::from_utf8(request).unwrap();
        (request.split(['?', ' ']).nth(1).unwrap().to_owned(), stream)
    }

    async fn answer(mut stream: TcpStream) {
        let body = r#"{"items":[],"total":0,"next":null}"#;
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).await.unwrap();
    }

    async fn replica() -> (TcpListener, Arc<Hub>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let source = Source::Addresses(vec![listener.local_addr().unwrap()]);
        let hub = Hub::new(Replicas::new(source, Duration::from_hours(1)));
        (listener, Arc::new(hub))
    }

    #[tokio::test]
    async fn the_tunnels_of_a_replica_whose_drain_is_not_answered_go_on() {
        let (listener, hub) = replica().await;
        let (sender, mut listed) = mpsc::unbounded_channel();
        let serving = tokio::spawn(async move {
            let mut unanswered = Vec::new();
            loop {
                match request(&listener).await {
                    (path, stream) if path == "/tunnels" => {
                        answer(stream).await;
                        sender.send(()).unwrap();
                    }
                    (_, stream) => unanswered.push(stream),
                }
            }
        });
        let asking = tokio::spawn(run(Arc::clone(&hub)));
        assert_eq!(hub.changes(0).await.replicas.len(), 1);
        for _ in 0..3 {
            listed.recv().await.unwrap();
            hub.refresh();
        }
        asking.abort();
        serving.abort();
    }

    #[tokio::test]
    async fn targets_that_are_answered_slowly_are_asked_for_less_often() {
        let (listener, hub) = replica().await;
        let asking = tokio::spawn(run(Arc::clone(&hub)));
        let watching = tokio::spawn(async move { hub.changes(0).await });
        let (mut held, mut looks) = (None, Vec::new());
        while looks.len() < 2 {
            match request(&listener).await {
                (path, stream) if path == "/targets" => {
                    looks.push((Instant::now(), Duration::ZERO));
                    held = Some(stream);
                }
                (path, stream) if path == "/tunnels" => {
                    answer(stream).await;
                    // About a second later.
                    if let Some((targets, (start, took))) = held.take().zip(looks.last_mut()) {
                        *took = start.elapsed();
                        answer(targets).await;
                    }
                }
                (_, stream) => drop(stream),
            }
        }
        let ((first, took), (second, _)) = (looks[0], looks[1]);
        assert!(
            second - first >= took * 4,
            "{took:?}, and again after {:?}",
            second - first
        );
        watching.await.unwrap();
        asking.abort();
    }
}
