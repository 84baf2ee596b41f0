//! Caps on tunnels, connections and dials, which take descriptors and memory, and the rates that several tunnels share.
//! `None` is unlimited.

use std::num::NonZeroU32;

use serde::Deserialize;

use crate::base::units::Rate;
use crate::base::yaml::forms;
use crate::tunnel::direction::Both;

/// The limits of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TotalCaps {
    /// The rate from the targets to the clients.
    pub download: Rate,
    /// The rate from the clients to the targets.
    pub upload: Rate,
    /// The most tunnels, including those still being dialled.
    #[serde(rename = "max_tunnels", deserialize_with = "forms::one::<forms::Cap, _>")]
    pub tunnels: Option<NonZeroU32>,
    /// The most unfinished connections: their request is incomplete, or its refusal unread.
    #[serde(rename = "max_unfinished", deserialize_with = "forms::one::<forms::Cap, _>")]
    pub unfinished: Option<NonZeroU32>,
}

impl TotalCaps {
    /// Returns the rates of all tunnels together.
    pub fn rates(&self) -> Both<Rate> {
        let Self { download, upload, .. } = *self;
        Both { upload, download }
    }
}

/// 100,000 tunnels, and 4,096 unfinished connections: the length of the kernel's accept queue (net.core.somaxconn).
impl Default for TotalCaps {
    fn default() -> Self {
        Self {
            download: Rate::UNLIMITED,
            upload: Rate::UNLIMITED,
            tunnels: NonZeroU32::new(100_000),
            unfinished: NonZeroU32::new(4096),
        }
    }
}

/// The limits of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientCaps {
    /// The rate from the targets to the client.
    pub download: Rate,
    /// The rate from the client to the targets.
    pub upload: Rate,
    /// The most tunnels, including those still being dialled.
    #[serde(rename = "max_tunnels", deserialize_with = "forms::one::<forms::Cap, _>")]
    pub tunnels: Option<NonZeroU32>,
    /// The most unfinished connections: their request is incomplete, or its refusal unread.
    #[serde(rename = "max_unfinished", deserialize_with = "forms::one::<forms::Cap, _>")]
    pub unfinished: Option<NonZeroU32>,
    /// The most new connections a second in the long run.
    #[serde(deserialize_with = "forms::one::<forms::Cap, _>")]
    pub connects_per_second: Option<NonZeroU32>,
    /// The most new connections at once after a pause.
    #[serde(deserialize_with = "forms::one::<forms::Count, _>")]
    pub connects_burst: NonZeroU32,
}

/// The needs of an office behind one address: 256 tunnels, 256 unfinished connections, and 50 new connections a second
/// or 200 at once.
impl Default for ClientCaps {
    fn default() -> Self {
        Self {
            download: Rate::UNLIMITED,
            upload: Rate::UNLIMITED,
            tunnels: NonZeroU32::new(256),
            unfinished: NonZeroU32::new(256),
            connects_per_second: NonZeroU32::new(50),
            connects_burst: NonZeroU32::MIN.saturating_add(199),
        }
    }
}

/// The limits of one authenticated user, from any address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UserCaps {
    /// The rate from the targets to the user.
    pub download: Rate,
    /// The rate from the user to the targets.
    pub upload: Rate,
    /// The most tunnels, including those still being dialled.
    #[serde(rename = "max_tunnels", deserialize_with = "forms::one::<forms::Cap, _>")]
    pub tunnels: Option<NonZeroU32>,
    /// The most connections of anchors that dial in.
    #[serde(rename = "max_anchors", deserialize_with = "forms::one::<forms::Cap, _>")]
    pub anchors: Option<NonZeroU32>,
}

/// The needs of one developer: 64 tunnels, and as many anchors.
impl Default for UserCaps {
    fn default() -> Self {
        Self {
            download: Rate::UNLIMITED,
            upload: Rate::UNLIMITED,
            tunnels: NonZeroU32::new(64),
            anchors: NonZeroU32::new(64),
        }
    }
}

/// The limits of one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TargetCaps {
    /// The rate from the target to the clients.
    pub download: Rate,
    /// The rate from the clients to the target.
    pub upload: Rate,
    /// The most tunnels, including those still being dialled.
    #[serde(rename = "max_tunnels", deserialize_with = "forms::one::<forms::Cap, _>")]
    pub tunnels: Option<NonZeroU32>,
    /// The most dials in progress, the wait for an endpoint included.
    #[serde(rename = "max_dials", deserialize_with = "forms::one::<forms::Cap, _>")]
    pub dials: Option<NonZeroU32>,
}

impl TargetCaps {
    /// Returns the rates of all tunnels of the target together.
    pub fn rates(&self) -> Both<Rate> {
        let Self { download, upload, .. } = *self;
        Both { upload, download }
    }

    /// Returns these caps, with at most the tunnels that a target asks for.
    pub fn lowered(self, asked: Option<NonZeroU32>) -> Self {
        let tunnels = match (self.tunnels, asked) {
            (Some(max), Some(asked)) => Some(max.min(asked)),
            (max, asked) => max.or(asked),
        };
        Self { tunnels, ..self }
    }
}

/// Unlimited tunnels, and 100 dials: sshd accepts no more unauthenticated connections (`MaxStartups 10:30:100`).
impl Default for TargetCaps {
    fn default() -> Self {
        Self {
            download: Rate::UNLIMITED,
            upload: Rate::UNLIMITED,
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
        let lowered = |max, asked| {
            let caps = TargetCaps {
                tunnels: NonZeroU32::new(max),
                ..TargetCaps::default()
            };
            caps.lowered(NonZeroU32::new(asked)).tunnels.map_or(0, NonZeroU32::get)
        };
        for (max, asked, granted) in [(0, 0, 0), (0, 3, 3), (5, 0, 5), (5, 3, 3), (5, 9, 5)] {
            assert_eq!(lowered(max, asked), granted, "{asked} of {max}");
        }
    }
}
