//! The state that the connections of an anchor share, and its settings.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::destination::{Destination, Dialler};
use super::metrics::Metrics;
use super::record::Lines;
use super::sessions::Sessions;
use crate::protocol::resume::keys::OwnKey;
use crate::tunnel::limits::slots::Slots;
use crate::tunnel::limits::unfinished::Unfinished;
use crate::tunnel::relay::Resources;
use crate::tunnel::relay::meter::Totals;

/// The settings of an anchor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The address for clients.
    pub listen: SocketAddr,
    /// The SSH server.
    pub to: Destination,
    /// The address of `/metrics`, `/livez` and `/readyz`.
    pub admin: Option<SocketAddr>,
    /// How long a session is kept without a connection.
    pub grace: Duration,
    /// The bytes of each stream that are kept until they are acknowledged.
    pub window: u32,
    /// The most sessions, and the most plain connections.
    pub max_sessions: NonZeroU32,
    /// The bytes that all sessions together keep.
    pub memory: usize,
}

/// The state that all connections of an anchor share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: Options,
    pub(super) dialler: Arc<Dialler>,
    pub(super) key: OwnKey,
    pub(super) sessions: Arc<Sessions>,
    /// The connections in the exchange.
    pub(super) exchanges: Unfinished,
    /// The plain connections.
    pub(super) plain: Arc<Slots>,
    pub(super) plain_bytes: Arc<Totals>,
    pub(super) resources: Resources,
    pub(super) metrics: Metrics,
    pub(super) lines: Lines,
    /// Of connections and sessions, in the order in which they came.
    pub(super) numbers: AtomicU64,
    pub(super) stopping: CancellationToken,
    pub(super) tasks: TaskTracker,
}

impl Shared {
    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// A connection of a client, accepted here or made to a place where clients are found.
#[derive(Debug)]
pub(super) struct Connection {
    /// The connection.
    pub(super) stream: TcpStream,
    /// The address of the client.
    pub(super) peer: SocketAddr,
    /// When it was there: the exchange has to be over soon after.
    pub(super) since: Instant,
}

/// How long clients have to answer that the process ends.
pub(super) const LONGEST_STOP: Duration = Duration::from_secs(5);
