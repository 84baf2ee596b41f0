//! The anchor's sessions: finds the task of a session that a connection resumes, and the session to evict.

use std::cmp::Reverse;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::link::Link;
use super::memory::MemoryPool;
use crate::protocol::resume::frame::Frame;
use crate::protocol::resume::keys::{CryptoError, Keys, Mac, Nonces, ResumeClaim, SessionId};
use crate::protocol::resume::reason::EndReason;
use crate::protocol::resume::registry::Registry;

/// A client's connection: an accepted socket, or a stream on a connection to the proxy.
#[derive(Debug)]
pub(super) struct Connection {
    /// The connection.
    pub(super) stream: Link,
    /// The address of the client, or of the proxy that was dialled.
    pub(super) peer: SocketAddr,
    /// When it was accepted or opened: the handshake's timeout starts here.
    pub(super) accepted: Instant,
}

/// A connection to attach to the session that its client has begun or proved.
#[derive(Debug)]
pub(super) struct Resumption {
    /// The connection.
    pub(super) connection: Connection,
    /// The nonces of its handshake.
    pub(super) nonces: Nonces,
    /// The offset of the next byte that the client expects.
    pub(super) received: u64,
    /// Bytes to be sent before the answer.
    pub(super) before: Vec<u8>,
    /// The client's bytes after the handshake.
    pub(super) rest: Vec<u8>,
}

impl Resumption {
    /// Answers that there is no such session, and closes the connection. The session ended before the connection was
    /// attached.
    pub(super) async fn refuse(mut self) {
        Frame::End(EndReason::NoSuchSession).encode(&mut self.before);
        self.connection
            .stream
            .send_and_close(&self.before, REFUSAL_TIMEOUT)
            .await;
    }
}

/// All sessions.
#[derive(Debug)]
pub(super) struct SessionRegistry {
    registry: Mutex<Registry<SessionEntry>>,
    memory: Arc<MemoryPool>,
}

/// A session as other tasks see it.
#[derive(Debug)]
struct SessionEntry {
    resumptions: mpsc::Sender<Resumption>,
    status: Arc<SessionStatus>,
}

/// The state of a session that its task publishes.
#[derive(Debug)]
pub(super) struct SessionStatus {
    opened: Instant,
    pub(super) state: Mutex<State>,
    /// Notified when the session is evicted for its memory.
    pub(super) eviction: Notify,
}

/// The mutable state of a session.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    /// True if SSH's key exchange has ended: no login comes before that.
    pub(super) has_keys: bool,
    /// When it was detached; `None` while it is attached.
    pub(super) detached: Option<Instant>,
    /// True if it has ended, and is kept to tell its client.
    pub(super) is_ended: bool,
    /// When the target ended its stream, so that only bytes to fetch are left; `None` before.
    pub(super) target_gone: Option<Instant>,
    is_evicted: bool,
    /// The bytes that it buffers.
    pub(super) memory: usize,
}

impl SessionStatus {
    /// Returns how long the session waits for its client after `detached`; `None` if its user may have logged in.
    pub(super) fn login_timeout(&self, detached: Instant) -> Option<Duration> {
        // Attaching repeatedly gives a client no more time to log in.
        let left = (self.opened + LOGIN_TIMEOUT).saturating_duration_since(detached);
        (!self.state.lock().has_keys).then_some(left.min(KEY_EXCHANGE_TIMEOUT))
    }

    /// Returns the eviction class, and since when the session waits; `None` if it must not be evicted for another.
    fn class(&self, now: Instant) -> Option<(Class, Option<Instant>)> {
        let state = *self.state.lock();
        let class = match (state.detached, state.target_gone) {
            _ if state.is_ended => return Some((Class::Spent, None)),
            (Some(_), Some(_)) => Class::Spent,
            (None, Some(since)) if now.duration_since(since) > FETCH_TIMEOUT => {
                return Some((Class::Spent, Some(since)));
            }
            (Some(_), None) if !state.has_keys => Class::WithoutKeys,
            (Some(_), None) if now.duration_since(self.opened) < LOGIN_TIMEOUT => Class::Young,
            _ => return None,
        };
        Some((class, state.detached))
    }
}

/// A session as its task holds it. Dropping it removes the session: it can no longer be resumed.
#[derive(Debug)]
pub(super) struct SessionGuard {
    /// Its id.
    pub(super) id: SessionId,
    /// The connections that resume it. Closed when the session is removed.
    pub(super) resumptions: mpsc::Receiver<Resumption>,
    /// The keys that prove it.
    pub(super) keys: Keys,
    /// Its published state.
    pub(super) status: Arc<SessionStatus>,
    sessions: Arc<SessionRegistry>,
}

impl SessionGuard {
    /// Removes the session, and refuses the connections that are queued for it.
    pub(super) fn close(mut self, tasks: &TaskTracker) {
        self.sessions.registry.lock().remove(self.id);
        // From now on `send` returns a resumption to its sender. `recv` waits for a sender that holds a permit.
        self.resumptions.close();
        tasks.spawn(async move {
            while let Some(resumption) = self.resumptions.recv().await {
                resumption.refuse().await;
            }
        });
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.sessions.registry.lock().remove(self.id);
    }
}

impl SessionRegistry {
    /// Creates a registry of at most `max` sessions, which buffer at most `memory` bytes together.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub(super) fn new(max: u32, memory: usize) -> Result<Self, CryptoError> {
        Ok(Self {
            registry: Mutex::new(Registry::new(usize::try_from(max).unwrap_or(usize::MAX))?),
            memory: Arc::new(MemoryPool::new(memory, max)),
        })
    }

    /// Opens a session. Evicts [another](eviction_candidate) for it if there are too many.
    ///
    /// # Errors
    /// [`EndReason::TooManySessions`].
    pub(super) fn open(self: &Arc<Self>, keys: Keys) -> Result<SessionGuard, EndReason> {
        let (sender, resumptions) = mpsc::channel(QUEUED_RESUMPTIONS);
        let status = Arc::new(SessionStatus {
            opened: Instant::now(),
            state: Mutex::default(),
            eviction: Notify::new(),
        });
        let handle = SessionEntry {
            resumptions: sender,
            status: Arc::clone(&status),
        };
        let mut registry = self.registry.lock();
        if let Some(id) = eviction_candidate(&registry) {
            // Its task ends, as nothing can resume the session.
            registry.remove(id);
        }
        let id = registry.open(keys.clone(), handle)?;
        drop(registry);
        Ok(SessionGuard {
            id,
            resumptions,
            keys,
            status,
            sessions: Arc::clone(self),
        })
    }

    /// Returns the channel to a session's task if the client's proof is valid.
    ///
    /// # Errors
    /// [`EndReason::NoSuchSession`].
    pub(super) fn authenticate(&self, claim: &ResumeClaim, proof: &Mac) -> Result<mpsc::Sender<Resumption>, EndReason> {
        let mut registry = self.registry.lock();
        let (_, handle) = registry.prove(claim, proof)?;
        Ok(handle.resumptions.clone())
    }

    /// Returns the memory of all sessions.
    pub(super) fn memory(&self) -> &Arc<MemoryPool> {
        &self.memory
    }

    /// Returns the number of sessions.
    pub(super) fn len(&self) -> usize {
        self.registry.lock().len()
    }

    /// Returns the number of sessions by state.
    pub(super) fn count(&self) -> [(&'static str, usize); 3] {
        let (mut attached, mut detached, mut ended) = (0, 0, 0);
        for (_, handle) in self.registry.lock().iter() {
            let state = *handle.status.state.lock();
            let counted = match state {
                State { is_ended: true, .. } => &mut ended,
                State { detached: Some(_), .. } => &mut detached,
                State { detached: None, .. } => &mut attached,
            };
            *counted += 1;
        }
        [("attached", attached), ("detached", detached), ("ended", ended)]
    }

    /// Evicts a session to free memory: the one detached longest, else the one that buffers most. Does nothing until
    /// the last one evicted has ended.
    pub(super) fn evict_for_memory(&self) {
        let registry = self.registry.lock();
        let alive = || {
            let all = registry
                .iter()
                .map(|(_, handle)| (&handle.status, *handle.status.state.lock()));
            all.filter(|(_, state)| !state.is_ended)
        };
        if alive().any(|(_, state)| state.is_evicted) {
            return;
        }
        let rank = |(_, state): &(_, State)| (state.detached.is_none(), state.detached, Reverse(state.memory));
        if let Some((status, _)) = alive().min_by_key(rank) {
            status.state.lock().is_evicted = true;
            status.eviction.notify_one();
        }
    }
}

/// The order in which sessions are evicted for a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    /// It has ended, or its client does not fetch the last bytes of a target that has ended. A peer could keep such
    /// sessions forever, without a login.
    Spent,
    /// It is detached, and no user has logged in.
    WithoutKeys,
    /// It is detached, and perhaps no user has logged in: the SSH server's login timeout has not passed.
    Young,
}

/// Returns the session to evict for a new one; `None` if there is room, or none may be evicted. A session without a
/// login holds one of the SSH server's `MaxStartups`. While detached, no tunnel cap counts it: hence [`MAX_UNPROVEN`].
fn eviction_candidate(registry: &Registry<SessionEntry>) -> Option<SessionId> {
    let now = Instant::now();
    let class = |(id, handle): (SessionId, &SessionEntry)| Some((handle.status.class(now)?, id));
    let candidates: Vec<_> = registry.iter().filter_map(class).collect();
    let unproven = candidates.iter().filter(|((class, _), _)| *class > Class::Spent);
    let classes = if unproven.count() >= MAX_UNPROVEN {
        Class::WithoutKeys..=Class::Young
    } else if registry.is_full() {
        Class::Spent..=Class::WithoutKeys
    } else {
        return None;
    };
    let fitting = candidates.into_iter().filter(|((class, _), _)| classes.contains(class));
    fitting.min_by_key(|(rank, _)| *rank).map(|(_, id)| id)
}

/// Maximum number of detached sessions that may lack a login. With one user's 64 tunnels (the default) they stay below
/// 100, where `MaxStartups 100:30:500` begins to refuse logins.
const MAX_UNPROVEN: usize = 32;
/// How long a session waits for its client while the key exchange is incomplete. A lost path is found within 15 s.
const KEY_EXCHANGE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an SSH server waits for a login: the start of sshd's process, then the LoginGraceTime of OpenSSH, 120 s and
/// up to 4 s more.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(150);
/// How long an attached client has to fetch the last bytes before its session may be evicted for a new one.
const FETCH_TIMEOUT: Duration = Duration::from_secs(300);
/// The timeout of the answer that the session has ended.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of connections queued for a session's task, which takes them at once.
const QUEUED_RESUMPTIONS: usize = 2;

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn sessions(max: u32) -> Arc<SessionRegistry> {
        Arc::new(SessionRegistry::new(max, 0).unwrap())
    }

    fn open(sessions: &Arc<SessionRegistry>) -> SessionGuard {
        sessions.open(Keys::dummy().unwrap()).unwrap()
    }

    /// One that is detached now, before or after its key exchange.
    fn detached(sessions: &Arc<SessionRegistry>, has_keys: bool) -> SessionGuard {
        let guard = open(sessions);
        if has_keys {
            guard.status.state.lock().has_keys = true;
        }
        guard.status.state.lock().detached = Some(Instant::now());
        guard
    }

    fn is_forgotten(guard: &mut SessionGuard) -> bool {
        guard.resumptions.try_recv().err() == Some(mpsc::error::TryRecvError::Disconnected)
    }

    #[tokio::test(start_paused = true)]
    async fn few_sessions_without_a_login_wait_and_the_oldest_go_first() {
        for has_keys in [false, true] {
            let sessions = sessions(1000);
            let mut all = Vec::new();
            for _ in 0..200 {
                all.push(detached(&sessions, has_keys));
                advance(Duration::from_millis(100)).await;
            }
            let forgotten = all.iter_mut().map(is_forgotten).collect::<Vec<_>>();
            let expected = [[true].repeat(200 - MAX_UNPROVEN), [false].repeat(MAX_UNPROVEN)].concat();
            assert_eq!(forgotten, expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn ten_thousand_abandoned_sessions_take_nothing_from_users_who_have_logged_in() {
        let sessions = sessions(1000);
        let mut attached = open(&sessions);
        let mut asleep = detached(&sessions, true);
        advance(LOGIN_TIMEOUT).await;
        let mut young = detached(&sessions, true);
        // Their targets never close: each of them has a task that waits.
        let mut abandoned = Vec::new();
        for _ in 0..10_000 {
            abandoned.push(detached(&sessions, false));
            assert!(sessions.len() <= 3 + MAX_UNPROVEN, "{}", sessions.len());
        }
        for (name, guard) in [
            ("attached", &mut attached),
            ("asleep", &mut asleep),
            ("young", &mut young),
        ] {
            assert!(!is_forgotten(guard), "{name}");
        }
        // As many whose users may have logged in: the oldest of these goes.
        advance(Duration::from_secs(1)).await;
        let _others: Vec<_> = (0..=MAX_UNPROVEN).map(|_| detached(&sessions, true)).collect();
        assert_eq!(
            [&mut attached, &mut asleep, &mut young].map(is_forgotten),
            [false, false, true]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_anchor_gives_up_a_session_without_keys_and_none_whose_user_may_have_logged_in() {
        let sessions = sessions(3);
        let (_attached, mut young, mut without_keys) =
            (open(&sessions), detached(&sessions, true), detached(&sessions, false));
        let _new = open(&sessions);
        assert!(is_forgotten(&mut without_keys));
        assert_eq!(
            sessions.open(Keys::dummy().unwrap()).err(),
            Some(EndReason::TooManySessions)
        );
        assert!(!is_forgotten(&mut young));
    }
}
