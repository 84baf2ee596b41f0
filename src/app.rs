//! The process: binds the ports, serves until it is told to stop, reloads, and drains.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::readiness::{Pending, Readiness};
use self::reload::Reload;
use crate::allowlist::Writer;
use crate::config::{Config, LoadError};
use crate::drain::{Conductor, Drained, Tasks};
use crate::kubernetes::{self, Controller};
use crate::limits::TotalCaps;
use crate::limits::budget::Budgets;
use crate::limits::clients::Clients;
use crate::limits::descriptors::Descriptors;
use crate::limits::slots::Slots;
use crate::limits::unfinished::Unfinished;
use crate::metrics::{self, Metrics};
use crate::net::listener;
use crate::relay::Resources;
use crate::tls::{self, Tls};
use crate::tunnel::record::Ids;
use crate::tunnel::{self, Port, Shared};

pub mod admin;
pub mod certificate;
pub mod drain_request;
pub mod logging;
mod pages;
pub mod readiness;
mod reload;

/// What a running process may be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read the configuration again.
    Reload,
    /// Drain and end; the second time, end at once.
    Stop,
}

/// Reads the configuration: at the start, and at every reload.
pub type Source = Box<dyn Fn() -> Result<Config, LoadError> + Send>;
/// How many log lines were thrown away so far.
pub type LogLinesDropped = Box<dyn Fn() -> usize + Send + Sync>;

/// Why a process did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot be read, or has faults.
    #[error(transparent)]
    Config(#[from] LoadError),
    /// A port cannot be had.
    #[error("cannot listen on {address}")]
    Bind {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The certificates have become faulty since the configuration was checked.
    #[error("cannot speak TLS: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Tls(Vec<tls::Fault>),
    /// The cluster cannot be followed for want of a thread.
    #[error("cannot follow the cluster")]
    Services(#[source] io::Error),
    /// The metrics cannot be declared: a defect.
    #[error("cannot declare the metrics")]
    Metrics(#[from] metrics::Error),
}

/// A process that has its ports, and serves once it [runs](Self::run).
pub struct App {
    config: Box<Config>,
    source: Source,
    room: Room,
    writer: Writer,
    shared: Arc<Shared>,
    conductor: Conductor,
    drain_asked: CancellationToken,
    readiness: Readiness,
    starting: Pending,
    unknown: Pending,
    services: Option<Controller>,
    public: Vec<TcpListener>,
    admin: SocketAddr,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App")
            .field("public", &self.public)
            .field("admin", &self.admin)
            .finish_non_exhaustive()
    }
}

impl App {
    /// Loads the configuration and binds every port. The admin port answers from now on.
    ///
    /// # Errors
    /// A fault of the configuration, or a port that cannot be had.
    pub fn start(source: Source, log_lines_dropped: LogLinesDropped) -> Result<Self, StartError> {
        let config = Box::new(source()?);
        let room = Room::make();
        let metrics = Metrics::new()?;
        let tls = Tls::new(config.tls.clone(), config.handshake).map_err(StartError::Tls)?;
        metrics.tls_expiries(&tls.expiries());
        let (conductor, drain) = Conductor::new();
        let (mut writer, allowlist) = Writer::new();
        writer.publish(&config.targets, &config.limits);
        if config.kubernetes.is_some() {
            writer.await_services();
        } else {
            synced(&metrics);
        }
        let caps = room.fitting(config.limits.caps.total, &metrics);
        let shared = Arc::new(Shared {
            allowlist,
            metrics,
            drain,
            resources: Resources::new(room.pipes),
            clients: Clients::new(
                config.limits.client,
                config.limits.tunnel.burst,
                config.limits.caps.client,
            ),
            unfinished: Unfinished::new(caps.unfinished),
            tunnels: Arc::new(Slots::new(caps.tunnels)),
            total: Budgets::new(config.limits.total, config.limits.tunnel.burst),
            ids: Ids::default(),
            tls,
            connect: config.connect,
            dial: config.dial,
            identification: config.identification,
            relay: config.relay,
        });
        let drain_asked = CancellationToken::new();
        let readiness = Readiness::default();
        let starting = readiness.await_for("listener");
        let unknown = readiness.await_for("allowlist");
        let public = config.listen.iter().map(bind_public).collect::<Result<_, _>>()?;
        let pages = pages::of(&shared, &readiness, &drain_asked, log_lines_dropped);
        let address = config.admin;
        let admin = admin::start(address, pages).map_err(|source| StartError::Bind { address, source })?;
        let services = follow(&config, &writer, &shared.metrics)?;
        Ok(Self {
            config,
            source,
            room,
            writer,
            shared,
            conductor,
            drain_asked,
            readiness,
            starting,
            unknown,
            services,
            public,
            admin,
        })
    }

    /// Where clients are served, with the ports that the kernel chose.
    pub fn public_addresses(&self) -> Vec<SocketAddr> {
        self.public
            .iter()
            .filter_map(|listener| listener.local_addr().ok())
            .collect()
    }

    /// Where the operator is served.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// Serves until it is told to stop, by a command or on the admin port, then drains. The end of `commands` is no
    /// command.
    pub async fn run(self, mut commands: mpsc::Receiver<Command>) -> Drained {
        info!("admin port {}", self.admin);
        let tasks = Tasks::default();
        for address in self.public_addresses() {
            info!("public port {address}");
        }
        for (listener, port) in self.public.into_iter().zip(&self.config.listen) {
            let port = (listener, Arc::new(port.clone()));
            tasks
                .acceptors
                .spawn(accept(port, Arc::clone(&self.shared), tasks.clone()));
        }
        drop(self.starting);
        let (shared, unknown) = (Arc::clone(&self.shared), self.unknown);
        tokio::spawn(async move {
            shared.allowlist.completed().await;
            drop(unknown);
        });
        tokio::spawn(certificate::follow(Arc::clone(&self.shared)));
        let mut reload = Reload {
            config: self.config,
            source: self.source,
            room: self.room,
            writer: self.writer,
            services: self.services,
        };
        let told = loop {
            tokio::select! {
                command = next(&mut commands) => match command {
                    Command::Reload => reload.run(&self.shared),
                    Command::Stop => break true,
                },
                () = self.drain_asked.cancelled() => break false,
            }
        };
        self.readiness.withdraw("shutdown");
        self.shared.metrics.draining.set(1);
        let hurry = CancellationToken::new();
        let told_again = async {
            // Kubernetes sends its signal when the hook that has asked for the drain is through: that is no hurry.
            if !told {
                stop(&mut commands).await;
            }
            stop(&mut commands).await;
            hurry.cancel();
        };
        let drained = self.conductor.run(&reload.config.drain, &tasks, told_again).await;
        if !told && !hurry.is_cancelled() {
            // With the first process of a container all others end, such as the hook that waits for this.
            sleep(LAST_LOOKS).await;
        }
        drained
    }
}

fn follow(config: &Config, writer: &Writer, metrics: &Metrics) -> Result<Option<Controller>, StartError> {
    let start = |options: &kubernetes::Options| {
        Controller::start(options.clone(), &config.limits, writer.clone(), metrics.clone())
    };
    let services = config.kubernetes.as_ref().map(start).transpose();
    services.map_err(StartError::Services)
}

async fn next(commands: &mut mpsc::Receiver<Command>) -> Command {
    match commands.recv().await {
        Some(command) => command,
        None => pending().await,
    }
}

async fn stop(commands: &mut mpsc::Receiver<Command>) {
    while next(commands).await != Command::Stop {}
}

async fn accept((listener, port): (TcpListener, Arc<Port>), shared: Arc<Shared>, tasks: Tasks) {
    let serve = |stream, peer| {
        let (port, shared) = (Arc::clone(&port), Arc::clone(&shared));
        tasks
            .connections
            .spawn(async move { tunnel::serve(stream, peer, port, &shared).await });
    };
    let paused = || shared.metrics.accept_paused.inc();
    listener::accept(listener, shared.drain.clone().parting(), serve, paused).await;
    if port.listener.reuse_port {
        // Another process has the port, so that nobody may notice: whoever came last still has to be heard.
        sleep(LAST_REQUESTS).await;
    }
}

fn synced(metrics: &Metrics) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    metrics.allowlist_last_sync_timestamp.set(now.as_secs_f64());
}

fn bind_public(port: &Port) -> Result<TcpListener, StartError> {
    listener::bind(&port.listener).map_err(|source| StartError::Bind {
        address: port.listener.address,
        source,
    })
}

/// What the limit of open files leaves room for.
#[derive(Clone, Copy, Debug)]
struct Room {
    descriptors: Descriptors,
    pipes: usize,
}

impl Room {
    fn make() -> Self {
        let descriptors = Descriptors::raise();
        Self {
            descriptors,
            pipes: descriptors.pipes(MOST_PIPES),
        }
    }

    /// The caps that can be kept. Says so if they are lower than what is configured.
    fn fitting(self, wanted: TotalCaps, metrics: &Metrics) -> TotalCaps {
        let fitting = self.descriptors.fitting(wanted, self.pipes);
        let number = |cap: Option<NonZeroU32>| cap.map_or(u32::MAX, NonZeroU32::get);
        metrics.tunnels_limit.set(number(fitting.tunnels).into());
        let (tunnels, unfinished) = (number(fitting.tunnels), number(fitting.unfinished));
        if fitting == wanted {
            info!("room for {tunnels} tunnels");
        } else {
            let descriptors = self.descriptors.most().unwrap_or_default();
            warn!(
                "room for {tunnels} tunnels and {unfinished} unfinished requests, less than limits.total says: the \
                 limit of open files is {descriptors}"
            );
        }
        fitting
    }
}

/// How long who waits for a drain's end may take to see it: `switchboard drain` looks five times a second.
const LAST_LOOKS: Duration = Duration::from_secs(2);
/// How long a request takes that comes as soon as it can.
const LAST_REQUESTS: Duration = Duration::from_secs(1);
/// 56 MiB of pipes at their full size, 32 of them large: an unprivileged user may have 64.
const MOST_PIPES: usize = 128;
