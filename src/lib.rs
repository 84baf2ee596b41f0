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

pub mod net;

#[cfg(feature = "anchor")]
pub mod anchor;
pub mod base;
pub mod client;
#[cfg(feature = "anchor")]
pub mod daemon;
#[cfg(feature = "server")]
pub mod kubernetes;
#[cfg(feature = "server")]
pub mod operator;
#[cfg(feature = "server")]
pub mod policy;
pub mod protocol;
#[cfg(feature = "server")]
pub mod proxy;
#[cfg(feature = "anchor")]
pub mod tunnel;
