//! Switchboard: an SSH ingress for Kubernetes. One public port takes HTTP CONNECT, finds the target in an allowlist,
//! dials it and relays bytes.
//!
//! The parts stand here from the bottom to the top, and an import goes down, never up; `cli` is the binary's. What the
//! feature `anchor` switches on is imported by nothing that is always there, and what `server` switches on by neither.
//! `tests/architecture/` proves both.

#![cfg_attr(
    not(feature = "server"),
    expect(
        dead_code,
        reason = "the modules that several builds share hold what the server alone uses; its build finds what is dead"
    )
)]

pub mod base;

pub mod net;
pub mod protocol;

#[cfg(feature = "anchor")]
pub mod tunnel;
pub mod uplink;

#[cfg(feature = "server")]
pub mod policy;

#[cfg(feature = "anchor")]
pub mod daemon;
#[cfg(feature = "server")]
pub mod kubernetes;

// Programs, which import nothing of each other.
#[cfg(feature = "anchor")]
pub mod anchor;
pub mod client;
#[cfg(feature = "server")]
pub mod operator;
#[cfg(feature = "server")]
pub mod proxy;
