//! The text of a token.

use std::time::UNIX_EPOCH;

use switchboard::protocol::jwt::Jwt;

/// Its fault is a sentence in ASCII without the token; its claims are read, and judged for any time, without a panic.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let jwt = match Jwt::read(text) {
        Ok(jwt) => jwt,
        Err(fault) => {
            assert!(fault.is_ascii() && fault.starts_with("the token "), "{fault}");
            assert!(
                *fault == *CHARACTERS || text.len() < 12 || !fault.contains(text),
                "{fault}"
            );
            return;
        }
    };
    assert!(text.is_ascii() && !text.contains([' ', ':', '"', '\0', '\r', '\n']));
    let Some(jwt) = jwt else { return };
    assert!(text.starts_with("eyJ") && text.split('.').count() == 3);
    let own: Vec<Box<str>> = vec!["switchboard".into()];
    let refused = jwt.obviously_refused(jwt.expires().unwrap_or(UNIX_EPOCH), &own);
    assert_ne!(refused, Some("the token has expired"));
    if jwt.is_for(&own) {
        assert_ne!(refused, Some("the token is for another audience"));
    }
}

/// A fault that is the same for every token: one may be a part of it by chance.
const CHARACTERS: &str = "the token has characters that no token has";
