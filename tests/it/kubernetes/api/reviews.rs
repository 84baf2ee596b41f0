//! Both reviews: the user that a token proves, and what a user may do by the roles and bindings in the store.

use std::collections::HashMap;
use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::USER_AGENT;
use serde_json::{Value, json};

use super::Shared;
use super::answer::{self, Answer};
use super::faults::Verb;
use super::rbac;
use super::store::Key;

/// The tokens that are known, and how many of their reviews there are at once.
#[derive(Debug, Default)]
pub(crate) struct Reviews {
    pub(crate) tokens: HashMap<String, Token>,
    pub(crate) agent: String,
    under_way: usize,
    max: usize,
}

/// A token's user, and for which audiences it is.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    /// `UserInfo` of `authentication.k8s.io/v1`.
    pub(crate) user: Value,
    pub(crate) audiences: Vec<String>,
    pub(crate) is_expired: bool,
    /// The ServiceAccount without which it is not valid, with its id.
    pub(crate) account: Option<(Key, Value)>,
}

impl Token {
    /// A valid token of that user, without groups of its own.
    pub(crate) fn new(user: &str, audiences: &[&str]) -> Self {
        Self {
            user: json!({"username": user, "groups": ["system:authenticated"]}),
            audiences: audiences.iter().map(|&name| name.to_owned()).collect(),
            is_expired: false,
            account: None,
        }
    }
}

/// The token of a service account.
pub(crate) fn of_account(key: &Key, account: &Value, audiences: &[Value]) -> Token {
    let Key { namespace, name, .. } = key;
    let uid = &account["metadata"]["uid"];
    let all = format!("system:serviceaccounts:{namespace}");
    Token {
        user: json!({
            "username": format!("system:serviceaccount:{namespace}:{name}"), "uid": uid,
            "groups": ["system:serviceaccounts", all, "system:authenticated"],
            "extra": {"authentication.kubernetes.io/credential-id": ["JTI=1"]},
        }),
        audiences: audiences.iter().map(|name| name.as_str().unwrap().to_owned()).collect(),
        is_expired: false,
        account: Some((key.clone(), uid.clone())),
    }
}

/// A token review from its arrival to its answer.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<Shared>);

impl UnderWay {
    pub(crate) fn begin(shared: Arc<Shared>) -> Self {
        {
            let mut reviews = shared.reviews();
            reviews.under_way += 1;
            reviews.max = reviews.max.max(reviews.under_way);
        }
        Self(shared)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.reviews().under_way -= 1;
    }
}

impl Reviews {
    pub(crate) fn take_most(&mut self) -> usize {
        std::mem::replace(&mut self.max, self.under_way)
    }
}

pub(crate) async fn answer(shared: &Shared, verb: Verb, request: Request<Incoming>) -> Answer {
    let agent = request
        .headers()
        .get(USER_AGENT)
        .map(|agent| agent.to_str().unwrap().to_owned());
    shared.reviews().agent = agent.unwrap_or_default();
    let Ok(body) = request.into_body().collect().await else {
        return answer::refusal(400, "the body of the request was cut");
    };
    let Ok(mut review) = serde_json::from_slice::<Value>(&body.to_bytes()) else {
        return answer::refusal(400, "the object provided is unrecognized");
    };
    let kind = if verb == Verb::TokenReview {
        "TokenReview"
    } else {
        "SubjectAccessReview"
    };
    if review["kind"] != kind {
        return answer::refusal(400, "an object of another kind");
    }
    review["status"] = match verb {
        Verb::TokenReview => token_status(shared, &review["spec"]),
        Verb::List | Verb::Page | Verb::Watch | Verb::Other | Verb::AccessReview => {
            rbac::status(shared, &review["spec"])
        }
    };
    answer::json(201, &review)
}

fn token_status(shared: &Shared, spec: &Value) -> Value {
    let Some(text) = spec["token"].as_str().filter(|text| !text.is_empty()) else {
        return json!({"user": {}, "error": "no token was provided"});
    };
    if text.starts_with(' ') {
        // As seen: what follows the space is taken for no token, and its bearer is the anonymous user.
        return json!({
            "authenticated": true, "audiences": [SERVER],
            "user": {"username": "system:anonymous", "groups": ["system:unauthenticated"]},
        });
    }
    let token = shared.reviews().tokens.get(text).cloned();
    let Some(token) = token else {
        return refused("invalid bearer token");
    };
    if token.is_expired {
        return refused("[invalid bearer token, service account token has expired]");
    }
    if let Some((key, uid)) = &token.account {
        let account = shared
            .store()
            .object(key)
            .map(|account| account["metadata"]["uid"].clone());
        if account.as_ref() != Some(uid) {
            return refused("[invalid bearer token, service account token has been invalidated]");
        }
    }
    let asked = spec["audiences"].as_array().filter(|asked| !asked.is_empty());
    let asked = asked.cloned().unwrap_or_else(|| vec![json!(SERVER)]);
    let shared_audiences: Vec<_> = asked
        .iter()
        .filter(|name| token.audiences.iter().any(|other| *name == other.as_str()))
        .collect();
    if shared_audiences.is_empty() {
        let has = &token.audiences;
        return refused(&format!(
            "[invalid bearer token, token audiences {has:?} is invalid for the target audiences {asked:?}]"
        ));
    }
    json!({"authenticated": true, "user": token.user, "audiences": shared_audiences})
}

fn refused(error: &str) -> Value {
    json!({"user": {}, "error": error})
}

/// The API server's own audience.
pub(crate) const SERVER: &str = "https://kubernetes.default.svc.cluster.local";
