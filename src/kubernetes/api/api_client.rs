//! A client of the API server that is rebuilt after a failure: certificates, tokens and addresses may have changed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::header::CONTENT_TYPE;
use hyper::http::request::Builder;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::failure::{ApiError, Failure};
use super::json_stream::ObjectText;
use super::requests::{self, JSON};
use crate::uplink::api_server::ClusterLogin;

/// A client that is rebuilt after failures.
pub(crate) struct ApiClient {
    login: ClusterLogin,
    agent: &'static str,
    state: Mutex<Arc<ClientState>>,
}

/// A client that all requests share. The first request that needs it builds it from the current files.
struct ClientState {
    client: OnceCell<Client>,
    started: Instant,
    /// The time of the last answer that shows that its credentials are accepted; `None` before the first.
    answered: Mutex<Option<Instant>>,
}

/// One or several requests in a row through one client.
pub(crate) struct Attempt {
    state: Arc<ClientState>,
    begun: Instant,
}

impl ApiClient {
    /// Creates a client. `agent` is the `User-Agent` of its requests, as audit logs show it.
    pub(crate) fn new(kubeconfig: Option<PathBuf>, agent: &'static str) -> Self {
        Self {
            login: ClusterLogin {
                kubeconfig,
                context: None,
            },
            agent,
            state: Mutex::new(ClientState::new()),
        }
    }

    /// Begins a request with the current client.
    pub(crate) fn attempt(&self) -> Attempt {
        Attempt {
            state: Arc::clone(&self.state.lock()),
            begun: Instant::now(),
        }
    }

    /// Returns the client of an attempt.
    ///
    /// # Errors
    /// [`Failure::Credentials`].
    pub(crate) async fn client(&self, attempt: &Attempt) -> Result<Client, ApiError> {
        if let Some(client) = attempt.state.client.get() {
            return Ok(client.clone());
        }
        let (state, login, agent) = (Arc::clone(&attempt.state), self.login.clone(), self.agent);
        // In a task, which outlives this call: a slow program of the kubeconfig may finish after the caller's deadline.
        let made = tokio::spawn(async move {
            let made = state
                .client
                .get_or_try_init(|| requests::connect(login, agent, requests::RESPONSE_TIMEOUT));
            made.await.cloned()
        });
        made.await
            .unwrap_or_else(|error| Err(ApiError::caused(Failure::Credentials, &error)))
    }

    /// Makes the next attempt build a new client, without the limits of [`ended`](Self::ended): callers delay retries.
    pub(crate) fn renew(&self) {
        *self.state.lock() = ClientState::new();
    }

    /// Notes the end of an attempt. Returns whether its connection or credentials failed and the next attempt has a newer
    /// client, made here or at the end of another attempt.
    pub(crate) fn ended<T>(&self, attempt: &Attempt, answer: &Result<T, ApiError>) -> bool {
        let failure = match answer {
            Err(error) if error.failure.is_of_connection() || error.failure == Failure::Unauthorized => error.failure,
            _ => {
                *attempt.state.answered.lock() = Some(Instant::now());
                return false;
            }
        };
        let mut current = self.state.lock();
        if Arc::ptr_eq(&current, &attempt.state) {
            if !attempt.state.may_be_renewed(failure, attempt.begun) {
                return false;
            }
            *current = ClientState::new();
        }
        true
    }

    /// Returns the object at a path.
    pub(crate) async fn get(&self, path: &str) -> Result<ObjectText, ApiError> {
        self.object(Request::get(path), Body::empty()).await
    }

    /// Creates an object at a path.
    pub(crate) async fn post(&self, path: &str, object: &Value) -> Result<ObjectText, ApiError> {
        let request = Request::post(path).header(CONTENT_TYPE, JSON);
        self.object(request, object.to_string().into_bytes().into()).await
    }

    /// Merges a patch (RFC 7396) into the object at a path.
    pub(crate) async fn patch(&self, path: &str, patch: &Value) -> Result<ObjectText, ApiError> {
        let request = Request::patch(path).header(CONTENT_TYPE, "application/merge-patch+json");
        self.object(request, patch.to_string().into_bytes().into()).await
    }

    async fn object(&self, request: Builder, body: Body) -> Result<ObjectText, ApiError> {
        let attempt = self.attempt();
        // On the heap, as these futures are large: the callers await several of them.
        let answer = Box::pin(async {
            let client = self.client(&attempt).await?;
            let answer = requests::send(&client, request, body).await?;
            answer.read_object().await
        });
        let answer = answer.await;
        self.ended(&attempt, &answer);
        let object = answer?;
        Ok(serde_json::from_str(&object.json).map(|IgnoredAny| object)?)
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

    /// Returns whether a new client may replace this one after a request that began at `begun` has failed. A client that has
    /// worked may be replaced at once, any other after a second: wrong credentials then cost one handshake a second.
    /// A client that is still being built may not be: a slow program of the kubeconfig would never finish.
    ///
    /// A review may time out because of its token, and any user can send such a token. So a timeout replaces the client
    /// only if no other request was answered since `begun`, and at most every 10 s.
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

const MIN_CLIENT_LIFETIME: Duration = Duration::from_secs(1);
/// Like [`MIN_CLIENT_LIFETIME`], after a timeout.
const MIN_CLIENT_LIFETIME_AFTER_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use kube::Config;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_session_is_renewed_by_no_slow_program_and_by_no_slow_question() {
        let state = ClientState::new();
        let renewed = |failure, asked| state.may_be_renewed(failure, asked);
        advance(Duration::from_secs(60)).await;
        let asked = Instant::now();
        for failure in [Failure::Timeout, Failure::Credentials, Failure::Connect] {
            assert!(!renewed(failure, asked), "{failure:?}: its client is being made");
        }
        let client = Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        state.client.set(client).ok().unwrap();
        assert!(renewed(Failure::Timeout, asked) && renewed(Failure::Connect, asked));
        // Another question has been answered since.
        advance(Duration::from_secs(1)).await;
        *state.answered.lock() = Some(Instant::now());
        assert!(!renewed(Failure::Timeout, asked));
        assert!(renewed(Failure::Connect, asked) && renewed(Failure::Unauthorized, asked));
        // Nothing since: the connection may be half open.
        advance(Duration::from_secs(1)).await;
        assert!(renewed(Failure::Timeout, Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_young_session_is_renewed_seldom() {
        let state = ClientState::new();
        let client = Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        state.client.set(client).ok().unwrap();
        let renewed = |failure| state.may_be_renewed(failure, Instant::now());
        assert!(!renewed(Failure::Connect) && !renewed(Failure::Timeout));
        advance(Duration::from_secs(1)).await;
        assert!(renewed(Failure::Connect) && !renewed(Failure::Timeout));
        advance(Duration::from_secs(9)).await;
        assert!(renewed(Failure::Timeout));
    }
}
