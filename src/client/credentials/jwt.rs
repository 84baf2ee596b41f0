//! What a JSON Web Token says of itself. It is not verified: the API server and the proxy do that.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::authorization::Token;
use crate::base::json::Object;

/// The claims that matter to a client (RFC 7519 section 4.1).
#[derive(Debug, Default, Deserialize)]
pub(super) struct Claims {
    /// The identity.
    #[serde(rename = "sub")]
    pub(super) subject: Option<String>,
}

impl Claims {
    /// The claims of a token, or `None` for one that is no JWT.
    pub(super) fn of(token: &Token) -> Option<Self> {
        let mut parts = token.expose().split('.');
        let (Some(_), Some(claims), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
            return None;
        };
        let claims = URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?;
        serde_json::from_slice(&claims).ok().map(|Object(claims)| claims)
    }

    /// Namespace and name, if it is the token of a ServiceAccount.
    pub(super) fn service_account(&self) -> Option<(&str, &str)> {
        let account = self.subject.as_deref()?.strip_prefix("system:serviceaccount:")?;
        let (namespace, name) = account.split_once(':')?;
        // They become a part of a path.
        let is_name = |name: &str| {
            let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
            !name.is_empty() && !name.starts_with('.') && name.bytes().all(is_allowed)
        };
        (is_name(namespace) && is_name(name)).then_some((namespace, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(json: &str) -> Option<Claims> {
        let text = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(json));
        Claims::of(&Token::parse(&text).unwrap())
    }

    #[test]
    fn the_subject_is_read() {
        let read = claims(r#"{"sub":"system:serviceaccount:team-a:ci","exp":1700000000,"aud":["x"]}"#).unwrap();
        assert_eq!(read.service_account(), Some(("team-a", "ci")));
    }

    #[test]
    fn what_is_no_jwt_or_no_service_account_is_none() {
        for text in [
            "opaque",
            "a.b",
            "a.b.c.d",
            "a.!.c",
            "..",
            "a.e30",
            "k8s-aws-v1.aHR0cHM6Ly9zdHM",
        ] {
            if let Ok(token) = Token::parse(text) {
                assert!(Claims::of(&token).is_none(), "{text}");
            }
        }
        for subject in [
            "alice",
            "system:serviceaccount:ns",
            "system:serviceaccount:ns:",
            "system:serviceaccount:ns:a/b",
            "system:serviceaccount:..:a",
            "system:serviceaccount:ns:a?b",
        ] {
            let read = claims(&format!("{{\"sub\":\"{subject}\"}}")).unwrap();
            assert_eq!(read.service_account(), None, "{subject}");
        }
        assert!(claims("[]").is_none() && claims(r#"{"sub":1}"#).is_none());
    }
}
