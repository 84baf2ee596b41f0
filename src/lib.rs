//! Switchboard: an SSH ingress for Kubernetes. One public port takes HTTP CONNECT, finds the target in an allowlist,
//! dials it and relays bytes.
//!
//! The modules stand in layers, and an import goes down or sideways, never up; `tests/architecture.rs` proves it.

// Words: values, neither async nor I/O.
pub mod authority;
mod cold;
pub mod direction;
mod fnv;
pub mod outcome;
mod text;
mod values;

// Machinery: one mechanism each.
pub mod drain;
pub mod limits;
pub mod net;
pub mod relay;
pub mod ssh;
pub mod tls;

// The walk of one connection, and what it asks.
pub mod allowlist;
pub mod connect;
pub mod metrics;
pub mod tunnel;

// Programs, and what starts, watches and stops them.
pub mod app;
pub mod client;
pub mod config;
pub mod kubernetes;
