//! The SSH server of the jump host: a client's one channel `direct-tcpip` is the client's end of a tunnel.
//!
//! The library is russh. It lets a peer send more as soon as bytes have come, not when they have been passed on, so
//! channels that share a connection would wait for each other: a connection carries one at a time. Bytes that wait for
//! the target are bounded by not reading the socket. Nor are WINDOW_ADJUST and KEXINIT read then: while a target takes
//! nothing, its client's download ends at the client's window.

#![cfg_attr(
    not(feature = "jump"),
    expect(dead_code, reason = "only the server makes channels and requests")
)]

mod channel;
mod gate;
mod request;
#[cfg(feature = "jump")]
mod server;
#[cfg(not(feature = "jump"))]
#[path = "jump/absent.rs"]
mod server;

pub use self::channel::Channel;
pub use self::request::{ChannelRequest, Event, Login, LoginRule, Proof, UserCertificate};
pub use self::server::{Connection, JumpHost};
