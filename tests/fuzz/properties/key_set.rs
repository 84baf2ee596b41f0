//! The text of a JSON Web Key Set.

use switchboard::policy::access::oidc::check_keys;

/// It has 1 to 100 keys, or a fault in a sentence.
pub(crate) fn check(bytes: &[u8]) {
    match check_keys(bytes) {
        Ok(keys) => assert!((1..=100).contains(&keys)),
        Err(fault) => assert!(fault.starts_with("it ") && fault.is_ascii(), "{fault}"),
    }
}
