//! The process: binds the ports, serves, reloads, and drains.

use std::env;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use self::access_sources::AccessSources;
use self::capacity::Capacity;
pub use self::listeners::BindError;
use self::listeners::PublicPorts;
pub use self::reload::LoadConfig;
use self::reload::{Reload, keep_reloading, poll_host_keys};
use crate::base::follow::{ReadFailure, ReadPool};
use crate::daemon::admin as admin_port;
use crate::daemon::logging::Logs;
use crate::daemon::readiness::{Condition, Readiness};
use crate::daemon::vital::keep_running;
use crate::kubernetes::{self, BackgroundRuntime, Controller, WatchContext, watch_replicas};
use crate::net::tls::{self, Tls};
use crate::policy::access::Access;
use crate::policy::allowlist::Writer;
use crate::protocol::registration::is_id;
use crate::proxy::anchors::{self, Anchors};
use crate::proxy::config::{Config, LoadedConfig, Report};
use crate::proxy::connection::Shared;
use crate::proxy::metrics::Metrics;
use crate::proxy::open_tunnels::registry::Registry;
use crate::proxy::record::Ids;
use crate::proxy::record::access_log::AccessLog;
use crate::tunnel::drain::{self, DrainController, DrainResult, Tasks};
use crate::tunnel::exposition;
use crate::tunnel::limits::budget::Budgets;
use crate::tunnel::limits::connect_rate::ConnectRate;
use crate::tunnel::limits::descriptors::TooFewFds;
use crate::tunnel::limits::owners::LimitOwners;
use crate::tunnel::limits::slots::Slots;
use crate::tunnel::limits::unfinished::UnfinishedSet;
use crate::tunnel::relay::Resources;

mod access_sources;
mod capacity;
mod certificate_poll;
mod listeners;
mod reload;

/// Why a process did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot be read, or has faults.
    #[error(transparent)]
    Config(#[from] Report),
    /// The configuration was not read in time.
    #[error("the configuration was {0}")]
    Unread(ReadFailure),
    /// The limit of open files is too low.
    #[error(transparent)]
    Descriptors(#[from] TooFewFds),
    /// A port cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The certificates have become invalid since the configuration was checked.
    #[error("cannot speak TLS: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Tls(Vec<tls::FileError>),
    /// The thread that follows the cluster cannot be started.
    #[error("cannot follow the cluster")]
    Cluster(#[source] io::Error),
    /// The metrics cannot be declared: a defect.
    #[error("cannot declare the metrics")]
    Metrics(#[from] exposition::Error),
}

/// A process with its ports bound. It serves once it [runs](Self::run).
pub struct App {
    load: Arc<LoadConfig>,
    reload: Arc<Mutex<Reload>>,
    drain_options: drain::Options,
    shared: Arc<Shared>,
    drain_controller: DrainController,
    /// Cancelled by a POST to `/drain`.
    drain_request: CancellationToken,
    readiness: Readiness,
    listener_ready: Condition,
    allowlist_ready: Condition,
    /// True if the targets of a cluster are awaited, and not only those of the configuration.
    awaits_services: bool,
    public: PublicPorts,
    admin: SocketAddr,
    _replicas: Option<BackgroundRuntime>,
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
    /// A fault of the configuration, a file that is not read within 10 s, or a port that cannot be bound.
    pub async fn start(load: LoadConfig, logs: Logs) -> Result<Self, StartError> {
        let started = ReadPool::default().run(move || Startup::read(load)).await;
        started.map_err(StartError::Unread)??.bind(logs)
    }

    /// Returns the bound addresses of the public ports, with the port numbers that the kernel chose.
    pub fn public_addresses(&self) -> Vec<SocketAddr> {
        self.public.addresses()
    }

    /// Returns the bound address of the admin port.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// Serves until a command or a request on the admin port begins the drain, then drains. The end of `commands` is
    /// not a command.
    pub async fn run(self, commands: mpsc::Receiver<Command>) -> DrainResult {
        info!("admin port {}", self.admin);
        let tasks = Tasks::default();
        self.public.accept(&self.shared, &tasks);
        drop(self.listener_ready);
        let (shared, allowlist_ready) = (Arc::clone(&self.shared), self.allowlist_ready);
        let awaits_services = self.awaits_services;
        tokio::spawn(async move {
            shared.allowlist.completed().await;
            // Without a cluster, the configuration's warnings have reported an empty allowlist.
            if awaits_services && shared.allowlist.targets() == 0 {
                warn!("{EMPTY}");
            }
            drop(allowlist_ready);
        });
        access_sources::follow_user_lists(&self.shared);
        let wanted = Arc::new(Notify::new());
        let _following = follow(&self.shared, &self.reload, self.load, Arc::clone(&wanted));
        let mut commands = Commands(commands);
        let is_signalled = loop {
            tokio::select! {
                command = commands.next() => match command {
                    Command::Reload => {
                        info!("a reload is asked for");
                        wanted.notify_one();
                    }
                    Command::Stop => break true,
                },
                () = self.drain_request.cancelled() => break false,
            }
        };
        // First, so that a probe which finds the process not ready finds the metric set.
        self.shared.metrics.draining.set(1);
        self.readiness.withdraw("shutdown");
        let cut_short = CancellationToken::new();
        let second_stop = async {
            // When the preStop hook that has requested the drain is done, Kubernetes sends SIGTERM. So the first signal
            // does not cut the drain short; the second does.
            if !is_signalled {
                commands.stop().await;
            }
            commands.stop().await;
            cut_short.cancel();
        };
        let drained = self
            .drain_controller
            .run(&self.drain_options, &tasks, second_stop)
            .await;
        self.shared.access_log.close();
        if !is_signalled && !cut_short.is_cancelled() {
            // When the first process of a container ends, all others are killed. Before that, the hook that waits for
            // the drain must read that the drain has ended.
            sleep(LAST_PROGRESS).await;
        }
        drained
    }
}

/// Starts the tasks that run as long as the process. A drop ends those that read the configuration and the host keys.
fn follow(
    shared: &Arc<Shared>,
    reload: &Arc<Mutex<Reload>>,
    load: Arc<LoadConfig>,
    wanted: Arc<Notify>,
) -> [AbortOnDropHandle<()>; 2] {
    let own = Arc::clone(shared);
    tokio::spawn(keep_running("the task that polls certificates", move || {
        certificate_poll::watch(Arc::clone(&own))
    }));
    let own = Arc::clone(shared);
    tokio::spawn(keep_running("the task that counts refusals", move || {
        let shared = Arc::clone(&own);
        async move { shared.access_log.keep_writing_counts().await }
    }));
    let own = Arc::clone(shared);
    tokio::spawn(keep_running("the task that judges tunnels", move || {
        let shared = Arc::clone(&own);
        async move { shared.registry.keep_judging().await }
    }));
    let own = Arc::clone(reload);
    let host_keys = keep_running("the task that polls host keys", move || {
        poll_host_keys(Arc::clone(&own))
    });
    let (reload, shared) = (Arc::clone(reload), Arc::clone(shared));
    let reloads = keep_running("the task that reloads", move || {
        keep_reloading(
            Arc::clone(&load),
            Arc::clone(&reload),
            Arc::clone(&shared),
            Arc::clone(&wanted),
        )
    });
    [tokio::spawn(host_keys), tokio::spawn(reloads)].map(AbortOnDropHandle::new)
}

/// A process whose files have been read.
struct Startup {
    load: Arc<LoadConfig>,
    config: Box<Config>,
    tls: Tls,
}

impl Startup {
    /// Reads the configuration and its certificates for the first time.
    fn read(load: LoadConfig) -> Result<Self, StartError> {
        let LoadedConfig { config, report } = load()?;
        reload::log(&report);
        let config = Box::new(config);
        let tls = Tls::new(config.tls.clone(), config.timeouts.tls_handshake).map_err(StartError::Tls)?;
        let load = Arc::new(load);
        Ok(Self { load, config, tls })
    }

    /// Binds every port.
    fn bind(self, logs: Logs) -> Result<App, StartError> {
        let mut capacity = Capacity::raise(self.config.listen.len())?;
        let (shared, drain_controller, mut writer) = share(&self.config, self.tls, &mut capacity, logs)?;
        let (config, shared) = (self.config, Arc::new(shared));
        writer.publish(&config.targets, &config.limits);
        if config.cluster.is_some() {
            writer.await_services(None);
        } else {
            shared.metrics.cluster.synced();
        }
        let readiness = Readiness::default();
        let listener_ready = readiness.require("listener");
        let allowlist_ready = readiness.require("allowlist");
        let public = PublicPorts::bind(&config.listen)?;
        let drain_request = CancellationToken::new();
        let routes = crate::proxy::admin::routes(&shared, &readiness, &drain_request, &config.admin_scrape);
        let address = config.admin;
        let admin = admin_port::start(address, routes, capacity.descriptors.admin_connections());
        let admin = admin.map_err(|source| BindError { address, source })?;
        let follow = |options: &kubernetes::Options| {
            Controller::start(
                options.clone(),
                &config.limits,
                writer.clone(),
                shared.metrics.cluster.clone(),
            )
        };
        let services = config.cluster.as_ref().map(follow).transpose();
        let services = services.map_err(StartError::Cluster)?;
        let replicas = follow_replicas(&config, &shared).map_err(StartError::Cluster)?;
        let awaits_services = services.is_some();
        let drain_options = config.drain;
        let mut users = AccessSources::default();
        users.apply(&config, &shared);
        let reload = Reload {
            config,
            users,
            capacity,
            writer,
            services,
        };
        Ok(App {
            load: self.load,
            reload: Arc::new(Mutex::new(reload)),
            drain_options,
            shared,
            drain_controller,
            drain_request,
            readiness,
            listener_ready,
            allowlist_ready,
            awaits_services,
            public,
            admin,
            _replicas: replicas,
        })
    }
}

/// Makes the state that the tunnels of the process share, and its controllers: the drain and the allowlist.
fn share(
    config: &Config,
    tls: Tls,
    capacity: &mut Capacity,
    logs: Logs,
) -> Result<(Shared, DrainController, Writer), StartError> {
    let metrics = Metrics::new()?;
    let (drain_controller, drain) = DrainController::new();
    let (writer, allowlist) = Writer::new();
    metrics.tls_timestamps(&tls.expiries(), &tls.next_updates());
    let limits = &config.limits;
    let caps = capacity.fitting(limits.process, &metrics);
    let shared = Shared {
        access: Access::open(&metrics.access),
        allowlist,
        lists_names: AtomicBool::new(config.lists_names),
        anchors: anchors(config),
        metrics,
        access_log: AccessLog::new(logs),
        registry: Registry::default(),
        drain,
        resources: Resources::new(capacity.pipes),
        clients: LimitOwners::new(limits.client_limits()),
        users: LimitOwners::new(limits.user_limits()),
        connect_rate: ConnectRate::new(limits.client),
        unfinished: UnfinishedSet::new(caps.unfinished),
        logins: UnfinishedSet::new(LOGINS),
        tunnels: Arc::new(Slots::new(caps.tunnels)),
        total: Budgets::new(limits.process.rates(), limits.tunnel.burst),
        ids: Ids::default(),
        tls,
        timeouts: config.timeouts,
    };
    Ok((shared, drain_controller, writer))
}

/// Returns the anchors of this replica, which are none yet.
fn anchors(config: &Config) -> Anchors {
    let options = config.anchors.clone().unwrap_or_default();
    // The EndpointSlices have the pod's name. HOSTNAME comes last: with the node's network it is the node's name.
    let pod = || {
        ["POD_NAME", "HOSTNAME"]
            .into_iter()
            .find_map(|name| env::var(name).ok())
    };
    let pod = pod().filter(|name| options.replicas.is_none() && is_id(name));
    if options.replicas.is_none() && pod.is_none() {
        warn!("anchors.replicas: auto needs this pod's name in POD_NAME: without it, anchors never stop dialling");
    }
    let anchors = Anchors::new(pod.map(Into::into), options.replicas.unwrap_or(NonZeroU32::MIN));
    anchors.set_taken(config.takes_anchors());
    anchors.set_publishing(config.anchor_keys);
    anchors
}

/// Follows the replicas of the proxy, if the settings say so, until the result is dropped.
fn follow_replicas(config: &Config, shared: &Arc<Shared>) -> io::Result<Option<BackgroundRuntime>> {
    let Some(anchors::Options {
        replicas: None,
        service,
    }) = &config.anchors
    else {
        return Ok(None);
    };
    let cluster = config.cluster.as_ref();
    let origin = WatchContext {
        kubeconfig: cluster.and_then(|cluster| cluster.kubeconfig.clone()),
        metrics: shared.metrics.cluster.clone(),
        watches: Arc::default(),
    };
    let shared = Arc::clone(shared);
    let changed = move |ids| _ = shared.anchors.replicas.send_if_modified(|list| list.replace(ids));
    watch_replicas(origin, service, changed).map(Some)
}

/// A command to a running process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read the configuration again.
    Reload,
    /// Drain and end; the second time, end at once.
    Stop,
}

/// The queue of commands. Its end is not a command: a process without signals serves on.
#[derive(Debug)]
struct Commands(mpsc::Receiver<Command>);

impl Commands {
    /// Returns the next command.
    async fn next(&mut self) -> Command {
        match self.0.recv().await {
            Some(command) => command,
            None => pending().await,
        }
    }

    /// Completes at the next [`Command::Stop`]; other commands are dropped.
    async fn stop(&mut self) {
        while self.next().await != Command::Stop {}
    }
}

const EMPTY: &str = "the allowlist is empty: no Service of the cluster that may be read has the label of \
                     `allowlist.kubernetes.selector`, so every request is refused";
/// The SSH connections before their login: 100 MiB if each sends a packet of the largest size, which is copied a few times.
const LOGINS: Option<NonZeroU32> = NonZeroU32::new(512);
/// The time for a last GET of `/drain`: `switchboard drain` sends five a second.
const LAST_PROGRESS: Duration = Duration::from_secs(2);
