//! The state that the connections of an anchor share, and its settings.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::metrics::Metrics;
use super::record::AccessLineLimit;
use super::registry::SessionRegistry;
use super::target_addr::{TargetAddr, TargetDialer};
use crate::base::file;
use crate::base::units::{Size, UnitError};
use crate::base::values::{address, timeout};
use crate::protocol::host_key::HostKeys;
use crate::protocol::resume::keys::AgreementKey;
use crate::protocol::resume::window;
use crate::tunnel::host_key_files::HostKeyFiles;
use crate::tunnel::limits::slots::Slots;
use crate::tunnel::limits::unfinished::UnfinishedSet;
use crate::tunnel::relay::Resources;
use crate::tunnel::relay::meter::Totals;

/// The settings of an anchor: the arguments of the program.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Serve clients at this address [default: [::]:2222, or none with --dial]
    #[arg(long, env = "SWITCHBOARD_ANCHOR_LISTEN", value_name = "ADDR", value_parser = address)]
    pub listen: Option<SocketAddr>,
    /// Connect clients to the SSH server at this address, or at this name, which is resolved for each connection
    #[arg(
        long,
        env = "SWITCHBOARD_ANCHOR_TO",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:22"
    )]
    pub to: TargetAddr,
    /// Publish these public host keys of the SSH server, or `none` [default: /etc/ssh/ssh_host_*_key.pub with --to at port 22 of this host]
    #[arg(long, env = "SWITCHBOARD_ANCHOR_HOST_KEYS", value_name = "FILE", num_args = 1.., value_delimiter = ' ')]
    pub host_keys: Vec<PathBuf>,
    /// Serve /metrics, /livez, /readyz and, for processes of this host, /drain at this address
    #[arg(long, env = "SWITCHBOARD_ADMIN", value_name = "ADDR", value_parser = address)]
    pub admin: Option<SocketAddr>,
    /// Keep a session without a connection for this long
    #[arg(long, value_name = "DURATION", value_parser = timeout, default_value = "24h")]
    pub grace: Duration,
    /// Keep up to this many unacknowledged bytes of each direction of a session, 4KiB to 64MiB
    #[arg(long, value_name = "SIZE", value_parser = window, default_value = "2MiB")]
    pub window: u32,
    /// Keep at most this many sessions, and as many plain connections
    #[arg(long, value_name = "N", default_value = "1000")]
    pub max_sessions: NonZeroU32,
    /// Keep at most this many bytes of all sessions together, 64KiB or more
    #[arg(long, value_name = "SIZE", value_parser = memory, default_value = "256MiB")]
    pub memory: usize,
}

impl Options {
    /// Returns the files of host keys; `None` if none are published. The default is the files that can be read now.
    pub(super) fn host_key_files(&self) -> Option<HostKeyFiles> {
        let files = self.host_keys.as_slice();
        if !files.is_empty() {
            let is_off = files == [Path::new("none")];
            return (!is_off).then(|| files.iter().cloned().collect());
        }
        let is_own = match &self.to {
            TargetAddr::Address(to) => to.ip().to_canonical().is_loopback() && to.port() == 22,
            TargetAddr::Name(name) => &**name == "localhost:22",
        };
        let readable = DEFAULT_KEYS
            .iter()
            .filter(|path| is_own && file::open(Path::new(path)).is_ok());
        let files: Vec<_> = readable.map(PathBuf::from).collect();
        (!files.is_empty()).then(|| files.into_iter().collect())
    }
}

/// Parses `--memory`. With less than [`MIN_MEMORY`] even the first session would have no usable window.
fn memory(text: &str) -> Result<usize, String> {
    let size: Size = text.parse().map_err(|error: UnitError| error.to_string())?;
    match size.get() {
        0..MIN_MEMORY => Err("an anchor has 64KiB or more".to_owned()),
        size => Ok(usize::try_from(size).unwrap_or(usize::MAX)),
    }
}

/// The state that all connections of an anchor share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: Options,
    pub(super) dialer: Arc<TargetDialer>,
    pub(super) key: AgreementKey,
    /// The files of the host keys that are published, if there are any.
    pub(super) host_keys: Option<HostKeyFiles>,
    pub(super) sessions: Arc<SessionRegistry>,
    /// The connections in the handshake.
    pub(super) handshakes: UnfinishedSet,
    /// The slots of plain connections.
    pub(super) plain: Arc<Slots>,
    pub(super) plain_bytes: Arc<Totals>,
    pub(super) resources: Resources,
    pub(super) metrics: Metrics,
    pub(super) lines: AccessLineLimit,
    /// The last number given to a connection or an access line.
    pub(super) numbers: AtomicU64,
    pub(super) stopping: CancellationToken,
    pub(super) tasks: TaskTracker,
}

impl Shared {
    /// Returns the host keys that are published now.
    pub(super) fn host_keys(&self) -> Arc<HostKeys> {
        self.host_keys.as_ref().and_then(HostKeyFiles::keys).unwrap_or_default()
    }

    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The host keys that ssh-keygen makes for an SSH server (ssh-keygen(1), `-A`).
const DEFAULT_KEYS: [&str; 3] = [
    "/etc/ssh/ssh_host_ed25519_key.pub",
    "/etc/ssh/ssh_host_ecdsa_key.pub",
    "/etc/ssh/ssh_host_rsa_key.pub",
];
const MIN_MEMORY: u64 = 64 << 10;
/// How long clients have to acknowledge a shutdown.
pub(super) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of connections in the handshake. One more evicts the oldest, as a handshake should be short: a resume
/// takes two round trips.
pub(super) const MAX_HANDSHAKES: u32 = 512;
