//! The limits of tunnels, targets, clients and the process, as the configuration sets them.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::Deserialize;

pub use self::caps::{ClientCaps, TargetCaps, TotalCaps, UserCaps};

pub mod bucket;
pub mod budget;
mod caps;
pub mod connect_rate;
pub mod descriptors;
pub(crate) mod event_rate;
pub mod owners;
pub mod queue;
pub mod slots;
pub mod throttle;
pub mod unfinished;

pub use crate::base::units::{Rate, Size, UnitError};
use crate::base::yaml::forms;
use crate::tunnel::direction::Both;

/// The limits of one tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TunnelLimits {
    /// The rate from the target to the client.
    pub download: Rate,
    /// The rate from the client to the target.
    pub upload: Rate,
    /// The bytes that a direction may move at once after it was idle, whatever its rate.
    pub burst: Size,
    /// The longest life of a tunnel; `None` is unlimited.
    #[serde(deserialize_with = "forms::one::<forms::TimeoutOrUnlimited, _>")]
    pub lifetime: Option<Duration>,
}

impl TunnelLimits {
    /// Returns these limits with the overrides of a target applied.
    pub fn overridden(self, overrides: &TunnelOverrides) -> Self {
        Self {
            download: overrides.download.unwrap_or(self.download),
            upload: overrides.upload.unwrap_or(self.upload),
            burst: overrides.burst.unwrap_or(self.burst),
            lifetime: overrides.lifetime.unwrap_or(self.lifetime),
        }
    }
}

/// Unlimited, with a burst of 1 MiB for rates that are set later.
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

/// The limits that a target sets for its own tunnels; `None` leaves the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TunnelOverrides {
    /// See [`TunnelLimits::download`].
    pub download: Option<Rate>,
    /// See [`TunnelLimits::upload`].
    pub upload: Option<Rate>,
    /// See [`TunnelLimits::burst`].
    pub burst: Option<Size>,
    /// See [`TunnelLimits::lifetime`].
    #[serde(deserialize_with = "forms::some::<forms::TimeoutOrUnlimited, _>")]
    pub lifetime: Option<Option<Duration>>,
}

/// The rates that many tunnels share: those of a target, of a limit owner, or of the process.
pub type SharedLimits = Both<Rate>;

/// The limits of each client, or of each user.
#[derive(Clone, Copy, Debug)]
pub struct OwnerLimits {
    /// The rates of all of its tunnels together.
    pub rates: SharedLimits,
    /// The burst of those rates.
    pub burst: Size,
    /// The most tunnels, including those still being dialled.
    pub tunnels: Option<NonZeroU32>,
    /// The most connections of anchors that dial in.
    pub anchors: Option<NonZeroU32>,
    /// The most unfinished connections.
    pub unfinished: Option<NonZeroU32>,
}

/// The limits of one target and of each of its tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetLimits {
    /// The limits of each of its tunnels.
    pub tunnel: TunnelLimits,
    /// The rates of all of its tunnels together, and the most tunnels and dials at once.
    pub caps: TargetCaps,
    /// True if no further tunnel may be opened.
    pub is_closed: bool,
    /// The longest idle time of its tunnels, where `Some(None)` is unlimited; `None` leaves the default.
    pub idle: Option<Option<Duration>>,
    /// True if both sides of its tunnels must begin with an SSH identification.
    pub ssh_only: bool,
    /// See [`Limits::reports`].
    pub reports: bool,
}

/// The defaults, for tunnels that carry SSH.
impl Default for TargetLimits {
    fn default() -> Self {
        Self {
            tunnel: TunnelLimits::default(),
            caps: TargetCaps::default(),
            is_closed: false,
            idle: None,
            ssh_only: true,
            reports: false,
        }
    }
}

/// These limits of each tunnel, and the defaults of the target.
impl From<TunnelLimits> for TargetLimits {
    fn from(tunnel: TunnelLimits) -> Self {
        Self {
            tunnel,
            ..Self::default()
        }
    }
}

/// The most that the annotations of a Service may ask for. The configuration itself is not bound by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ceiling {
    /// The highest rate from the target to the client.
    pub download: Rate,
    /// The highest rate from the client to the target.
    pub upload: Rate,
    /// True if the annotation `ssh-only: "false"` is ignored.
    pub ssh_only: bool,
}

/// The annotations of a Service that need other settings: true if those let them have an effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsableAnnotations {
    /// `allowed-clients`: a port asks clients for certificates.
    pub allowed_clients: bool,
    /// `allowed-users` and `allowed-groups`: users are authenticated.
    pub allowed_users: bool,
    /// `dials-in`: anchors may dial in.
    pub dials_in: bool,
    /// `host-keys`: those of annotations are published.
    pub host_keys: bool,
}

/// All limits of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The limits of each tunnel, unless its target overrides them.
    pub tunnel: TunnelLimits,
    /// The limits of all tunnels of one target together.
    pub target: TargetCaps,
    /// The limits of all tunnels of one client together.
    pub client: ClientCaps,
    /// The limits of all tunnels of one user together.
    pub user: UserCaps,
    /// The limits of all tunnels together.
    pub process: TotalCaps,
    /// The most that the annotations of a Service may ask for.
    pub ceiling: Ceiling,
    /// [`TargetLimits::ssh_only`] of the targets that do not set it themselves.
    pub ssh_only: bool,
    /// True if `ssh_only` refuses nothing, and tunnels that it would refuse are reported (`allowlist.report_only`).
    pub reports: bool,
    /// The annotations that have an effect.
    pub annotations: UsableAnnotations,
}

/// The defaults, for tunnels that carry SSH.
impl Default for Limits {
    fn default() -> Self {
        Self {
            tunnel: TunnelLimits::default(),
            target: TargetCaps::default(),
            client: ClientCaps::default(),
            user: UserCaps::default(),
            process: TotalCaps::default(),
            ceiling: Ceiling::default(),
            ssh_only: true,
            reports: false,
            annotations: UsableAnnotations::default(),
        }
    }
}

impl Limits {
    /// Returns the limits of a target with these overrides. `ssh_only` is the target's setting, `None` for the default.
    pub fn of_target(&self, tunnel: &TunnelOverrides, ssh_only: Option<bool>) -> TargetLimits {
        TargetLimits {
            tunnel: self.tunnel.overridden(tunnel),
            caps: self.target,
            ssh_only: ssh_only.unwrap_or(self.ssh_only),
            reports: self.reports,
            ..TargetLimits::default()
        }
    }

    /// Returns the limits of each client.
    pub fn client_limits(&self) -> OwnerLimits {
        let ClientCaps { download, upload, .. } = self.client;
        OwnerLimits {
            rates: Both { upload, download },
            burst: self.tunnel.burst,
            tunnels: self.client.tunnels,
            anchors: None,
            unfinished: self.client.unfinished,
        }
    }

    /// Returns the limits of each user. Unfinished connections count against clients only.
    pub fn user_limits(&self) -> OwnerLimits {
        let UserCaps {
            download,
            upload,
            tunnels,
            anchors,
        } = self.user;
        OwnerLimits {
            rates: Both { upload, download },
            burst: self.tunnel.burst,
            tunnels,
            anchors,
            unfinished: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_ssh_only_as_it_says_itself_or_else_as_the_process_does() {
        for (process, target, expected) in [
            (true, None, true),
            (true, Some(false), false),
            (true, Some(true), true),
            (false, None, false),
            (false, Some(false), false),
            (false, Some(true), true),
        ] {
            let limits = Limits {
                ssh_only: process,
                ..Limits::default()
            };
            let of_target = limits.of_target(&TunnelOverrides::default(), target);
            assert_eq!(of_target.ssh_only, expected, "{process} {target:?}");
        }
        assert!(Limits::default().ssh_only && TargetLimits::default().ssh_only);
    }
}
