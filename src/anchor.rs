//! The program `anchor`: runs next to an SSH server, and keeps the sessions that clients resume (`docs/resume.md`).
//!
//! After its handshake a connection is relayed for a plain client, begins a session, or resumes one. Each session has a
//! task, which owns the connection to the SSH server.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use self::dial_in::Coverage;
use self::link::Link;
use self::metrics::Metrics;
use self::record::AccessLineLimit;
use self::registry::{Connection, SessionRegistry};
pub use self::shared::Options;
use self::shared::{MAX_HANDSHAKES, SHUTDOWN_TIMEOUT, Shared};
pub use self::target_addr::TargetAddr;
use self::target_addr::{TargetDialer, is_self};
use crate::base::authority::Authority;
use crate::base::follow::{ReloadResult, follow};
use crate::daemon::admin::{self, DrainStatus, Handlers, Routes};
use crate::daemon::logging::Logs;
use crate::daemon::readiness::{Condition, Readiness};
use crate::daemon::vital::keep_running;
use crate::net::listener;
use crate::protocol::host_key;
use crate::protocol::resume::keys::{AgreementKey, CryptoError};
use crate::protocol::resume::reason::EndReason;
use crate::tunnel::exposition::{self, raise_to};
use crate::tunnel::host_key_files::{HostKeyFiles, POLL_INTERVAL};
use crate::tunnel::limits::TotalCaps;
use crate::tunnel::limits::descriptors::{FdLimit, TooFewFds};
use crate::tunnel::limits::slots::Slots;
use crate::tunnel::limits::unfinished::UnfinishedSet;
use crate::tunnel::relay::Resources;
use crate::uplink;

mod dial;
mod dial_in;
mod handshake;
mod link;
mod memory;
pub mod metrics;
mod plain;
mod record;
mod registry;
mod session;
mod shared;
mod target;
mod target_addr;

/// Why an anchor did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The limit of open files is too low.
    #[error(transparent)]
    Descriptors(#[from] TooFewFds),
    /// A port cannot be bound.
    #[error("cannot listen on {address}")]
    Bind {
        /// The configured address.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The target is the anchor itself: each connection would make another one.
    #[error("the target {0} is this anchor's own address")]
    OwnTarget(SocketAddr),
    /// The metrics cannot be declared.
    #[error("cannot declare the metrics")]
    Metrics(#[from] exposition::Error),
    /// The system has no random bytes.
    #[error("cannot make a key")]
    Key(#[from] CryptoError),
}

/// An anchor with bound ports.
#[derive(Debug)]
pub struct Anchor {
    shared: Arc<Shared>,
    listener: Option<TcpListener>,
    coverage: Option<Arc<Coverage>>,
    admin: Option<SocketAddr>,
    readiness: Readiness,
    listening: Condition,
    drain_request: CancellationToken,
}

impl Anchor {
    /// Binds the ports. Needs a runtime. With `dial_in` the anchor dials the proxy to serve that name, and listens only
    /// if `options.listen` is set.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(
        options: Options,
        dial_in: Option<(uplink::Options, Authority)>,
        logs: Logs,
    ) -> Result<Self, StartError> {
        let descriptors = FdLimit::raise()?;
        let listen = options.listen.or(dial_in.is_none().then_some(DEFAULT_LISTEN));
        let listener = listen.map(|address| bind(address, |address| listener::bind(&address.into())));
        let listener = listener.transpose()?;
        let own_addr = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let own_addr = own_addr.or(listen).unwrap_or(NO_ADDR);
        match options.to {
            TargetAddr::Address(to) if is_self(to, own_addr) => return Err(StartError::OwnTarget(to)),
            TargetAddr::Address(_) | TargetAddr::Name(_) => {}
        }
        let shared = Arc::new(share(options, own_addr, descriptors, logs)?);
        if let Some(files) = &shared.host_keys {
            read_host_keys(files, listener.is_some());
        }
        let (readiness, drain_request) = (Readiness::default(), CancellationToken::new());
        let listening = readiness.require("listener");
        let coverage =
            dial_in.map(|(uplink, serves)| Coverage::new(Arc::clone(&shared), uplink, serves, readiness.clone()));
        let handlers = Handlers {
            readiness: readiness.clone(),
            remarks: Box::new(String::new),
            scrape: metrics_source(Arc::clone(&shared)),
            scrape_networks: None,
            drain_status: drain_source(Arc::clone(&shared)),
            drain_request: drain_request.clone(),
        };
        let admin = match shared.options.admin {
            Some(address) => Some(bind(address, |address| {
                let routes = Routes::probes(handlers);
                admin::start(address, routes, descriptors.admin_connections())
            })?),
            None => None,
        };
        Ok(Self {
            shared,
            listener,
            coverage,
            admin,
            readiness,
            listening,
            drain_request,
        })
    }

    /// Serves until `stop` completes or the admin port is asked to drain, then ends every session.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Self { shared, listener, .. } = self;
        if let Some(address) = self.admin {
            info!("admin port {address}");
        }
        if let Some(Ok(address)) = listener.as_ref().map(TcpListener::local_addr) {
            info!("public port {address}");
        }
        if let Some(coverage) = self.coverage {
            let dials = move || dial_in::run(Arc::clone(&coverage));
            tokio::spawn(keep_running("the task that dials the proxy", dials));
        }
        // Logs at once if the target's name has no address. The anchor still serves: a later lookup may find one.
        let dialer = Arc::clone(&shared.dialer);
        tokio::spawn(async move { dialer.addresses().await });
        if let Some(files) = shared.host_keys.clone() {
            let is_listening = listener.is_some();
            let follow = move || follow_host_keys(files.clone(), is_listening);
            tokio::spawn(keep_running("the task that polls host keys", follow));
        }
        drop(self.listening);
        let stopped = async {
            tokio::select! {
                () = stop => {}
                () = self.drain_request.cancelled() => {}
            }
            self.readiness.withdraw("shutdown");
        };
        let serve = |stream, peer| accepted(&shared, stream, peer);
        match listener {
            Some(listener) => {
                let paused = || shared.metrics.accept_paused.inc();
                listener::accept(listener.into(), stopped, serve, paused).await;
            }
            None => stopped.await,
        }
        shared.stopping.cancel();
        shared.tasks.close();
        let max = SHUTDOWN_TIMEOUT + CLOSE_TIMEOUT;
        if timeout(max, shared.tasks.wait()).await.is_err() {
            let left = shared.tasks.len();
            warn!("{left} connections did not end within {max:?}: their clients have not answered");
        }
        shared.lines.report();
    }
}

/// Reads the files of host keys, and logs why they are not published. One that listens sends only those that fit into a line.
fn read_host_keys(files: &HostKeyFiles, is_listening: bool) {
    match files.reload() {
        ReloadResult::Loaded => {
            info!("host keys loaded");
            let keys = files.keys().unwrap_or_default();
            for key in keys.iter().filter(|key| is_listening && host_key::line(key).is_none()) {
                let (kind, fingerprint) = (key.kind(), key.fingerprint());
                warn!(
                    "a host key is not published at the port: {kind} {fingerprint} does not fit into a line (RFC 4253)"
                );
            }
        }
        ReloadResult::Invalid(faults) => faults
            .iter()
            .for_each(|fault| warn!("a host key is not published: {fault}")),
        ReloadResult::Deferred(reason) => warn!("the host keys cannot be read now: {reason}"),
        ReloadResult::Unchanged => {}
    }
}

/// Reads the files of host keys again, for as long as the process runs.
async fn follow_host_keys(files: HostKeyFiles, is_listening: bool) {
    let read = move || read_host_keys(&files, is_listening);
    let report = |error| warn!("the host keys were {error}");
    follow(|| POLL_INTERVAL, &Notify::new(), read, report).await;
}

/// Spawns the handshake of an accepted connection.
fn accepted(shared: &Arc<Shared>, stream: TcpStream, peer: SocketAddr) {
    let connection = Connection {
        stream: Link::Socket(stream),
        peer,
        accepted: Instant::now(),
    };
    shared.tasks.spawn(handshake::serve(connection, Arc::clone(shared)));
}

fn bind<T>(address: SocketAddr, bind: impl FnOnce(SocketAddr) -> io::Result<T>) -> Result<T, StartError> {
    bind(address).map_err(|source| StartError::Bind { address, source })
}

fn share(options: Options, own_addr: SocketAddr, descriptors: FdLimit, logs: Logs) -> Result<Shared, StartError> {
    let pipes = descriptors.pipes(MAX_PIPES);
    // A session and a plain connection take two descriptors each, as a tunnel does. So does a connection in the
    // handshake, once its target is dialled.
    let wanted = options.max_sessions.get();
    let fitting = descriptors.caps_for(
        TotalCaps {
            tunnels: NonZeroU32::new(wanted.saturating_mul(2)),
            unfinished: NonZeroU32::new(2 * MAX_HANDSHAKES),
            ..TotalCaps::default()
        },
        pipes,
    );
    let half = |cap: Option<NonZeroU32>| cap.map_or(u32::MAX, |cap| cap.get().div_ceil(2));
    let sessions = wanted.min(half(fitting.tunnels));
    if sessions < wanted {
        let max = descriptors.max.unwrap_or_default();
        warn!("{sessions} sessions, less than --max-sessions: the limit of open files is {max}");
    }
    let metrics = Metrics::new()?;
    handshake::results().for_each(|result| metrics.handshakes.zero([result]));
    dial_in::RESULTS
        .iter()
        .for_each(|result| metrics.dial_in.dials.zero([result]));
    EndReason::known().for_each(|end| metrics.session_ends.zero([end.label()]));
    metrics
        .memory_limit
        .set(i64::try_from(options.memory).unwrap_or(i64::MAX));
    Ok(Shared {
        dialer: Arc::new(TargetDialer::new(options.to.clone(), own_addr)),
        key: AgreementKey::generate()?,
        host_keys: options.host_key_files(),
        sessions: Arc::new(SessionRegistry::new(sessions, options.memory)?),
        handshakes: UnfinishedSet::new(NonZeroU32::new(half(fitting.unfinished))),
        plain: Arc::new(Slots::new(NonZeroU32::new(sessions))),
        plain_bytes: Arc::default(),
        resources: Resources::new(pipes),
        metrics,
        lines: AccessLineLimit::new(logs),
        numbers: AtomicU64::new(0),
        options,
        stopping: CancellationToken::new(),
        tasks: TaskTracker::new(),
    })
}

/// Returns the source of `/metrics`. A scrape sets the gauges of state that is kept elsewhere.
fn metrics_source(shared: Arc<Shared>) -> Box<dyn Fn() -> String + Send + Sync> {
    Box::new(move || {
        let metrics = &shared.metrics;
        let as_gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for (state, sessions) in shared.sessions.count() {
            metrics.sessions.set([state], sessions);
        }
        metrics.memory.set(as_gauge(shared.sessions.memory().used()));
        metrics.handshakes_in_progress.set(as_gauge(shared.handshakes.len()));
        metrics.plain.set(shared.plain.taken().into());
        metrics.plain_bytes(&shared.plain_bytes);
        raise_to(&metrics.access_log_lines_dropped, shared.lines.left_out() as u64);
        raise_to(&metrics.log_lines_dropped, shared.lines.logs.lines_dropped() as u64);
        metrics.encode().unwrap_or_else(|error| format!("# {error}\n"))
    })
}

/// Returns the source of `/drain`.
fn drain_source(shared: Arc<Shared>) -> Box<dyn Fn() -> DrainStatus + Send + Sync> {
    let phase = |is_stopping| if is_stopping { "closing" } else { "serving" };
    Box::new(move || DrainStatus {
        phase: phase(shared.stopping.is_cancelled()).to_owned(),
        tunnels: u32::try_from(shared.sessions.len()).unwrap_or(u32::MAX),
        resumable: None,
        connections: shared.plain.taken(),
    })
}

/// The default listen address without `dial_in`.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 2222);
/// The address of an anchor that does not listen.
const NO_ADDR: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
/// Maximum number of pipes for plain connections.
const MAX_PIPES: usize = 32;
/// How long connections have to close after [`SHUTDOWN_TIMEOUT`].
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
