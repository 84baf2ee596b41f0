//! The text of a configuration.

use switchboard::proxy::config::Config;

/// It is a configuration, or it has faults that name their position and the reason.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let Err(faults) = Config::parse(text) else { return };
    // A bare CR ends a line, too (YAML 1.2.2 section 5.4).
    let ends = text.bytes().filter(|byte| matches!(byte, b'\n' | b'\r')).count();
    let lines = u64::try_from(ends).expect("fits") + 1;
    assert!(faults.iter().count() > 0);
    for fault in faults.iter() {
        assert!(!fault.message.is_empty());
        let position = fault.position.expect("a text was read");
        assert!((1..=lines).contains(&position.line), "{fault}");
    }
}
