//! The allowlist and access control: the target of each name, and which users may reach it.

pub mod access;
pub mod allowlist;
