//! Names of users and groups: which can be shown, and which are Kubernetes' own.

use crate::base::text::is_unprintable;

/// Returns whether a name of at most so many bytes can be shown, and is the only one that looks so.
pub(crate) fn is_name(name: &str, max: usize) -> bool {
    !name.is_empty() && name.len() <= max && name.trim() == name && !name.contains(is_unprintable)
}

/// Returns whether a name begins as those that Kubernetes keeps for itself, or looks so.
pub(crate) fn is_reserved(name: &str) -> bool {
    name.trim_start()
        .get(..RESERVED.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(RESERVED))
}

const RESERVED: &str = "system:";
