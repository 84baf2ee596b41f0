//! The limits of tunnels, targets, clients and the process, as the configuration sets them.

use std::time::Duration;

pub use self::caps::{Caps, ClientCaps, TargetCaps, TotalCaps};
pub use self::units::{Rate, Size, UnitError};

pub mod budget;
mod caps;
pub mod clients;
pub mod connect_rate;
pub mod descriptors;
pub mod slots;
pub mod throttle;
pub mod unfinished;
mod units;

/// What bounds one tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelLimits {
    /// Target to client.
    pub download: Rate,
    /// Client to target.
    pub upload: Rate,
    /// What a direction may move at once after it was idle, whatever its rate.
    pub burst: Size,
    /// The longest a tunnel may live; `None` is for ever.
    pub lifetime: Option<Duration>,
}

impl TunnelLimits {
    /// These limits, with those that a target sets itself in their place.
    pub fn overridden(self, by: &TunnelOverrides) -> Self {
        Self {
            download: by.download.unwrap_or(self.download),
            upload: by.upload.unwrap_or(self.upload),
            burst: by.burst.unwrap_or(self.burst),
            lifetime: by.lifetime.unwrap_or(self.lifetime),
        }
    }
}

/// Unlimited for ever, with a burst of 1 MiB for the rates that are set later.
impl Default for TunnelLimits {
    fn default() -> Self {
        Self {
            download: Rate::UNLIMITED,
            upload: Rate::UNLIMITED,
            burst: Size::MEBIBYTE,
            lifetime: None,
        }
    }
}

/// What one target sets for its own tunnels; `None` leaves the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelOverrides {
    /// Target to client.
    pub download: Option<Rate>,
    /// Client to target.
    pub upload: Option<Rate>,
    /// See [`TunnelLimits::burst`].
    pub burst: Option<Size>,
    /// See [`TunnelLimits::lifetime`].
    pub lifetime: Option<Option<Duration>>,
    /// See [`TargetLimits::any_protocol`].
    pub any_protocol: Option<bool>,
}

/// Rates that many tunnels share: those of a target, of a client, or of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedLimits {
    /// Target to client, all of them together.
    pub download: Rate,
    /// Client to target, all of them together.
    pub upload: Rate,
}

/// Unlimited.
impl Default for SharedLimits {
    fn default() -> Self {
        Self {
            download: Rate::UNLIMITED,
            upload: Rate::UNLIMITED,
        }
    }
}

/// What bounds one target and each of its tunnels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetLimits {
    /// Each of its tunnels.
    pub tunnel: TunnelLimits,
    /// All of its tunnels together.
    pub shared: SharedLimits,
    /// How many tunnels and dials it may have at once.
    pub caps: TargetCaps,
    /// The longest silence of its tunnels, where `Some(None)` is for ever; `None` leaves the default.
    pub idle: Option<Option<Duration>>,
    /// Whether its tunnels may begin otherwise than SSH does.
    pub any_protocol: bool,
}

/// The most that a target may set for its own tunnels, where it is not the operator who sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ceiling {
    /// Target to client.
    pub download: Rate,
    /// Client to target.
    pub upload: Rate,
    /// Whether it may not have tunnels that begin otherwise than SSH does.
    pub ssh_only: bool,
}

/// Unlimited.
impl Default for Ceiling {
    fn default() -> Self {
        Self {
            download: Rate::UNLIMITED,
            upload: Rate::UNLIMITED,
            ssh_only: false,
        }
    }
}

/// Every limit of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Each tunnel, unless its target sets its own.
    pub tunnel: TunnelLimits,
    /// All tunnels of one target together.
    pub target: SharedLimits,
    /// All tunnels of one client together.
    pub client: SharedLimits,
    /// All tunnels together.
    pub total: SharedLimits,
    /// What the annotations of a Service may ask for.
    pub ceiling: Ceiling,
    /// How many there may be.
    pub caps: Caps,
    /// Whether a target that does not say may have tunnels that begin otherwise than SSH does.
    pub any_protocol: bool,
}

impl Limits {
    /// Those of a target that sets some for its tunnels.
    pub fn of_target(&self, tunnel: &TunnelOverrides) -> TargetLimits {
        TargetLimits {
            tunnel: self.tunnel.overridden(tunnel),
            shared: self.target,
            caps: self.caps.target,
            any_protocol: tunnel.any_protocol.unwrap_or(self.any_protocol),
            ..TargetLimits::default()
        }
    }
}

/// Limits of its tunnels, and nothing else.
impl From<TunnelLimits> for TargetLimits {
    fn from(tunnel: TunnelLimits) -> Self {
        Self {
            tunnel,
            ..Self::default()
        }
    }
}
