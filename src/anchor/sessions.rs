//! The sessions of the anchor: finds the task of one for a connection that resumes it, and the one that has to go.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::last_words;
use super::memory::Memory;
use crate::resume::frame::Frame;
use crate::resume::keys::{Claim, CryptoError, Keys, Mac, Nonces, SessionId};
use crate::resume::reason::End;
use crate::resume::registry::Registry;

/// A connection that has proved a session, on its way to the task of that session.
#[derive(Debug)]
pub(super) struct Resumption {
    /// The connection.
    pub(super) stream: TcpStream,
    /// The address of the client.
    pub(super) peer: SocketAddr,
    /// When the anchor accepted it, in front of its announcement.
    pub(super) since: Instant,
    /// Those of the connection.
    pub(super) nonces: Nonces,
    /// The offset that the client expects.
    pub(super) received: u64,
    /// What is to be sent in front of the answer.
    pub(super) before: Vec<u8>,
    /// The client's bytes behind the exchange.
    pub(super) rest: Vec<u8>,
}

impl Resumption {
    /// Says that the session has ended while the connection was on its way to it, and closes the connection.
    pub(super) async fn refuse(mut self) {
        Frame::End(End::Gone).encode(&mut self.before);
        last_words::say(self.stream, &self.before, LONGEST_REFUSAL).await;
    }
}

/// All sessions.
#[derive(Debug)]
pub(super) struct Sessions {
    registry: Mutex<Registry<Handle>>,
    memory: Arc<Memory>,
}

/// What the others know of a session.
#[derive(Debug)]
struct Handle {
    resumptions: mpsc::Sender<Resumption>,
    account: Arc<Account>,
}

/// What the task of a session tells the others of it.
#[derive(Debug, Default)]
pub(super) struct Account {
    state: Mutex<State>,
    eviction: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    detached: Option<Instant>,
    is_ended: bool,
    /// Since when the target has ended its stream: what is left are bytes to fetch.
    target_gone: Option<Instant>,
    is_evicted: bool,
    memory: usize,
}

impl Account {
    /// The session has a connection, or has lost it at that moment.
    pub(super) fn set_detached(&self, since: Option<Instant>) {
        self.state.lock().detached = since;
    }

    /// The session is over, and is kept to say so.
    pub(super) fn set_ended(&self) {
        self.state.lock().is_ended = true;
    }

    /// The target has ended its stream.
    pub(super) fn set_target_gone(&self) {
        self.state.lock().target_gone = Some(Instant::now());
    }

    /// The session keeps so many bytes.
    pub(super) fn set_memory(&self, memory: usize) {
        self.state.lock().memory = memory;
    }

    /// Completes when the memory of the session is needed.
    pub(super) async fn evicted(&self) {
        self.eviction.notified().await;
    }
}

/// A new session, as its task has it. Its drop removes the session: it cannot be resumed any more.
#[derive(Debug)]
pub(super) struct Opened {
    /// Its name.
    pub(super) id: SessionId,
    /// The connections that resume it. It ends when the session is forgotten.
    pub(super) resumptions: mpsc::Receiver<Resumption>,
    /// What the others know of it.
    pub(super) account: Arc<Account>,
    place: Place,
}

impl Opened {
    /// Removes the session, and tells the connections that are still on their way to it.
    pub(super) fn close(self, tasks: &TaskTracker) {
        let Self {
            mut resumptions, place, ..
        } = self;
        drop(place);
        // What is sent from now on comes back to its sender. A sender that has a slot already is waited for.
        resumptions.close();
        tasks.spawn(async move {
            while let Some(resumption) = resumptions.recv().await {
                resumption.refuse().await;
            }
        });
    }
}

/// The place of a session among the others, until it is dropped.
#[derive(Debug)]
struct Place {
    id: SessionId,
    sessions: Arc<Sessions>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.sessions.registry.lock().remove(self.id);
    }
}

impl Sessions {
    /// For at most so many sessions, which keep at most so many bytes together.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub(super) fn new(most: u32, memory: usize) -> Result<Self, CryptoError> {
        Ok(Self {
            registry: Mutex::new(Registry::new(usize::try_from(most).unwrap_or(usize::MAX))?),
            memory: Arc::new(Memory::new(memory, most)),
        })
    }

    /// Opens a session. Where there are as many as may be, one that is of no more use is forgotten for it: one that has
    /// ended, or else one whose target is gone and whose client does not come.
    ///
    /// # Errors
    /// [`End::Full`].
    pub(super) fn open(self: &Arc<Self>, keys: Keys) -> Result<Opened, End> {
        let (sender, resumptions) = mpsc::channel(QUEUED_RESUMPTIONS);
        let account = Arc::<Account>::default();
        let handle = Handle {
            resumptions: sender,
            account: Arc::clone(&account),
        };
        let mut registry = self.registry.lock();
        if registry.is_full()
            && let Some(id) = least_useful(&registry)
        {
            // Its task ends when nothing can resume it any more.
            registry.remove(id);
        }
        let id = registry.open(keys, handle)?;
        drop(registry);
        Ok(Opened {
            id,
            resumptions,
            account,
            place: Place {
                id,
                sessions: Arc::clone(self),
            },
        })
    }

    /// The way to the task of a session, for a client that has proved that it is its own.
    ///
    /// # Errors
    /// [`End::Gone`].
    pub(super) fn prove(&self, claim: &Claim, proof: &Mac) -> Result<mpsc::Sender<Resumption>, End> {
        let mut registry = self.registry.lock();
        let (_, handle) = registry.prove(claim, proof)?;
        Ok(handle.resumptions.clone())
    }

    /// The memory of all sessions.
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The number of sessions.
    pub(super) fn len(&self) -> usize {
        self.registry.lock().len()
    }

    /// The number of sessions by state.
    pub(super) fn count(&self) -> [(&'static str, usize); 3] {
        let (mut attached, mut detached, mut ended) = (0, 0, 0);
        for (_, handle) in self.registry.lock().iter() {
            let state = *handle.account.state.lock();
            let counted = match state {
                State { is_ended: true, .. } => &mut ended,
                State { detached: Some(_), .. } => &mut detached,
                State { detached: None, .. } => &mut attached,
            };
            *counted += 1;
        }
        [("attached", attached), ("detached", detached), ("ended", ended)]
    }

    /// Ends one session for the memory of the others: the one that has been without a connection for the longest time, or else
    /// the one that keeps most. One at a time, as it takes a moment until its memory is free.
    pub(super) fn relieve(&self) {
        let registry = self.registry.lock();
        let mut chosen: Option<(&Arc<Account>, State)> = None;
        for (_, handle) in registry.iter() {
            let state = *handle.account.state.lock();
            if state.is_evicted && !state.is_ended {
                return;
            }
            let is_better = match chosen {
                _ if state.is_ended => false,
                None => true,
                Some((_, other)) => match (state.detached, other.detached) {
                    (Some(since), Some(other)) => since < other,
                    (Some(_), None) => true,
                    (None, Some(_)) => false,
                    (None, None) => state.memory > other.memory,
                },
            };
            if is_better {
                chosen = Some((&handle.account, state));
            }
        }
        if let Some((account, _)) = chosen {
            account.state.lock().is_evicted = true;
            account.eviction.notify_one();
        }
    }
}

/// A session that is of no more use: one that has ended, or else the one that waits longest for a client that does not
/// fetch what its target has left behind. A peer could keep such sessions for ever, without a login.
fn least_useful(registry: &Registry<Handle>) -> Option<SessionId> {
    let now = Instant::now();
    let mut chosen = None;
    for (id, handle) in registry.iter() {
        let state = *handle.account.state.lock();
        let since = match (state.detached, state.target_gone) {
            _ if state.is_ended => None,
            (Some(since), Some(_)) => Some(since),
            (None, Some(since)) if now.duration_since(since) > LONGEST_FETCH => Some(since),
            _ => continue,
        };
        if chosen.is_none_or(|(_, other)| since < other) {
            chosen = Some((id, since));
        }
    }
    chosen.map(|(id, _)| id)
}

/// How long a client with a connection has to fetch the last bytes before its session may be given up for a new one.
const LONGEST_FETCH: Duration = Duration::from_secs(300);
/// How long a connection has to take the answer that its session has ended.
const LONGEST_REFUSAL: Duration = Duration::from_secs(1);
/// Connections that wait for the task of their session, which takes them at once.
const QUEUED_RESUMPTIONS: usize = 2;
