//! Authenticates tokens and authorizes users by reviews of the API server.
//!
//! Reviews have a client of their own: none waits for a list of the [watcher](crate::kubernetes::api::watcher), and the
//! server's audit log shows reviews apart. One deadline covers all requests of a review. Each failure is a
//! [`ReviewError`], which no caller may treat as a denial.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use hyper::body::Bytes;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};
use zeroize::Zeroizing;

use self::token::Audiences;
use crate::base::json::Object;
use crate::base::secret::Secret;
use crate::base::text::excerpt;
use crate::kubernetes::api::api_client::{ApiClient, Attempt};
use crate::kubernetes::api::failure::{ApiError, Failure};
use crate::kubernetes::api::requests;
use crate::policy::access::{self, Action, Decision, NoAnswer, Review, ReviewError, Reviewer, User, Verdict};
use crate::protocol::jwt::Jwt;

mod token;

/// The API server as authenticator and authorizer.
pub struct ApiReviewer {
    api: ApiClient,
    audiences: Audiences,
    health: Mutex<Health>,
}

/// The health of the server, as earlier answers show it.
#[derive(Debug, Default)]
struct Health {
    /// The end of the wait that the server has asked for; `None` without one.
    resumes: Option<Instant>,
    /// The time of the last failure that a starting server may have caused, for each kind of review. Kinds are apart:
    /// any client may send a token whose review fails, and that must not keep a lost permission alive.
    troubled: HashMap<Kind, Instant>,
}

impl ApiReviewer {
    /// Creates a reviewer with that kubeconfig. Nothing is read or sent before the first review.
    pub fn new(options: &access::Kubernetes, kubeconfig: Option<PathBuf>) -> Self {
        Self {
            api: ApiClient::new(kubeconfig, AGENT),
            audiences: Audiences::new(&options.audiences),
            health: Mutex::default(),
        }
    }

    /// Sends a review, and returns the status of its answer.
    async fn review<T: DeserializeOwned>(
        &self,
        request: ReviewRequest<'_>,
        spec: impl Serialize,
    ) -> Result<T, ReviewError> {
        if let Some(wait) = self.wait() {
            let reason = format!("it asks for a wait of {} s more", wait.as_secs() + 1);
            return Err(request.unavailable(Failure::Throttled, &reason));
        }
        let body = request.body(spec);
        let first = self.api.attempt();
        let mut answer = self.post(&first, request, body.clone()).await;
        if self.api.ended(&first, &answer)
            && answer
                .as_ref()
                .is_err_and(|error| !matches!(error.failure, Failure::Timeout | Failure::Credentials))
        {
            // The server may just have closed an idle connection, or switchboard's own token may have been rotated: the
            // next client reads the new one. A review changes nothing, so it may be sent twice.
            let second = self.api.attempt();
            let again = self.post(&second, request, body).await;
            self.api.ended(&second, &again);
            // Without credentials in time, only the first request shows whether the server answers.
            if !again.as_ref().is_err_and(|error| error.failure == Failure::Credentials) {
                answer = again;
            }
        }
        let answer = answer.inspect_err(|error| self.note(request.kind, error));
        let status = answer.and_then(|body| status(&body, request.kind));
        status.map_err(|error| request.unavailable(error.failure, &error.reason))
    }

    async fn post(
        &self,
        attempt: &Attempt,
        request: ReviewRequest<'_>,
        body: Bytes,
    ) -> Result<Zeroizing<Vec<u8>>, ApiError> {
        // Apart from the request: a program of the kubeconfig that is slow is no silence of the server.
        let client = timeout_at(request.deadline, self.api.client(attempt)).await;
        let client = client.unwrap_or_else(|_| {
            let reason = format!(
                "switchboard's own credentials have not come within {} s",
                DEADLINE.as_secs()
            );
            Err(ApiError::new(Failure::Credentials, reason))
        })?;
        let answer = async {
            let body = requests::post(&client, &request.kind.path(), body).await?;
            body.read_to(MAX_RESPONSE_BYTES).await
        };
        let answer = timeout_at(request.deadline, answer).await.unwrap_or_else(|_| {
            let reason = format!("no answer within {} s", DEADLINE.as_secs());
            Err(ApiError::new(Failure::Timeout, reason))
        });
        answer.map(Zeroizing::new)
    }

    /// Returns the rest of the wait that the server has asked for, if any.
    fn wait(&self) -> Option<Duration> {
        let resumes = self.health.lock().resumes?;
        resumes
            .checked_duration_since(Instant::now())
            .filter(|wait| !wait.is_zero())
    }

    fn note(&self, kind: Kind, error: &ApiError) {
        let now = Instant::now();
        let mut health = self.health.lock();
        if error.failure == Failure::Throttled {
            let wait = error.retry_after.unwrap_or_default().min(MAX_RETRY_AFTER);
            health.resumes = Some(now + wait);
        }
        if matches!(error.failure, Failure::Connect | Failure::Forbidden | Failure::Server) {
            health.troubled.insert(kind, now);
        }
    }

    /// Returns whether [`SETTLES`] has passed since the last failure of this kind: the server then knows each binding
    /// and ServiceAccount.
    fn has_warmed_up(&self, kind: Kind) -> bool {
        let health = self.health.lock();
        let last = health.troubled.get(&kind);
        last.is_none_or(|last| last.elapsed() >= SETTLES)
    }

    async fn token_verdict(&self, token: &Secret, jwt: Option<&Jwt>) -> Result<Verdict, ReviewError> {
        // If there are two reviews, they share one deadline.
        let request = ReviewRequest::new(Kind::Token, Some(token));
        let expires = jwt.and_then(Jwt::expires);
        let mut refused: Option<Verdict> = None;
        for audiences in self.audiences.to_ask(jwt).into_iter().flatten() {
            let spec = token::Spec {
                token: token.expose(),
                audiences,
            };
            let status = self.review(request, spec).await?;
            let verdict = token::verdict(status, audiences, expires);
            match verdict.map_err(|error| request.unavailable(error.failure, &error.reason))? {
                Verdict::Rejected(sentence) if *sentence == *token::REVOKED && !self.has_warmed_up(Kind::Token) => {
                    let reason = "it has just come back, and may not know each ServiceAccount yet";
                    return Err(request.unavailable(Failure::Server, reason));
                }
                Verdict::Rejected(sentence) => drop(refused.get_or_insert(Verdict::Rejected(sentence))),
                proved @ Verdict::Authenticated(_) => return Ok(proved),
            }
        }
        Ok(refused.unwrap_or_else(|| Verdict::Rejected(token::NOT_VALID.into())))
    }

    async fn access_decision(&self, user: &User, action: &Action) -> Result<Decision, ReviewError> {
        let request = ReviewRequest::new(Kind::Access, None);
        let decision = decision(&self.review(request, access_spec(user, action)).await?);
        Ok(Decision {
            complete: decision.complete && (decision.allowed || self.has_warmed_up(Kind::Access)),
            ..decision
        })
    }
}

impl Reviewer for ApiReviewer {
    fn review_token<'a>(&'a self, token: &'a Secret, jwt: Option<&'a Jwt>) -> Review<'a, Verdict> {
        Box::pin(async move {
            if !token.expose().bytes().all(|byte| byte.is_ascii_graphic()) {
                // The server cuts a token at its first space, and authenticates an empty one as `system:anonymous`.
                return Ok(Verdict::Rejected(token::NOT_VALID.into()));
            }
            self.token_verdict(token, jwt).await
        })
    }

    fn review_access<'a>(&'a self, user: &'a User, action: &'a Action) -> Review<'a, Decision> {
        Box::pin(self.access_decision(user, action))
    }
}

/// Without the client, which does not implement `Debug`.
impl fmt::Debug for ApiReviewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiReviewer")
            .field("audiences", &self.audiences)
            .field("health", &self.health)
            .finish_non_exhaustive()
    }
}

/// A kind of review.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Token,
    Access,
}

impl Kind {
    /// Returns its kind, its plural name in paths, and its API group.
    fn names(self) -> [&'static str; 3] {
        match self {
            Self::Token => ["TokenReview", "tokenreviews", "authentication.k8s.io"],
            Self::Access => ["SubjectAccessReview", "subjectaccessreviews", "authorization.k8s.io"],
        }
    }

    fn version(self) -> String {
        let [.., group] = self.names();
        format!("{group}/v1")
    }

    fn path(self) -> String {
        let [_, plural, group] = self.names();
        format!("/apis/{group}/v1/{plural}")
    }
}

/// A review without its spec.
#[derive(Clone, Copy)]
struct ReviewRequest<'a> {
    kind: Kind,
    /// The end of the wait for its answer.
    deadline: Instant,
    /// The token that must not be in any message.
    token: Option<&'a Secret>,
}

impl<'a> ReviewRequest<'a> {
    fn new(kind: Kind, token: Option<&'a Secret>) -> Self {
        let deadline = Instant::now() + DEADLINE;
        Self { kind, deadline, token }
    }

    fn body(self, spec: impl Serialize) -> Bytes {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct ReviewBody<T> {
            api_version: String,
            kind: &'static str,
            spec: T,
        }
        let [kind, ..] = self.kind.names();
        let api_version = self.kind.version();
        // Allocated in one piece: a buffer that grows leaves copies of the token behind.
        let size = self.token.map_or(0, |token| token.expose().len() * 2) + 1024;
        let mut body = Zeroizing::new(Vec::with_capacity(size));
        let asked = ReviewBody {
            api_version,
            kind,
            spec,
        };
        // Never an error: these are strings, lists and maps of strings.
        serde_json::to_writer(&mut *body, &asked).ok();
        Bytes::from_owner(body)
    }

    /// Returns the error, without the token: a server, or a proxy before it, may quote the request in its answer.
    fn unavailable(self, failure: Failure, reason: &str) -> ReviewError {
        let reason = self
            .token
            .map_or_else(|| reason.to_owned(), |token| token.redacted(reason));
        let [_, plural, group] = self.kind.names();
        let message = if failure == Failure::Forbidden {
            format!(
                "the API server lets switchboard create no {plural}.{group}: bind its ServiceAccount to the ClusterRole \
                 system:auth-delegator (kubectl create clusterrolebinding switchboard-auth-delegator \
                 --clusterrole=system:auth-delegator --serviceaccount=NAMESPACE:NAME): {reason}"
            )
        } else if failure == Failure::Unauthorized {
            format!("the API server refuses switchboard's own credentials, also those of the current files: {reason}")
        } else {
            format!("the API server has not answered a review ({plural}.{group}): {reason}")
        };
        ReviewError::new(no_answer(failure), message)
    }
}

/// Returns the spec of a review of an action, with all that is known of the user.
fn access_spec(user: &User, action: &Action) -> Value {
    json!({
        "user": user.name,
        "uid": user.uid.as_deref().unwrap_or_default(),
        "groups": user.groups,
        "extra": user.extra,
        "resourceAttributes": action,
    })
}

/// Returns the decision of an answer.
fn decision(status: &AccessStatus) -> Decision {
    let reason = match (&*status.reason, &*status.evaluation_error) {
        ("", error) => error,
        (reason, _) => reason,
    };
    Decision {
        // If both are set, the denial wins.
        allowed: status.allowed && !status.denied,
        complete: status.evaluation_error.is_empty(),
        reason: excerpt(reason, MAX_REASON).into(),
    }
}

/// The status of a `SubjectAccessReview`, in which `allowed` is always present.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AccessStatus {
    allowed: bool,
    #[serde(default)]
    denied: bool,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    evaluation_error: String,
}

/// Returns how a review without an answer has failed.
fn no_answer(failure: Failure) -> NoAnswer {
    match failure {
        Failure::Connect => NoAnswer::Unreachable,
        Failure::Timeout | Failure::Silent | Failure::Cut | Failure::Malformed | Failure::Server => NoAnswer::Silence,
        Failure::Throttled | Failure::Unauthorized | Failure::Forbidden | Failure::Expired | Failure::Refused => {
            NoAnswer::Refused
        }
        Failure::Credentials => NoAnswer::Unavailable,
    }
}

/// Reads the status of an answer.
///
/// # Errors
/// It is not an answer to a review of this kind.
fn status<T: DeserializeOwned>(body: &[u8], kind: Kind) -> Result<T, ApiError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase", bound = "T: DeserializeOwned")]
    struct Answer<T> {
        #[serde(default)]
        api_version: String,
        #[serde(default)]
        kind: String,
        status: Object<T>,
    }
    let Object(answer): Object<Answer<T>> = serde_json::from_slice(body)?;
    let [name, ..] = kind.names();
    if answer.kind != name || answer.api_version != kind.version() {
        return Err(ApiError::new(Failure::Malformed, format!("the answer is no {name}")));
    }
    Ok(answer.status.0)
}

/// Characters of a reason, which names a binding, a role and a subject.
const MAX_REASON: usize = 512;
/// The `User-Agent` of reviews, as audit logs show it.
const AGENT: &str = concat!("switchboard-access/", env!("CARGO_PKG_VERSION"));
/// Ten times what a review takes on a loaded API server, and short enough for a waiting client.
const DEADLINE: Duration = Duration::from_secs(3);
/// An answer repeats the request, and lists the user's groups, of which a directory may have thousands.
const MAX_RESPONSE_BYTES: usize = 256 << 10;
/// The longest wait that the server may ask for: no new user gets in during it.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(10);
/// An API server answers before it has read each binding and ServiceAccount from its database: a denial then proves
/// nothing. Reading takes a fraction of a second. The cost: a tunnel that lost its permission lives this much longer.
const SETTLES: Duration = Duration::from_millis(1500);

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::policy::access::{Method, Permission};

    const VERSION: &str = "authorization.k8s.io/v1";
    const KIND: &str = "SubjectAccessReview";

    fn answer(status: &Value) -> String {
        json!({"apiVersion": VERSION, "kind": KIND, "status": status}).to_string()
    }

    fn decided(body: &str) -> Result<Decision, ApiError> {
        status(body.as_bytes(), Kind::Access).map(|status| decision(&status))
    }

    #[test]
    fn what_the_server_answers_about_switchboard_itself_is_no_silence() {
        let silent = ["connect", "timeout", "silent", "cut", "malformed", "server"];
        for failure in Failure::ALL {
            let error = ReviewRequest::new(Kind::Access, None).unavailable(failure, "");
            let is_silence = silent.contains(&failure.label());
            assert_eq!(error.kind.is_silence(), is_silence, "{failure:?}");
            let is_refusal = !is_silence && failure != Failure::Credentials;
            assert_eq!(error.kind == NoAnswer::Refused, is_refusal, "{failure:?}");
        }
    }

    #[test]
    fn a_question_says_which_kind_of_object_it_is() {
        for (kind, expected) in [
            (Kind::Token, ["authentication.k8s.io/v1", "TokenReview"]),
            (Kind::Access, ["authorization.k8s.io/v1", "SubjectAccessReview"]),
        ] {
            let body = ReviewRequest::new(kind, None).body(json!({"a": "\""}));
            let asked: Value = serde_json::from_slice(&body).unwrap();
            let [version, name] = expected;
            assert_eq!(asked, json!({"apiVersion": version, "kind": name, "spec": {"a": "\""}}));
        }
    }

    #[test]
    fn everything_that_is_known_of_the_user_is_in_the_question() {
        let user = User {
            name: "alice".into(),
            uid: Some("u-1".into()),
            groups: vec!["ops".into(), "system:authenticated".into()],
            extra: BTreeMap::from([("example.com/team".into(), vec!["a".into(), "b".into()])]),
            method: Method::TokenReview,
            expires: None,
        };
        let action = Action {
            permission: Permission::default(),
            namespace: "team-a".into(),
            name: "devbox".into(),
        };
        let expected = json!({
            "user": "alice", "uid": "u-1", "groups": ["ops", "system:authenticated"],
            "extra": {"example.com/team": ["a", "b"]},
            "resourceAttributes": {
                "verb": "create", "group": "", "resource": "services", "subresource": "ssh",
                "namespace": "team-a", "name": "devbox",
            },
        });
        assert_eq!(access_spec(&user, &action), expected);
    }

    #[test]
    fn an_answer_allows_only_by_a_plain_yes() {
        for (status, allowed, complete, reason) in [
            (
                json!({"allowed": true, "reason": "RBAC: allowed by b"}),
                true,
                true,
                "RBAC: allowed by b",
            ),
            (json!({"allowed": false}), false, true, ""),
            (json!({"allowed": true, "denied": true}), false, true, ""),
            (
                json!({"allowed": false, "denied": true, "reason": "no"}),
                false,
                true,
                "no",
            ),
            (
                json!({"allowed": false, "evaluationError": "webhook\n"}),
                false,
                false,
                "webhook\\n",
            ),
            (
                json!({"allowed": true, "evaluationError": "webhook", "reason": "r"}),
                true,
                false,
                "r",
            ),
        ] {
            let decided = decided(&answer(&status)).unwrap();
            assert_eq!((decided.allowed, decided.complete), (allowed, complete), "{status}");
            assert_eq!(&*decided.reason, reason);
        }
        let long = decided(&answer(&json!({"allowed": true, "reason": "x".repeat(9999)}))).unwrap();
        assert_eq!(long.reason.chars().count(), MAX_REASON + 1);
    }

    #[test]
    fn what_is_no_answer_is_never_a_no() {
        for body in [
            "".to_owned(),
            "{}".to_owned(),
            "<html>".to_owned(),
            json!({"apiVersion": VERSION, "kind": KIND}).to_string(),
            json!({"apiVersion": VERSION, "kind": KIND, "status": {}}).to_string(),
            json!({"apiVersion": VERSION, "kind": KIND, "status": {"allowed": null}}).to_string(),
            json!({"apiVersion": VERSION, "kind": KIND, "status": {"allowed": "false"}}).to_string(),
            json!({"apiVersion": VERSION, "kind": "SelfSubjectAccessReview", "status": {"allowed": false}}).to_string(),
            json!({"apiVersion": "v1", "kind": "Status", "status": "Failure"}).to_string(),
            // Arrays with the fields of the objects in their order.
            json!([VERSION, KIND, [true, false, "", ""]]).to_string(),
            json!([VERSION, KIND, {"allowed": true}]).to_string(),
            json!({"apiVersion": VERSION, "kind": KIND, "status": [true, false, "", ""]}).to_string(),
            json!({"apiVersion": "authorization.k8s.io/v1beta1", "kind": KIND, "status": {"allowed": true}})
                .to_string(),
        ] {
            assert_eq!(decided(&body).unwrap_err().failure, Failure::Malformed, "{body}");
        }
    }
}
