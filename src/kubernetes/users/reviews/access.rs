//! The `SubjectAccessReview`: its spec, and the decision of its status.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::base::text::excerpt;
use crate::policy::access::{Action, Decision, User};

/// Returns the spec of a review of an action, with all that is known of the user.
pub(super) fn spec(user: &User, action: &Action) -> Value {
    json!({
        "user": user.name,
        "uid": user.uid.as_deref().unwrap_or_default(),
        "groups": user.groups,
        "extra": user.extra,
        "resourceAttributes": action,
    })
}

/// Returns the decision of an answer.
pub(super) fn decision(status: &Status) -> Decision {
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

/// A status, in which `allowed` is always present.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    allowed: bool,
    #[serde(default)]
    denied: bool,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    evaluation_error: String,
}

/// Characters of a reason, which names a binding, a role and a subject.
const MAX_REASON: usize = 512;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::kubernetes::api::failure::{ApiError, Failure};
    use crate::kubernetes::users::reviews::{self, Kind};
    use crate::policy::access::{Check, Method};

    const VERSION: &str = "authorization.k8s.io/v1";
    const KIND: &str = "SubjectAccessReview";

    fn answer(status: &Value) -> String {
        json!({"apiVersion": VERSION, "kind": KIND, "status": status}).to_string()
    }

    fn decision(body: &str) -> Result<Decision, ApiError> {
        reviews::status(body.as_bytes(), Kind::Access).map(|status| super::decision(&status))
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
            check: Check::default(),
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
        assert_eq!(spec(&user, &action), expected);
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
            let decided = decision(&answer(&status)).unwrap();
            assert_eq!((decided.allowed, decided.complete), (allowed, complete), "{status}");
            assert_eq!(&*decided.reason, reason);
        }
        let long = decision(&answer(&json!({"allowed": true, "reason": "x".repeat(9999)}))).unwrap();
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
            assert_eq!(decision(&body).unwrap_err().failure, Failure::Malformed, "{body}");
        }
    }
}
