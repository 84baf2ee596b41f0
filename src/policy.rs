//! The allowlist and access control: which name leads to which target, and which users may reach it.

pub mod access;
pub mod allowlist;
