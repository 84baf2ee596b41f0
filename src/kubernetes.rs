//! Follows the Services of a Kubernetes cluster and keeps the allowlist as they say.
//!
//! It runs on a thread of its own: reading long lists delays no tunnel. Whatever becomes of the API server, what is
//! on the allowlist stays on it until the cluster says otherwise.

mod annotations;
mod api;
mod decode;
mod endpoints;
mod failure;
mod guards;
mod join;
mod model;
mod reconciler;
mod reflector;
mod shrink;
mod snapshot;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ipnet::IpNet;
use tokio::runtime;
use tokio::sync::{mpsc, watch as channel};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::error;

use self::failure::Failure;
use self::guards::Guards;
use self::join::Rules;
use self::model::Kind;
use self::reconciler::Reconciler;
use self::reflector::Source;
use crate::allowlist::{self, Suffixes, Writer};
use crate::limits::Limits;
use crate::metrics::Metrics;

/// Which Services are on the allowlist, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where the API server is named; `None` means by the pod's service account, else by KUBECONFIG.
    pub kubeconfig: Option<PathBuf>,
    /// Where Services are; none means everywhere.
    pub namespaces: Vec<Box<str>>,
    /// A label selector for the Namespaces that may have any; `None` means all.
    pub namespace_selector: Option<Box<str>>,
    /// A label selector for the Services.
    pub selector: Box<str>,
    /// What the names of their annotations begin with.
    pub annotation_prefix: Box<str>,
    /// The DNS domain of the cluster.
    pub cluster_domain: Box<str>,
    /// What else may follow `svc.ns` in a name.
    pub public_suffixes: Vec<Box<str>>,
    /// A port that leads to each Service, besides its own.
    pub alias_port: u16,
    /// What may be dialled; none means all that is harmless.
    pub allowed_cidrs: Vec<IpNet>,
    /// How long a client waits for an endpoint.
    pub wait_for_ready: Duration,
    /// Whether the tunnels of a Service that leaves may run on.
    pub keeps_removed: bool,
    /// Where the last known list is kept for a restart.
    pub snapshot_file: Option<PathBuf>,
    /// Whether clients can show certificates: a Service may ask for some that have a certain name.
    pub knows_clients: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            namespaces: Vec::new(),
            namespace_selector: None,
            selector: "switchboard.dev/expose=true".into(),
            annotation_prefix: "switchboard.dev/".into(),
            cluster_domain: "cluster.local".into(),
            public_suffixes: Vec::new(),
            alias_port: 22,
            allowed_cidrs: Vec::new(),
            wait_for_ready: Duration::from_secs(10),
            keeps_removed: false,
            snapshot_file: None,
            knows_clients: false,
        }
    }
}

/// A cluster that is followed until this is dropped. The allowlist stays as it is then.
#[derive(Debug)]
pub struct Services {
    options: Options,
    rules: channel::Sender<Rules>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
    outputs: (Writer, Metrics),
}

impl Services {
    /// Begins to follow a cluster, whether it answers or not. Until it does, names that are not on the allowlist are
    /// unknown.
    ///
    /// # Errors
    /// When the thread can not be started.
    pub fn start(options: Options, limits: &Limits, writer: Writer, metrics: Metrics) -> io::Result<Self> {
        writer.configure(naming(&options));
        for failure in Failure::ALL {
            metrics.watch_may_fail(failure.label());
        }
        let (rules, receiver) = channel::channel(rules_of(&options, limits));
        let stop = CancellationToken::new();
        let following = Following {
            sources: sources(&options),
            snapshot: options.snapshot_file.clone(),
            rules: receiver,
            outputs: (writer.clone(), metrics.clone()),
        };
        let stopped = stop.clone();
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name("services".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = following.run() => {}
                    () = stopped.cancelled() => {}
                }
            });
            // A snapshot that is being written may take its time.
            runtime.shutdown_background();
        })?;
        Ok(Self {
            options,
            rules,
            stop,
            thread: Some(thread),
            outputs: (writer, metrics),
        })
    }

    /// Follows other settings. The allowlist stays as it is until they have led to a complete list.
    ///
    /// # Errors
    /// When a thread that they need can not be started; the old ones stay in force.
    pub fn configure(&mut self, options: Options, limits: &Limits) -> io::Result<()> {
        if sources(&options) == sources(&self.options) && options.snapshot_file == self.options.snapshot_file {
            self.outputs.0.configure(naming(&options));
            // Whoever is gone is about to be started again with the newest rules.
            self.rules.send_replace(rules_of(&options, limits));
            self.options = options;
            return Ok(());
        }
        let (writer, metrics) = self.outputs.clone();
        self.end();
        *self = Self::start(options, limits, writer, metrics)?;
        Ok(())
    }

    fn end(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // It may have panicked: then it has ended, too.
            thread.join().ok();
        }
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        self.end();
    }
}

struct Following {
    sources: Vec<Source>,
    snapshot: Option<PathBuf>,
    rules: channel::Receiver<Rules>,
    outputs: (Writer, Metrics),
}

impl Following {
    async fn run(self) {
        loop {
            let (sender, news) = mpsc::channel(QUEUED_NEWS);
            let mut rules = self.rules.clone();
            let newest = rules.borrow_and_update().clone();
            let doubted = |source: &Source| (source.clone(), Arc::new(AtomicBool::new(false)));
            let followed: Vec<_> = self.sources.iter().map(doubted).collect();
            let keeper = Reconciler::new(newest, followed.clone(), self.snapshot.clone(), self.outputs.clone());
            let mut tasks = JoinSet::new();
            tasks.spawn(keeper.run(news, rules));
            for (source, doubt) in followed {
                tasks.spawn(reflector::follow(source, doubt, sender.clone()));
            }
            drop(sender);
            // None of them ends by itself.
            if let Some(Err(error)) = tasks.join_next().await {
                error!("following the cluster has failed and begins anew: {error}");
            }
            drop(tasks);
            sleep(BEFORE_ANEW).await;
        }
    }
}

/// Services and their slices in every namespace that is named, or in all; and the Namespaces, if they are selected.
fn sources(options: &Options) -> Vec<Source> {
    let prefix: Arc<str> = (&*options.annotation_prefix).into();
    let everywhere = [None];
    let namespaces: Vec<_> = options.namespaces.iter().cloned().map(Some).collect();
    let namespaces = if namespaces.is_empty() {
        &everywhere[..]
    } else {
        &namespaces
    };
    let mut sources = Vec::new();
    let mut add = |kind, namespace: Option<Box<str>>, selector| {
        sources.push(Source {
            index: sources.len(),
            kind,
            namespace,
            selector,
            prefix: Arc::clone(&prefix),
            kubeconfig: options.kubeconfig.clone(),
        });
    };
    for namespace in namespaces {
        add(Kind::Service, namespace.clone(), Some(options.selector.clone()));
        // By no label: a slice has those of its Service only by and by.
        add(Kind::Slice, namespace.clone(), None);
    }
    if let Some(selector) = &options.namespace_selector {
        add(Kind::Namespace, None, Some(selector.clone()));
    }
    sources
}

fn rules_of(options: &Options, limits: &Limits) -> Rules {
    Rules {
        suffixes: suffixes(options),
        alias_port: options.alias_port,
        guards: Guards::new(&options.allowed_cidrs),
        limits: *limits,
        gated: options.namespace_selector.is_some(),
        knows_clients: options.knows_clients,
    }
}

fn naming(options: &Options) -> allowlist::Options {
    allowlist::Options {
        suffixes: suffixes(options),
        keeps_removed: options.keeps_removed,
        wait_for_ready: options.wait_for_ready,
    }
}

fn suffixes(options: &Options) -> Arc<Suffixes> {
    let public = options.public_suffixes.iter().map(|suffix| &**suffix);
    Arc::new(Suffixes::new(&options.cluster_domain, public))
}

/// News that wait to be joined; beyond that the sources wait.
const QUEUED_NEWS: usize = 4096;
const BEFORE_ANEW: Duration = Duration::from_secs(1);
