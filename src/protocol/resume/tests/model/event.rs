//! The events of the model.

use proptest::prelude::*;

/// One of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Client,
    Anchor,
}

/// The next event.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// The source of a side has bytes.
    Write(Role, usize),
    /// The source of a side ends.
    Finish(Role),
    /// The source of a side puts bytes into the memory of the session, if there is any.
    Fill(Role, usize),
    /// The program beside a side takes bytes, or the end of the stream.
    Pass(Role, usize),
    /// A side hands bytes to its connection: copies of those of the stream.
    Transmit(Role, usize),
    /// The connection takes so many bytes of the frames that a side has begun to write, and has others begun.
    TransmitKept(Role, usize, usize),
    /// The connection hands bytes to a side, and its program takes so many of the stream at once.
    Deliver(Role, usize, usize),
    /// The connection is gone with all that is on it. A side that is not told goes on as before.
    Cut { tells_client: bool, tells_anchor: bool },
    /// The client opens a connection. The handshake is cut after so many bytes, if there are.
    Resume(usize),
    /// Time goes by.
    Wait(u64),
    /// The memory of a side changes.
    SetWindow(Role, u32),
}

impl Role {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Client => Self::Anchor,
            Self::Anchor => Self::Client,
        }
    }
}

/// Either side.
pub(super) fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Client), Just(Role::Anchor)]
}

/// Any event.
pub(super) fn event() -> impl Strategy<Value = Event> {
    let bytes = || prop_oneof![1..50_usize, 1..60_000_usize];
    prop_oneof![
        4 => (role(), bytes()).prop_map(|(role, bytes)| Event::Write(role, bytes)),
        3 => (role(), bytes()).prop_map(|(role, bytes)| Event::Fill(role, bytes)),
        1 => role().prop_map(Event::Finish),
        6 => (role(), bytes()).prop_map(|(role, bytes)| Event::Pass(role, bytes)),
        3 => (role(), bytes()).prop_map(|(role, bytes)| Event::Transmit(role, bytes)),
        8 => (role(), bytes(), bytes()).prop_map(|(role, bytes, max)| Event::TransmitKept(role, bytes, max)),
        8 => (role(), bytes(), 0..20_000_usize).prop_map(|(role, bytes, now)| Event::Deliver(role, bytes, now)),
        2 => any::<(bool, bool)>().prop_map(|(tells_client, tells_anchor)| Event::Cut { tells_client, tells_anchor }),
        3 => prop_oneof![Just(usize::MAX), 0..600_usize].prop_map(Event::Resume),
        2 => (0..6_000_u64).prop_map(Event::Wait),
        1 => (role(), 0..100_000_u32).prop_map(|(role, window)| Event::SetWindow(role, window)),
    ]
}

/// Returns the windows of both sides.
pub(super) fn windows() -> impl Strategy<Value = (u32, u32)> {
    (4096..80_000_u32, 4096..80_000_u32)
}
