//! Caps: the most tunnels, connections and dials at once, which take descriptors and memory. `None` is unlimited.
//! Rates are in `limits.rs`.

use std::num::NonZeroU32;

/// All caps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// The caps of the process.
    pub total: TotalCaps,
    /// The caps of each client.
    pub client: ClientCaps,
    /// The caps of each user that is known.
    pub user: UserCaps,
    /// The caps of each target.
    pub target: TargetCaps,
}

/// The caps of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TotalCaps {
    /// The most tunnels, those that are still dialled included.
    pub tunnels: Option<NonZeroU32>,
    /// The most unfinished connections: those whose request is not complete.
    pub unfinished: Option<NonZeroU32>,
}

/// 100,000 tunnels, and 4,096 unfinished connections: the length of the kernel's accept queue (net.core.somaxconn).
impl Default for TotalCaps {
    fn default() -> Self {
        Self {
            tunnels: NonZeroU32::new(100_000),
            unfinished: NonZeroU32::new(4096),
        }
    }
}

/// The caps of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientCaps {
    /// The most tunnels, those that are still dialled included.
    pub tunnels: Option<NonZeroU32>,
    /// The most unfinished connections: those whose request is not complete.
    pub unfinished: Option<NonZeroU32>,
    /// The most new connections a second in the long run.
    pub connects_per_second: Option<NonZeroU32>,
    /// The most new connections at once after a pause.
    pub connects_burst: NonZeroU32,
}

/// The needs of an office behind one address: 256 tunnels, 256 unfinished connections, and 50 new ones a second or 200 at
/// once.
impl Default for ClientCaps {
    fn default() -> Self {
        Self {
            tunnels: NonZeroU32::new(256),
            unfinished: NonZeroU32::new(256),
            connects_per_second: NonZeroU32::new(50),
            connects_burst: NonZeroU32::MIN.saturating_add(199),
        }
    }
}

/// The caps of one user that is known, wherever that user connects from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserCaps {
    /// The most tunnels, those that are still dialled included.
    pub tunnels: Option<NonZeroU32>,
}

/// The needs of one developer: 64 tunnels.
impl Default for UserCaps {
    fn default() -> Self {
        Self {
            tunnels: NonZeroU32::new(64),
        }
    }
}

/// The caps of one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetCaps {
    /// The most tunnels, those that are still dialled included.
    pub tunnels: Option<NonZeroU32>,
    /// The most dials in progress, the wait for an endpoint included.
    pub dials: Option<NonZeroU32>,
}

impl TargetCaps {
    /// These caps, with the number of tunnels that a target asks for if that is lower.
    pub fn lowered(self, asked: Option<NonZeroU32>) -> Self {
        let tunnels = match (self.tunnels, asked) {
            (Some(most), Some(asked)) => Some(most.min(asked)),
            (most, asked) => most.or(asked),
        };
        Self { tunnels, ..self }
    }
}

/// Unlimited tunnels, and 100 dials: sshd accepts no more unauthenticated connections at once (`MaxStartups 10:30:100`).
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
    fn a_target_can_lower_its_cap_and_not_raise_it() {
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
