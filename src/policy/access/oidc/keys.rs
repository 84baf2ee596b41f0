//! The keys of an issuer, refreshed in the background: a valid set stays in effect until the next one arrives.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info, warn};

use super::endpoint::Endpoint;
use super::key_set::{KeySet, MAX_BYTES};
use crate::base::file;
use crate::base::follow::{ReadPool, fingerprint, restarted};
use crate::policy::access::queue::{QueueLimits, ReviewQueue};
use crate::policy::access::reviewer::{NoAnswer, ReviewError, busy};

/// Where the keys are.
#[derive(Debug)]
pub(super) enum Source {
    File(PathBuf),
    Endpoint(Endpoint),
}

impl Source {
    /// Returns the pauses between two reads.
    pub(super) fn pace(&self) -> RefreshSchedule {
        let seconds: [u64; 3] = match self {
            Self::File(_) => [10, 10, 1],
            Self::Endpoint(_) => [600, 30, 30],
        };
        let [good, bad, least] = seconds.map(Duration::from_secs);
        RefreshSchedule { good, bad, least }
    }

    async fn read(&self, reads: &ReadPool) -> Result<Vec<u8>, Box<str>> {
        match self {
            Self::Endpoint(endpoint) => endpoint.get(reads).await,
            Self::File(path) => {
                let path = path.clone();
                let read = reads.run(move || file::read(&path, MAX_BYTES as u64)).await;
                let read = read.map_err(|error| format!("its file was {error}"))?;
                read.map_err(|error| file::unreadable(&error).into())
            }
        }
    }
}

/// The pauses between two reads of the keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefreshSchedule {
    /// The pause after a success.
    pub(super) good: Duration,
    /// The pause after a failure.
    pub(super) bad: Duration,
    /// The shortest pause, when a token names a key that is not known.
    pub(super) least: Duration,
}

/// The keys in effect, and the result of the last refresh.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// `None` until an attempt has succeeded.
    pub(super) keys: Option<Arc<KeySet>>,
    /// Why the last attempt failed; `None` if it did not.
    pub(super) failure: Option<Box<str>>,
    /// A hash of the current keys, as they were read.
    fingerprint: Option<u64>,
    /// The number of attempts so far.
    attempts: u64,
    /// The end of the last attempt.
    attempted: Option<Instant>,
}

impl State {
    /// Returns the error for a token whose key is unknown because the last attempt has failed, or none has ended yet.
    pub(super) fn unavailable(&self) -> ReviewError {
        let reason = self.failure.as_deref().unwrap_or("they have not been read yet");
        ReviewError::new(
            NoAnswer::Unavailable,
            format!("the issuer's keys cannot be had: {reason}"),
        )
    }
}

/// The keys of an issuer, refreshed until this is dropped.
#[derive(Debug)]
pub(super) struct Keys {
    refresher: Arc<Refresher>,
    /// The tokens that wait for an attempt.
    queue: Arc<ReviewQueue>,
    _following: Option<AbortOnDropHandle<()>>,
}

/// The state that the background task and tokens share.
#[derive(Debug)]
struct Refresher {
    issuer: Box<str>,
    source: Source,
    schedule: RefreshSchedule,
    state: watch::Sender<State>,
    /// Notified to request an attempt.
    wanted: Notify,
}

impl Keys {
    /// Starts the refresh. Outside a tokio runtime nothing is refreshed, so no keys are ever known.
    pub(super) fn follow(issuer: &str, source: Source, schedule: RefreshSchedule) -> Self {
        let refresher = Arc::new(Refresher {
            issuer: issuer.into(),
            source,
            schedule,
            state: watch::Sender::default(),
            wanted: Notify::new(),
        });
        let runtime = Handle::try_current().ok();
        let own = Arc::clone(&refresher);
        let follow = restarted(
            move || Arc::clone(&own).follow(),
            |error| error!("the task that reads an issuer's keys has failed and is started again: {error}"),
        );
        let following = runtime.map(|runtime| runtime.spawn(follow));
        Self {
            refresher,
            queue: ReviewQueue::new(MAX_WAITING),
            _following: following.map(AbortOnDropHandle::new),
        }
    }

    /// Returns the keys in effect.
    pub(super) fn current(&self) -> State {
        self.refresher.state.borrow().clone()
    }

    /// Returns the keys after one more attempt, since `seen` lacks the key that a token names. All tokens share the
    /// attempt. Within `least` after the last attempt it returns `seen`, so a flood of invented keys costs nothing.
    ///
    /// # Errors
    /// The attempt does not end in time, or too many tokens of all clients or of this network wait for it.
    pub(super) async fn renewed(&self, seen: State, client: IpAddr) -> Result<State, ReviewError> {
        if seen
            .attempted
            .is_some_and(|at| at.elapsed() < self.refresher.schedule.least)
        {
            return Ok(seen);
        }
        let _waiting = self.queue.enter(client).await.ok_or_else(busy)?;
        // The first attempt starts without a request.
        if seen.attempted.is_some() {
            self.refresher.wanted.notify_one();
        }
        let mut state = self.refresher.state.subscribe();
        let next = state.wait_for(|state| state.attempts > seen.attempts);
        match timeout(REFRESH_TIMEOUT, next).await {
            Ok(Ok(state)) => Ok(state.clone()),
            Ok(Err(_)) | Err(_) => Err(seen.unavailable()),
        }
    }
}

impl Refresher {
    async fn follow(self: Arc<Self>) {
        let reads = ReadPool::default();
        loop {
            self.take(self.source.read(&reads).await);
            let pause = match &*self.state.borrow() {
                State { failure: None, .. } => self.schedule.good,
                // As long as there are no keys, no user is known.
                State { keys: None, .. } => self.schedule.bad.min(FIRST),
                State { keys: Some(_), .. } => self.schedule.bad,
            };
            let least = self.schedule.least.min(pause);
            sleep(least).await;
            // The end of the pause counts as a request.
            timeout(pause.saturating_sub(least), self.wanted.notified()).await.ok();
        }
    }

    /// Applies the keys that were read, or keeps the current ones. The same reason is logged once.
    fn take(&self, read: Result<Vec<u8>, Box<str>>) {
        let (issuer, mut state) = (&*self.issuer, self.state.borrow().clone());
        state.failure = match read.and_then(|bytes| state.renew(issuer, &bytes)) {
            Ok(()) => None,
            Err(reason) => {
                match (state.failure.as_ref() == Some(&reason), &state.keys) {
                    (true, _) => {}
                    (false, Some(_)) => warn!(issuer, "{reason}: the issuer's keys stay as they were"),
                    (false, None) => error!(issuer, "{reason}: without the issuer's keys, its users are not known"),
                }
                Some(reason)
            }
        };
        state.attempts += 1;
        state.attempted = Some(Instant::now());
        self.state.send_replace(state);
    }
}

impl State {
    fn renew(&mut self, issuer: &str, bytes: &[u8]) -> Result<(), Box<str>> {
        let fingerprint = Some(fingerprint(bytes));
        if fingerprint != self.fingerprint {
            let keys = KeySet::parse(bytes)?;
            info!(issuer, keys = keys.len(), "the issuer's keys are loaded");
            (self.keys, self.fingerprint) = (Some(Arc::new(keys)), fingerprint);
        }
        Ok(())
    }
}

/// The pause after a failure, without any keys.
const FIRST: Duration = Duration::from_secs(5);
/// The tokens that may wait for one attempt: those of an office that logs in while the keys change. More fail at once.
const MAX_WAITING: QueueLimits = QueueLimits {
    in_flight: 1024,
    in_flight_per_network: 64,
    waiting: 0,
    waiting_per_network: 0,
    timeout: Duration::ZERO,
};
/// The longest wait for an attempt, which may be under way already.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(6);
