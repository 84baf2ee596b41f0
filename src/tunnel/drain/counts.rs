//! The open tunnels of a process: those that a drain would cut, and those whose sessions go on in other tunnels.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::SetOnce;

use crate::protocol::resume::handshake::lines::Hello;
use crate::protocol::resume::keys::SessionId;

/// A tunnel that is open for as long as this is held, or until its [`end`](Self::end).
#[derive(Debug)]
#[must_use = "dropping it says that the tunnel has ended"]
pub struct TunnelGuard {
    counts: Arc<Counts>,
    /// Set once its session is known to outlive it.
    resumable: SetOnce<()>,
    is_closed: AtomicBool,
    session: OnceLock<SessionId>,
}

impl TunnelGuard {
    /// Counts a tunnel as plain.
    pub(super) fn new(counts: Arc<Counts>) -> Self {
        counts.plain.fetch_add(1, Ordering::Relaxed);
        Self {
            counts,
            resumable: SetOnce::new(),
            is_closed: AtomicBool::new(false),
            session: OnceLock::new(),
        }
    }

    /// Notes the hello of a client, whose session outlives the tunnel.
    pub fn set_hello(&self, hello: Hello) {
        if let Hello::Resume { id, .. } = hello {
            self.set_session(id);
        }
        self.set_resumable();
    }

    /// Notes that the session in the tunnel outlives it: the client will open another tunnel for the session. A false
    /// claim only ends the tunnel earlier in a drain.
    pub fn set_resumable(&self) {
        if self.resumable.set(()).is_ok() {
            self.counts.resumable.fetch_add(1, Ordering::Relaxed);
            self.counts.plain.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Notes the session in the tunnel.
    pub fn set_session(&self, session: SessionId) {
        // The id of the hello comes first, and stays.
        self.session.set(session).ok();
    }

    /// Returns the session in the tunnel, once it is known.
    pub fn session(&self) -> Option<SessionId> {
        self.session.get().copied()
    }

    /// Returns whether the session in the tunnel outlives it.
    pub fn is_resumable(&self) -> bool {
        self.resumable.initialized()
    }

    /// Completes when the session in the tunnel is known to outlive it.
    pub(super) async fn becomes_resumable(&self) {
        self.resumable.wait().await;
    }

    /// Marks the tunnel as ended, even if something still holds this, such as an event that is not read yet.
    pub fn end(&self) {
        if !self.is_closed.swap(true, Ordering::Relaxed) {
            let Counts { plain, resumable } = &*self.counts;
            let count = if self.is_resumable() { resumable } else { plain };
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for TunnelGuard {
    fn drop(&mut self) {
        self.end();
    }
}

/// The numbers of open tunnels. Each tunnel is counted in one of them.
#[derive(Debug, Default)]
pub(super) struct Counts {
    plain: AtomicUsize,
    resumable: AtomicUsize,
}

impl Counts {
    pub(super) fn plain(&self) -> usize {
        self.plain.load(Ordering::Relaxed)
    }

    pub(super) fn resumable(&self) -> usize {
        self.resumable.load(Ordering::Relaxed)
    }

    pub(super) fn all(&self) -> usize {
        self.plain() + self.resumable()
    }
}
