//! The flags of `serve` and `check` that go over settings of the file.

use std::net::SocketAddr;

use clap::Args;
use switchboard::policy::allowlist::StaticTarget;
use switchboard::proxy::config::Overrides;

use crate::cli::start::address;

/// What goes over the settings of the file.
#[derive(Args)]
pub(crate) struct OverrideFlags {
    /// Serve clients at this address, in place of the file's (repeatable)
    #[arg(long, env = "SWITCHBOARD_LISTEN", value_name = "ADDR", value_parser = address, value_delimiter = ',')]
    listen: Vec<SocketAddr>,
    /// Serve /metrics, /livez and /readyz at this address
    #[arg(long, env = "SWITCHBOARD_ADMIN", value_name = "ADDR", value_parser = address)]
    admin: Option<SocketAddr>,
    /// Allow this target, besides the file's (repeatable; separated by spaces in the environment)
    #[arg(
        long,
        env = "SWITCHBOARD_ALLOW",
        value_name = "NAME:PORT=ADDR[,ADDR…]",
        value_delimiter = ' '
    )]
    allow: Vec<StaticTarget>,
}

impl From<OverrideFlags> for Overrides {
    fn from(flags: OverrideFlags) -> Self {
        let OverrideFlags { listen, admin, allow } = flags;
        Self { listen, admin, allow }
    }
}
