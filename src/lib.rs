//! Switchboard: an SSH ingress for Kubernetes. One public port takes HTTP CONNECT, finds the target in an allowlist,
//! dials it and relays bytes.
//!
//! The modules stand in layers, and an import goes down or sideways, never up. What the feature `anchor` switches on is
//! imported by nothing that is always there, and what `server` switches on by neither. `tests/architecture/` proves both.

#![cfg_attr(
    not(feature = "server"),
    expect(
        dead_code,
        reason = "the modules that several builds share hold what the server alone uses; its build finds what is dead"
    )
)]

// Values: neither async nor I/O.
#[cfg(feature = "anchor")]
mod access_line;
#[cfg(feature = "anchor")]
pub mod api;
pub mod authority;
#[cfg(feature = "anchor")]
mod cold;
#[cfg(feature = "server")]
pub mod credential;
#[cfg(feature = "anchor")]
pub mod direction;
#[cfg(feature = "server")]
mod fnv;
mod json;
#[cfg(feature = "anchor")]
pub mod outcome;
pub mod secret;
mod text;
pub mod units;
mod user_name;
mod values;

// Machinery: one mechanism each.
#[cfg(feature = "anchor")]
pub mod drain;
#[cfg(feature = "anchor")]
pub mod exposition;
mod file;
mod keepalive;
#[cfg(feature = "anchor")]
pub mod limits;
#[cfg(feature = "anchor")]
pub mod net;
pub mod platform;
mod yaml;

// Protocols: what moves and carries bytes.
mod end_notice;
mod http2;
#[cfg(feature = "anchor")]
pub mod relay;
pub mod resume;
#[cfg(feature = "server")]
pub mod ssh;
mod ssh_disconnect;
pub mod ticket;
#[cfg(feature = "server")]
pub mod tls;
mod tls_records;
pub mod x509;

// Lookups: the request, its user and its target, and the counters.
#[cfg(feature = "server")]
pub mod access;
#[cfg(feature = "server")]
pub mod allowlist;
#[cfg(feature = "server")]
pub mod connect;
#[cfg(feature = "server")]
pub mod metrics;

// The stages of one connection.
#[cfg(feature = "server")]
pub mod tunnel;

// Programs, and what starts, watches and stops them.
#[cfg(feature = "anchor")]
pub mod anchor;
#[cfg(feature = "server")]
pub mod app;
pub mod client;
#[cfg(feature = "server")]
pub mod config;
#[cfg(feature = "anchor")]
pub mod daemon;
#[cfg(feature = "server")]
pub mod desk;
#[cfg(feature = "server")]
pub mod import;
#[cfg(feature = "server")]
pub mod kubernetes;
#[cfg(feature = "server")]
pub mod operator;
