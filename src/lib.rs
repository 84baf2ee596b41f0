//! Switchboard: an SSH ingress for Kubernetes. One public port takes HTTP CONNECT, finds the target in an allowlist,
//! dials it and relays bytes.
//!
//! The modules stand in layers, and an import goes down or sideways, never up; `tests/architecture.rs` proves it.

// Words: values, neither async nor I/O.
pub mod authority;
pub mod limits;
pub mod outcome;

// Machinery: one mechanism each.
pub mod budget;
pub mod crowd;
pub mod descriptors;
pub mod dial;
pub mod drain;
pub mod end;
pub mod identification;
pub mod listener;
pub mod meter;
pub mod pace;
pub mod places;
pub mod proxy_header;
pub mod readiness;
pub mod relay;
pub mod socket;
pub mod throttle;
pub mod tls;

// Tunnel: what happens to one connection.
pub mod allowlist;
pub mod arrival;
pub mod clients;
pub mod connect;
pub mod door;
pub mod metrics;
pub mod record;
pub mod tunnel;

// Around: what starts, watches and stops it.
pub mod admin;
pub mod app;
pub mod client;
pub mod config;
pub mod drain_request;
pub mod logging;
pub mod renewal;
pub mod services;
