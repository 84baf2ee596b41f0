//! A client of the API server, made from the files as they were at one moment.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::AGENT;
use crate::kubernetes::api::failure::{ApiError, Failure};
use crate::kubernetes::api::requests;

/// A client that is made by the first question that needs it, and shared by all.
pub(super) struct Session {
    client: OnceCell<Client>,
    since: Instant,
    /// The last answer, which shows that the server has taken its credentials.
    answered: Mutex<Option<Instant>>,
}

impl Session {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            client: OnceCell::new(),
            since: Instant::now(),
            answered: Mutex::default(),
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
            let made = session.client.get_or_try_init(|| requests::connect(kubeconfig, AGENT));
            made.await.cloned()
        });
        made.await
            .unwrap_or_else(|error| Err(ApiError::caused(Failure::Credentials, &error)))
    }

    /// Notes that the server has taken its credentials.
    pub(super) fn has_worked(&self) {
        *self.answered.lock() = Some(Instant::now());
    }

    /// Whether another one may take its place, after a question that was asked then has failed. One that has worked may at
    /// once, else after a second, so that credentials that are wrong for good cost one handshake a second and not one a
    /// question. One whose client is still being made may not: a slow program of the kubeconfig would never be of use.
    ///
    /// A question that times out may be about a token that the server itself cannot judge in time, and any client can send
    /// one: it costs no session to which other questions were answered meanwhile, and one in ten seconds at most.
    pub(super) fn may_be_renewed(&self, failure: Failure, asked: Instant) -> bool {
        let (answered, age) = (*self.answered.lock(), self.since.elapsed());
        if self.client.get().is_none() {
            return false;
        }
        if failure == Failure::Timeout {
            return age >= SHORTEST_LIFE_OF_TIMEOUT && answered.is_none_or(|answered| answered < asked);
        }
        answered.is_some() || age >= SHORTEST_LIFE
    }
}

const SHORTEST_LIFE: Duration = Duration::from_secs(1);
/// As [`SHORTEST_LIFE`], where a question has timed out.
const SHORTEST_LIFE_OF_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use kube::Config;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_session_is_renewed_by_no_slow_program_and_by_no_slow_question() {
        let session = Session::new();
        let renewed = |failure, asked| session.may_be_renewed(failure, asked);
        advance(Duration::from_secs(60)).await;
        let asked = Instant::now();
        for failure in [Failure::Timeout, Failure::Credentials, Failure::Connect] {
            assert!(!renewed(failure, asked), "{failure:?}: its client is being made");
        }
        let client = Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        session.client.set(client).ok().unwrap();
        assert!(renewed(Failure::Timeout, asked) && renewed(Failure::Connect, asked));
        // Another question has been answered meanwhile.
        advance(Duration::from_secs(1)).await;
        session.has_worked();
        assert!(!renewed(Failure::Timeout, asked));
        assert!(renewed(Failure::Connect, asked) && renewed(Failure::Unauthorized, asked));
        // Nothing since: the connection may be half open.
        advance(Duration::from_secs(1)).await;
        assert!(renewed(Failure::Timeout, Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_young_session_is_renewed_seldom() {
        let session = Session::new();
        let client = Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        session.client.set(client).ok().unwrap();
        let renewed = |failure| session.may_be_renewed(failure, Instant::now());
        assert!(!renewed(Failure::Connect) && !renewed(Failure::Timeout));
        advance(Duration::from_secs(1)).await;
        assert!(renewed(Failure::Connect) && !renewed(Failure::Timeout));
        advance(Duration::from_secs(9)).await;
        assert!(renewed(Failure::Timeout));
    }
}
