//! The text of a token.

use std::time::UNIX_EPOCH;

use switchboard::policy::access::token::{Claims, check_shape};

/// Its fault is a sentence in ASCII without the token; its claims are read, and judged for any time, without a panic.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Err(fault) = check_shape(text) {
        assert!(fault.is_ascii() && fault.starts_with("the token "), "{fault}");
        assert!(text.len() < 12 || !fault.contains(text), "{fault}");
    } else {
        assert!(text.is_ascii() && !text.contains([' ', ':', '"', '\0', '\r', '\n']));
    }
    let Some(claims) = Claims::unverified(text) else { return };
    assert!(text.starts_with("eyJ") && text.split('.').count() == 3);
    let own: Vec<Box<str>> = vec!["switchboard".into()];
    let at = claims.expires.unwrap_or(UNIX_EPOCH);
    let refused = claims.obviously_refused(at, &own);
    assert_ne!(refused, Some("the token has expired"));
    if claims.audiences.contains(&own[0]) {
        assert_ne!(refused, Some("the token is for another audience"));
    }
}
