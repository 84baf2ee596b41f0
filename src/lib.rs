//! Switchboard: an SSH ingress for Kubernetes. One public port takes HTTP CONNECT, finds the target in an allowlist,
//! dials it and relays bytes.
//!
//! The parts are listed from the lowest layer to the highest, and each imports only lower ones; `cli` belongs to the
//! binary. The features `anchor`, then `server`, add modules, which no module of a smaller build imports.
//! `tests/architecture/` proves both.

#![cfg_attr(
    not(feature = "server"),
    expect(
        dead_code,
        reason = "shared modules have items that only the server uses; the server's build finds dead ones"
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
