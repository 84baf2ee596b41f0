//! Switchboard: an SSH ingress for Kubernetes. One public port takes HTTP CONNECT, finds the target in an allowlist,
//! dials it and relays bytes.
//!
//! The modules stand in layers, and an import goes down or sideways, never up; `tests/architecture/` proves it.

// Values: neither async nor I/O.
pub mod authority;
mod cold;
pub mod credential;
pub mod direction;
mod fnv;
mod json;
pub mod outcome;
pub mod secret;
mod text;
mod values;

// Machinery: one mechanism each.
pub mod drain;
mod file;
pub mod limits;
pub mod net;
mod yaml;

// Protocols: what moves and carries bytes.
pub mod relay;
pub mod resume;
pub mod ssh;
pub mod tls;

// Lookups: the request, its user and its target, and the counters.
pub mod access;
pub mod allowlist;
pub mod connect;
pub mod metrics;

// The stages of one connection.
pub mod tunnel;

// Programs, and what starts, watches and stops them.
pub mod anchor;
pub mod app;
pub mod client;
pub mod config;
pub mod kubernetes;
