//! A client of the API server that is made again after a failure: certificates, tokens and addresses may have changed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::header::CONTENT_TYPE;
use hyper::http::request::Builder;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::failure::{ApiError, Failure};
use super::requests::{self, JSON, Login};

/// A way to the API server.
pub(crate) struct ApiClient {
    login: Login,
    agent: &'static str,
    session: Mutex<Arc<ClientState>>,
}

/// A client, made from the files as they were at one moment by the first request that needs it, and shared by all.
struct ClientState {
    client: OnceCell<Client>,
    started: Instant,
    /// The last answer, which shows that the server has taken its credentials.
    answered: Mutex<Option<Instant>>,
}

/// One request, or several in a row, by one client.
pub(crate) struct Attempt {
    session: Arc<ClientState>,
    begun: Instant,
}

impl ApiClient {
    /// Returns a link that has sent no request yet. `agent` is the `User-Agent` of its requests, as audit logs show it.
    pub(crate) fn new(kubeconfig: Option<PathBuf>, agent: &'static str) -> Self {
        Self {
            login: Login {
                kubeconfig,
                context: None,
            },
            agent,
            session: Mutex::new(ClientState::new()),
        }
    }

    /// Begins a request with the current client.
    pub(crate) fn attempt(&self) -> Attempt {
        Attempt {
            session: Arc::clone(&self.session.lock()),
            begun: Instant::now(),
        }
    }

    /// Returns the client of an attempt.
    ///
    /// # Errors
    /// [`Failure::Credentials`].
    pub(crate) async fn client(&self, attempt: &Attempt) -> Result<Client, ApiError> {
        if let Some(client) = attempt.session.client.get() {
            return Ok(client.clone());
        }
        let (session, login, agent) = (Arc::clone(&attempt.session), self.login.clone(), self.agent);
        // A task of its own: a program of the kubeconfig that takes longer than a question has time is not in vain.
        let made = tokio::spawn(async move {
            let made = session.client.get_or_try_init(|| requests::connect(login, agent));
            made.await.cloned()
        });
        made.await
            .unwrap_or_else(|error| Err(ApiError::caused(Failure::Credentials, &error)))
    }

    /// Has the next attempt make another client, for callers that bound their attempts themselves.
    pub(crate) fn renew(&self) {
        *self.session.lock() = ClientState::new();
    }

    /// Takes note of the end of an attempt, and returns whether it has failed and the next one has another client: made
    /// from the current files, or by another attempt in the time between.
    pub(crate) fn ended<T>(&self, attempt: &Attempt, answer: &Result<T, ApiError>) -> bool {
        let failure = match answer {
            Err(error) if error.failure.is_of_connection() || error.failure == Failure::Unauthorized => error.failure,
            _ => {
                *attempt.session.answered.lock() = Some(Instant::now());
                return false;
            }
        };
        let mut current = self.session.lock();
        if Arc::ptr_eq(&current, &attempt.session) {
            if !attempt.session.may_be_renewed(failure, attempt.begun) {
                return false;
            }
            *current = ClientState::new();
        }
        true
    }

    /// Returns the object at a path.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, ApiError> {
        self.object(Request::get(path), Body::empty()).await
    }

    /// Creates an object at a path.
    pub(crate) async fn post(&self, path: &str, object: &Value) -> Result<Value, ApiError> {
        let request = Request::post(path).header(CONTENT_TYPE, JSON);
        self.object(request, object.to_string().into_bytes().into()).await
    }

    /// Merges a patch (RFC 7396) into the object at a path.
    pub(crate) async fn patch(&self, path: &str, patch: &Value) -> Result<Value, ApiError> {
        let request = Request::patch(path).header(CONTENT_TYPE, "application/merge-patch+json");
        self.object(request, patch.to_string().into_bytes().into()).await
    }

    async fn object(&self, request: Builder, body: Body) -> Result<Value, ApiError> {
        let attempt = self.attempt();
        // On the heap, as a request and a reader are large: the writers of the cluster await several in turn.
        let answer = Box::pin(async {
            let client = self.client(&attempt).await?;
            let answer = requests::send(&client, request, body).await?;
            answer.read_to(MAX_OBJECT).await
        });
        let answer = answer.await;
        self.ended(&attempt, &answer);
        Ok(serde_json::from_slice(&answer?)?)
    }
}

impl ClientState {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            client: OnceCell::new(),
            started: Instant::now(),
            answered: Mutex::default(),
        })
    }

    /// Returns whether a new session may replace this one after a request that began at `begun` has failed. One that has
    /// worked may be replaced at once, any other after a second: wrong credentials then cost one handshake a second.
    /// One whose client is still being made may not: a slow program of the kubeconfig would never be of use.
    ///
    /// A question that times out may be about a token that the server itself cannot judge in time, and any client can send
    /// one: it costs no session that has answered other questions since, and one in ten seconds at most.
    fn may_be_renewed(&self, failure: Failure, begun: Instant) -> bool {
        let (answered, age) = (*self.answered.lock(), self.started.elapsed());
        if self.client.get().is_none() {
            return false;
        }
        if failure == Failure::Timeout {
            return age >= MIN_CLIENT_LIFETIME_AFTER_TIMEOUT && answered.is_none_or(|answered| answered < begun);
        }
        answered.is_some() || age >= MIN_CLIENT_LIFETIME
    }
}

/// Etcd keeps no object of more than 1.5 MiB.
const MAX_OBJECT: usize = 4 << 20;
const MIN_CLIENT_LIFETIME: Duration = Duration::from_secs(1);
/// As [`MIN_CLIENT_LIFETIME`], where a question has timed out.
const MIN_CLIENT_LIFETIME_AFTER_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use kube::Config;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_session_is_renewed_by_no_slow_program_and_by_no_slow_question() {
        let session = ClientState::new();
        let renewed = |failure, asked| session.may_be_renewed(failure, asked);
        advance(Duration::from_secs(60)).await;
        let asked = Instant::now();
        for failure in [Failure::Timeout, Failure::Credentials, Failure::Connect] {
            assert!(!renewed(failure, asked), "{failure:?}: its client is being made");
        }
        let client = Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        session.client.set(client).ok().unwrap();
        assert!(renewed(Failure::Timeout, asked) && renewed(Failure::Connect, asked));
        // Another question has been answered since.
        advance(Duration::from_secs(1)).await;
        *session.answered.lock() = Some(Instant::now());
        assert!(!renewed(Failure::Timeout, asked));
        assert!(renewed(Failure::Connect, asked) && renewed(Failure::Unauthorized, asked));
        // Nothing since: the connection may be half open.
        advance(Duration::from_secs(1)).await;
        assert!(renewed(Failure::Timeout, Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_young_session_is_renewed_seldom() {
        let session = ClientState::new();
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
