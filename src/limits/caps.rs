//! How many there may be: tunnels, connections, dials.

use std::num::NonZeroU32;

/// How many there may be of what takes descriptors and memory. `None` is any number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// Of the process.
    pub total: TotalCaps,
    /// Of each client.
    pub client: ClientCaps,
    /// Of each target.
    pub target: TargetCaps,
}

/// How many there may be at once in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TotalCaps {
    /// Tunnels, those that are dialled included.
    pub tunnels: Option<NonZeroU32>,
    /// Connections whose request is not complete.
    pub unfinished: Option<NonZeroU32>,
}

/// 100,000 tunnels, and 4,096 connections without one: as many as the kernel holds back for us.
impl Default for TotalCaps {
    fn default() -> Self {
        Self {
            tunnels: NonZeroU32::new(100_000),
            unfinished: NonZeroU32::new(4096),
        }
    }
}

/// How many there may be of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientCaps {
    /// Tunnels, those that are dialled included.
    pub tunnels: Option<NonZeroU32>,
    /// Connections whose request is not complete.
    pub unfinished: Option<NonZeroU32>,
    /// New connections, in the long run.
    pub connects_per_second: Option<NonZeroU32>,
    /// New connections at once, after a pause.
    pub connects_burst: NonZeroU32,
}

/// An office behind one address: 256 tunnels, 128 connections without one, and 50 new ones a second or 200 at once.
impl Default for ClientCaps {
    fn default() -> Self {
        Self {
            tunnels: NonZeroU32::new(256),
            unfinished: NonZeroU32::new(128),
            connects_per_second: NonZeroU32::new(50),
            connects_burst: NonZeroU32::MIN.saturating_add(199),
        }
    }
}

/// How many there may be of one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetCaps {
    /// Tunnels, those that are dialled included.
    pub tunnels: Option<NonZeroU32>,
    /// Dials under way, the wait for an endpoint included.
    pub dials: Option<NonZeroU32>,
}

impl TargetCaps {
    /// These, with no more tunnels than a target asks for.
    pub fn lowered(self, asked: Option<NonZeroU32>) -> Self {
        let tunnels = match (self.tunnels, asked) {
            (Some(most), Some(asked)) => Some(most.min(asked)),
            (most, asked) => most.or(asked),
        };
        Self { tunnels, ..self }
    }
}

/// Any number of tunnels, and 100 dials: sshd takes no more at once (`MaxStartups 10:30:100`).
impl Default for TargetCaps {
    fn default() -> Self {
        Self {
            tunnels: None,
            dials: NonZeroU32::new(100),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_may_ask_for_less_and_not_for_more() {
        let lowered = |most, asked| {
            let caps = TargetCaps {
                tunnels: NonZeroU32::new(most),
                ..TargetCaps::default()
            };
            caps.lowered(NonZeroU32::new(asked)).tunnels.map_or(0, NonZeroU32::get)
        };
        for (most, asked, granted) in [(0, 0, 0), (0, 3, 3), (5, 0, 5), (5, 3, 3), (5, 9, 5)] {
            assert_eq!(lowered(most, asked), granted, "{asked} of {most}");
        }
    }
}
