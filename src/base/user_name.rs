//! Checks of the names of users and groups: those that can be shown, and those that Kubernetes reserves.

use crate::base::text::is_unprintable;

/// Returns whether a name has 1 to `max` bytes, no unprintable character, and no space at its ends.
pub(crate) fn is_name(name: &str, max: usize) -> bool {
    !name.is_empty() && name.len() <= max && name.trim() == name && !name.contains(is_unprintable)
}

/// Returns whether a name begins with `system:`, which Kubernetes reserves, in upper or lower case, or after spaces.
pub(crate) fn is_reserved(name: &str) -> bool {
    name.trim_start()
        .get(..RESERVED.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(RESERVED))
}

const RESERVED: &str = "system:";
