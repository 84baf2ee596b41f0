//! A client of the API server, made from the files as they were at one moment.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube::Client;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::AGENT;
use crate::kubernetes::api;
use crate::kubernetes::failure::{ApiError, Failure};

/// A client that is made by the first question that needs it, and shared by all.
pub(super) struct Session {
    client: OnceCell<Client>,
    since: Instant,
    has_worked: AtomicBool,
}

impl Session {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            client: OnceCell::new(),
            since: Instant::now(),
            has_worked: AtomicBool::new(false),
        })
    }

    /// The client.
    ///
    /// # Errors
    /// [`Failure::Credentials`].
    pub(super) async fn client(self: &Arc<Self>, kubeconfig: Option<PathBuf>) -> Result<Client, ApiError> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let session = Arc::clone(self);
        // A task of its own: a program of the kubeconfig that takes longer than a question has time is not in vain.
        let made = tokio::spawn(async move {
            let made = session.client.get_or_try_init(|| api::connect(kubeconfig, AGENT));
            made.await.cloned()
        });
        made.await
            .unwrap_or_else(|error| Err(ApiError::caused(Failure::Credentials, &error)))
    }

    /// Notes that the server has taken its credentials.
    pub(super) fn has_worked(&self) {
        self.has_worked.store(true, Ordering::Relaxed);
    }

    /// Whether another one may take its place: one that has worked at once, else after a second, so that credentials that
    /// are wrong for good cost one handshake a second and not one a question.
    pub(super) fn may_be_renewed(&self) -> bool {
        self.has_worked.load(Ordering::Relaxed) || self.since.elapsed() >= SHORTEST_LIFE
    }
}

const SHORTEST_LIFE: Duration = Duration::from_secs(1);
