//! The programs about names of targets: `known-hosts` and `ls`.

pub(super) mod known_hosts;
pub(super) mod ls;
