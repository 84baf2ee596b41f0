//! The `TokenReview`: its spec, and the verdict of its status.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::base::json::Object;
use crate::base::text::excerpt;
use crate::kubernetes::api::failure::{ApiError, Failure};
use crate::policy::access::{AUTHENTICATED, Method, User, Verdict};
use crate::protocol::jwt::{Jwt, OTHER_AUDIENCE};

/// The accepted audiences. A token needs one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Audiences {
    named: Vec<Box<str>>,
    /// True if the API server's own audience is one of them.
    servers_own: bool,
}

impl Audiences {
    /// Creates them from the settings: an empty string or list means the server's own.
    pub(super) fn new(audiences: &[Box<str>]) -> Self {
        let named: Vec<_> = audiences.iter().filter(|name| !name.is_empty()).cloned().collect();
        Self {
            servers_own: named.len() < audiences.len() || named.is_empty(),
            named,
        }
    }

    /// Returns the audiences of each review of a token, in order; the first success makes the second review needless.
    ///
    /// A `TokenReview` without audiences checks for the server's own. Its name is unknown here, so no review can check
    /// for both. The claim `aud` rejects no token, and only decides the order: a good token mostly costs one review.
    pub(super) fn to_ask(&self, token: Option<&Jwt>) -> [Option<&[Box<str>]>; 2] {
        let named = (!self.named.is_empty()).then_some(&*self.named);
        let own = self.servers_own.then_some(&[][..]);
        let is_named = token.is_some_and(|jwt| jwt.is_for(&self.named));
        if is_named { [named, own] } else { [own, named] }
    }
}

/// The spec of a `TokenReview`.
#[derive(Serialize)]
pub(super) struct Spec<'a> {
    pub(super) token: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) audiences: &'a [Box<str>],
}

/// Returns the verdict of a review with these audiences. `expires` is the token's own claim.
///
/// # Errors
/// The server could not check the token.
pub(super) fn verdict(
    status: Status,
    audiences: &[Box<str>],
    expires: Option<SystemTime>,
) -> Result<Verdict, ApiError> {
    if !status.authenticated {
        let error = unquoted(&status.error).to_ascii_lowercase();
        if says(&error, &PASSING) {
            // An authenticator of the server failed: a webhook, or an issuer whose keys it does not have yet.
            return Err(ApiError::new(Failure::Server, excerpt(&status.error, MAX_ERROR)));
        }
        return Ok(Verdict::Rejected(sentence(&error).into()));
    }
    // A server that does not support audiences answers without any, and has not compared them.
    if !audiences.is_empty() && !status.audiences.iter().any(|name| audiences.contains(name)) {
        return Ok(Verdict::Rejected(OTHER_AUDIENCE.into()));
    }
    Ok(match user(status.user.0, expires) {
        Ok(user) => Verdict::Authenticated(Arc::new(user)),
        Err(sentence) => Verdict::Rejected(sentence.into()),
    })
}

/// Returns the user of an answer, or why that user is not accepted.
fn user(mut info: UserInfo, expires: Option<SystemTime>) -> Result<User, &'static str> {
    if !info.groups.iter().any(|group| **group == *AUTHENTICATED) {
        info.groups.push(AUTHENTICATED.into());
    }
    let size = info.size();
    let user = User {
        name: info.username,
        uid: Some(info.uid).filter(|uid| !uid.is_empty()),
        groups: info.groups,
        extra: info.extra,
        method: Method::TokenReview,
        expires,
    };
    if user.is_anonymous() {
        return Err(NOT_VALID);
    }
    if size > MAX_USER_BYTES || user.groups.len() > MAX_GROUPS {
        // Leaving some groups out would be wrong: an authorizer may also deny by a group.
        return Err(TOO_LARGE);
    }
    Ok(user)
}

/// Returns the client's sentence for an error of the server. The error itself is withheld: it may quote the token, and
/// contain what only operators need to know.
fn sentence(error: &str) -> &'static str {
    if says(error, &["expired"]) {
        "the token has expired"
    } else if says(error, &["audience"]) {
        OTHER_AUDIENCE
    } else if says(error, &["not valid yet", "used before", "before the nbf"]) {
        "the token is not valid yet"
    } else if says(error, &["invalidated", "not found", "been deleted"]) {
        REVOKED
    } else {
        NOT_VALID
    }
}

/// Returns the server's error without its quoted parts, which could contain anything: they come from the token, such as
/// an audience, or are names that a tenant chose.
fn unquoted(text: &str) -> String {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let mut own = String::with_capacity(text.len());
    for character in text.chars() {
        let was_escaped = std::mem::take(&mut is_escaped);
        if character == '"' && !was_escaped {
            is_quoted = !is_quoted;
        } else if !is_quoted {
            own.push(character);
        } else {
            is_escaped = character == '\\' && !was_escaped;
        }
    }
    own
}

/// Returns whether the error contains one of `words`. The API has no codes.
fn says(error: &str, words: &[&str]) -> bool {
    words.iter().any(|word| error.contains(word))
}

/// A status, of which Go omits empty and false fields.
#[derive(Deserialize)]
pub(super) struct Status {
    #[serde(default)]
    authenticated: bool,
    #[serde(default)]
    user: Object<UserInfo>,
    #[serde(default)]
    audiences: Vec<Box<str>>,
    #[serde(default)]
    error: String,
}

#[derive(Default, Deserialize)]
struct UserInfo {
    #[serde(default)]
    username: Box<str>,
    #[serde(default)]
    uid: Box<str>,
    #[serde(default)]
    groups: Vec<Box<str>>,
    #[serde(default)]
    extra: BTreeMap<Box<str>, Vec<Box<str>>>,
}

impl UserInfo {
    /// Returns the bytes of all strings, with an overhead of [`PIECE`] for each.
    fn size(&self) -> usize {
        let of = |texts: &[Box<str>]| texts.iter().map(|text| text.len() + PIECE).sum::<usize>();
        let extra = self.extra.iter().map(|(key, values)| key.len() + PIECE + of(values));
        self.username.len() + self.uid.len() + of(&self.groups) + extra.sum::<usize>()
    }
}

/// The sentence for a token that the API server does not know.
pub(super) const NOT_VALID: &str = "the token is not valid";
/// The sentence for a token whose ServiceAccount or bound object is gone.
pub(super) const REVOKED: &str = "the token has been revoked";
const TOO_LARGE: &str = "the token's user has too many groups, or too much other data";

/// Users are cached, and sent with each review.
const MAX_USER_BYTES: usize = 32 << 10;
const MAX_GROUPS: usize = 1024;
const PIECE: usize = 16;
/// Characters of the server's reason in a message.
const MAX_ERROR: usize = 300;
/// Lower-case words in the error of a review that failed, as opposed to one that rejects the token.
const PASSING: [&str; 13] = [
    ": eof",
    "connection refused",
    "connection reset",
    "context canceled",
    "deadline exceeded",
    "i/o timeout",
    "internal error",
    "no route to host",
    "no such host",
    "not initialized",
    "timed out",
    "too many requests",
    "unavailable",
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::{Value, json};

    use crate::base::secret::Secret;
    use crate::kubernetes::users::reviews::{self, Kind};

    const VERSION: &str = "authentication.k8s.io/v1";
    const KIND: &str = "TokenReview";

    fn verdict(body: &[u8], audiences: &[Box<str>], token: &Secret) -> Result<Verdict, ApiError> {
        let expires = Jwt::read(token.expose()).ok().flatten().and_then(|jwt| jwt.expires());
        super::verdict(reviews::status(body, Kind::Token)?, audiences, expires)
    }

    fn token(claims: &Value) -> Secret {
        let claims = URL_SAFE_NO_PAD.encode(claims.to_string());
        Secret::from(&*format!("eyJhIjoxfQ.{claims}.c2ln"))
    }

    fn answer(status: &Value) -> Vec<u8> {
        json!({"apiVersion": VERSION, "kind": KIND, "metadata": {}, "status": status})
            .to_string()
            .into_bytes()
    }

    fn named(names: &[&str]) -> Vec<Box<str>> {
        names.iter().map(|name| (*name).into()).collect()
    }

    fn judged(status: &Value) -> Verdict {
        let names = named(&["switchboard", "other"]);
        verdict(&answer(status), &names[..], &Secret::from("opaque")).unwrap()
    }

    #[test]
    fn empty_text_and_an_empty_list_ask_for_the_servers_own_audience() {
        let opaque = Secret::from("opaque");
        let both = named(&["switchboard", "", "ssh"]);
        let names = named(&["switchboard", "ssh"]);
        for (audiences, token, expected) in [
            (&[][..], &opaque, vec![&[][..]]),
            (&named(&[""])[..], &opaque, vec![&[][..]]),
            (&names[..], &opaque, vec![&names[..]]),
            (&both[..], &opaque, vec![&[][..], &names[..]]),
            (
                &both[..],
                &token(&json!({"aud": "https://kubernetes.default.svc"})),
                vec![&[][..], &names[..]],
            ),
            (
                &both[..],
                &token(&json!({"aud": ["a", "ssh"]})),
                vec![&names[..], &[][..]],
            ),
        ] {
            let audiences = Audiences::new(audiences);
            let asked = audiences.to_ask(Jwt::read(token.expose()).ok().flatten().as_ref());
            let asked: Vec<_> = asked.into_iter().flatten().collect();
            assert_eq!(asked, expected);
        }
    }

    #[test]
    fn a_question_has_the_token_and_its_audiences_or_none() {
        let names = named(&["switchboard"]);
        for (audiences, expected) in [
            (&[][..], json!({"token": "t.\"k"})),
            (&names[..], json!({"token": "t.\"k", "audiences": ["switchboard"]})),
        ] {
            let token = "t.\"k";
            assert_eq!(json!(Spec { token, audiences }), expected);
        }
    }

    #[test]
    fn a_yes_gives_the_user_with_everything_that_is_said_of_it() {
        let token = token(&json!({"exp": 1_900_000_000.5, "aud": ["switchboard"]}));
        let status = json!({
            "authenticated": true, "audiences": ["x", "switchboard"],
            "user": {
                "username": "alice", "uid": "u-1", "groups": ["ops"], "extra": {"example.com/k": ["v"]},
            },
        });
        let names = named(&["switchboard"]);
        let Verdict::Authenticated(user) = verdict(&answer(&status), &names[..], &token).unwrap() else {
            panic!("it is a yes");
        };
        let expected = User {
            name: "alice".into(),
            uid: Some("u-1".into()),
            groups: named(&["ops", "system:authenticated"]),
            extra: BTreeMap::from([("example.com/k".into(), named(&["v"]))]),
            method: Method::TokenReview,
            expires: Some(UNIX_EPOCH + Duration::from_millis(1_900_000_000_500)),
        };
        assert_eq!(*user, expected);
    }

    #[test]
    fn what_is_no_plain_yes_for_one_of_the_audiences_is_a_no() {
        let user = json!({"username": "alice"});
        let many: Vec<_> = (0..1024).map(|group| format!("g{group}")).collect();
        for (status, expected) in [
            (json!({}), NOT_VALID),
            (json!({"user": user, "audiences": ["switchboard"]}), NOT_VALID),
            (
                json!({"authenticated": false, "error": "[invalid bearer token, eyJhbGciOi]"}),
                NOT_VALID,
            ),
            (
                json!({"error": "[invalid bearer token, service account token has expired]"}),
                "the token has expired",
            ),
            (
                json!({"error": "Token audiences [\"a\"] is invalid for the target audiences"}),
                OTHER_AUDIENCE,
            ),
            (
                json!({"error": "square/go-jose/jwt: validation failed, token not valid yet (nbf)"}),
                "the token is not valid yet",
            ),
            (
                json!({"error": "[invalid bearer token, serviceaccounts \"ci\" not found]"}),
                REVOKED,
            ),
            (json!({"authenticated": true, "user": user}), OTHER_AUDIENCE),
            (
                json!({"authenticated": true, "user": user, "audiences": []}),
                OTHER_AUDIENCE,
            ),
            (
                json!({"authenticated": true, "user": user, "audiences": ["third"]}),
                OTHER_AUDIENCE,
            ),
            (json!({"authenticated": true, "audiences": ["other"]}), NOT_VALID),
            (
                json!({"authenticated": true, "audiences": ["other"], "user": {"username": ""}}),
                NOT_VALID,
            ),
            (
                json!({"authenticated": true, "audiences": ["other"], "user": {"username": "system:anonymous"}}),
                NOT_VALID,
            ),
            (
                json!({"authenticated": true, "audiences": ["other"],
                    "user": {"username": "a", "groups": ["system:unauthenticated"]}}),
                NOT_VALID,
            ),
            (
                json!({"authenticated": true, "audiences": ["other"], "user": {"username": "a", "groups": many}}),
                TOO_LARGE,
            ),
            (
                json!({"authenticated": true, "audiences": ["other"], "user": {"username": "a".repeat(40_000)}}),
                TOO_LARGE,
            ),
        ] {
            assert_eq!(judged(&status), Verdict::Rejected(expected.into()), "{status}");
        }
    }

    #[test]
    fn what_a_reason_quotes_of_the_token_says_nothing() {
        for (error, sentence) in [
            (
                r#"oidc: expected audience "k" got ["connection refused"]"#,
                OTHER_AUDIENCE,
            ),
            (r#"oidc: expected audience "k" got ["a\"i/o timeout"]"#, OTHER_AUDIENCE),
            (
                r#"oidc: expected audience "k" got ["a\\", "i/o timeout"]"#,
                OTHER_AUDIENCE,
            ),
            (r#"serviceaccounts "unavailable" not found"#, REVOKED),
            (r#"no such claim "expired""#, NOT_VALID),
        ] {
            assert_eq!(
                judged(&json!({"error": error})),
                Verdict::Rejected(sentence.into()),
                "{error}"
            );
        }
    }

    #[test]
    fn an_authenticator_that_fails_says_nothing_of_the_token() {
        for error in [
            "[invalid bearer token, Post \"https://hook/authenticate\": dial tcp 10.0.0.1:443: connect: connection refused]",
            "[invalid bearer token, oidc: authenticator not initialized]",
            "context deadline exceeded",
        ] {
            let body = answer(&json!({"user": {}, "error": error}));
            let failed = verdict(&body, &[][..], &Secret::from("t")).unwrap_err();
            assert_eq!(failed.failure, Failure::Server, "{error}");
        }
    }

    #[test]
    fn what_is_no_answer_is_never_a_no() {
        for body in [
            String::new(),
            "{}".to_owned(),
            "<html>".to_owned(),
            json!({"apiVersion": VERSION, "kind": KIND}).to_string(),
            json!({"apiVersion": VERSION, "kind": "SubjectAccessReview", "status": {"allowed": false}}).to_string(),
            json!({"apiVersion": "v1", "kind": "Status", "status": "Failure"}).to_string(),
            json!({"apiVersion": VERSION, "kind": KIND, "status": {"authenticated": "yes"}}).to_string(),
            // Arrays with the fields of the objects in their order.
            json!([VERSION, KIND, [true, ["root", "u", [], {}], [], ""]]).to_string(),
            json!([VERSION, KIND, {"authenticated": true, "user": {"username": "root"}}]).to_string(),
            json!({"apiVersion": VERSION, "kind": KIND, "status": [true, {"username": "root"}, [], ""]}).to_string(),
            json!({"apiVersion": VERSION, "kind": KIND, "status": {"authenticated": true, "user": ["root", "u", [], {}]}})
                .to_string(),
        ] {
            let error = verdict(body.as_bytes(), &[][..], &Secret::from("t")).unwrap_err();
            assert_eq!(error.failure, Failure::Malformed, "{body}");
        }
    }
}
