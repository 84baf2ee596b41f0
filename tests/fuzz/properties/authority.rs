//! The text of an authority.

use switchboard::base::authority::Authority;

/// It prints as it would have to be sent, and that is the same authority; every spelling of one is equal to it.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let Ok(authority) = text.parse::<Authority>() else {
        return;
    };
    let printed = authority.to_string();
    assert_eq!(printed.parse().as_ref(), Ok(&authority));
    assert_eq!(printed.to_ascii_uppercase().parse().as_ref(), Ok(&authority));
    assert!(
        printed.is_ascii() && !printed.contains(['/', '@', '%', ' ', '\0', '\\']),
        "{printed}"
    );
    assert_ne!(authority.port(), 0);
    assert!(!authority.host().is_empty() && authority.host().len() <= 253);
    if !printed.starts_with('[') {
        let dotted = format!("{}.:{}", authority.host(), authority.port());
        assert_eq!(dotted.parse().as_ref(), Ok(&authority));
    }
}
