//! A source: the objects of one kind in one namespace, or in all, decoded for the reconciler.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tracing::warn;

use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::list_watch::Metadata;
use crate::kubernetes::api::requests::encoded;
use crate::kubernetes::api::watcher::{Event, Objects, Scope, WatchSpec, follow};
use crate::kubernetes::metrics::ClusterMetrics;
use crate::kubernetes::objects::decode::{DecodedObject, WARM_POOL, decode, too_long};
use crate::kubernetes::objects::model::{Key, Kind, Object};
use crate::kubernetes::options::Options;
use crate::policy::access::Watches;

/// The objects of one kind in one namespace or in all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// The kind of the objects.
    pub(crate) kind: Kind,
    /// The namespace of the objects; `None` for all.
    pub(crate) namespace: Option<Box<str>>,
    /// The label selector of the objects; `None` for all.
    pub(crate) selector: Option<Box<str>>,
    /// The prefix of annotation names.
    pub(crate) prefix: Arc<str>,
    /// Of slices: the label selector of their Services. Of others it is empty, so that a change of it leaves them alone.
    pub(crate) services: Arc<str>,
    /// As in [`Options`].
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// An object by its key; `None` if it counts as deleted.
pub(crate) type Item = (Key, Option<Object>);

/// An event of a source.
#[derive(Debug)]
pub(crate) struct SourceEvent {
    /// [`SourceHandle::index`].
    pub(crate) index: usize,
    /// The event.
    pub(crate) event: Event<Item>,
}

/// A source that is watched.
#[derive(Clone, Debug)]
pub(crate) struct SourceHandle {
    /// The index of the source among all.
    pub(crate) index: usize,
    /// The source.
    pub(crate) source: Source,
    /// True if the reconciler wants the next list soon, because the last one is in doubt.
    pub(crate) wants_list: Arc<AtomicBool>,
}

/// A sender of a source's events to the reconciler.
struct Sender {
    handle: SourceHandle,
    events: mpsc::Sender<SourceEvent>,
    metrics: ClusterMetrics,
}

/// Returns the sources of a cluster: Services and EndpointSlices of each configured namespace, or of all; their pods, if
/// these are on the allowlist; and the Namespaces, if there is a selector for them.
pub(crate) fn sources(options: &Options) -> Vec<Source> {
    let prefix: Arc<str> = (&*options.annotation_prefix).into();
    let services: Arc<str> = (&*options.selector).into();
    let all = [None];
    let named = |names: &[Box<str>]| names.iter().cloned().map(Some).collect::<Vec<_>>();
    let (of_services, of_pods) = (named(&options.namespaces), named(&options.pods.namespaces));
    let namespaces = if of_services.is_empty() { &all[..] } else { &of_services };
    let mut sources = Vec::new();
    let mut add = |kind, namespace: Option<Box<str>>, selector| {
        sources.push(Source {
            kind,
            namespace,
            selector,
            prefix: Arc::clone(&prefix),
            services: match kind {
                Kind::Slice => Arc::clone(&services),
                Kind::Service | Kind::Pod | Kind::Namespace => Arc::default(),
            },
            kubeconfig: options.kubeconfig.clone(),
        });
    };
    for namespace in namespaces {
        add(Kind::Service, namespace.clone(), Some(options.selector.clone()));
        // Slices get no selector, because the labels of a Service reach them with a delay.
        add(Kind::Slice, namespace.clone(), None);
    }
    let of_pods = if of_pods.is_empty() { namespaces } else { &of_pods };
    for namespace in of_pods.iter().filter(|_| options.pods.enabled) {
        let selector = options.pods.selector.as_ref().unwrap_or(&options.selector);
        add(
            Kind::Pod,
            namespace.clone(),
            Some(format!("{selector},!{WARM_POOL}").into()),
        );
    }
    if let Some(selector) = &options.namespace_selector {
        add(Kind::Namespace, None, Some(selector.clone()));
    }
    sources
}

impl SourceHandle {
    /// Creates the handles of all sources.
    pub(crate) fn all(sources: Vec<Source>) -> Vec<Self> {
        let handle = |(index, source)| Self {
            index,
            source,
            wants_list: Arc::default(),
        };
        sources.into_iter().enumerate().map(handle).collect()
    }

    /// Watches the source, and sends its events to the reconciler. Never returns.
    pub(crate) async fn run(self, events: mpsc::Sender<SourceEvent>, metrics: ClusterMetrics) {
        let (spec, kubeconfig) = (self.source.subject(), self.source.kubeconfig.clone());
        let sender = Sender {
            handle: self,
            events,
            metrics,
        };
        // Not added to the watches that tickets depend on: this watch revokes no access.
        let watch = Watches::default().add();
        Box::pin(follow(spec, sender, kubeconfig, watch)).await;
    }
}

impl Source {
    fn subject(&self) -> WatchSpec {
        let selector = self.selector.as_deref().map(encoded);
        WatchSpec {
            kind: self.kind.name(),
            group: match self.kind {
                Kind::Service | Kind::Pod | Kind::Namespace => "",
                Kind::Slice => "discovery.k8s.io",
            },
            scope: self.namespace.clone().map_or(Scope::Cluster, Scope::Namespace),
            selector: selector.map_or_else(String::new, |selector| format!("labelSelector={selector}&")),
            effect: "cannot follow the cluster: the allowlist stays as it is, and objects that were never listed get no new tunnel",
            is_optional: false,
            relist: RELIST,
        }
    }
}

impl Objects for Sender {
    type Object = Item;

    fn read(&self, json: &str) -> Result<Option<Item>, serde_json::Error> {
        let Source {
            kind, prefix, services, ..
        } = &self.handle.source;
        let key = match decode(*kind, json, prefix, services) {
            DecodedObject::Object(key, object) => return Ok(Some((key, Some(object)))),
            DecodedObject::Irrelevant(key) => return Ok(Some((key, None))),
            DecodedObject::Malformed(key) => key,
        };
        let kind = kind.name();
        match &key {
            Some(key) => warn!(kind, object = %key, "ignoring an object that cannot be decoded"),
            None => warn!(kind, "ignoring an object without a valid name"),
        }
        self.metrics.watch_errors.count([Failure::Malformed.label()]);
        Ok(key.map(|key| (key, None)))
    }

    fn replacement(&self, metadata: Metadata) -> Option<Item> {
        too_long(self.handle.source.kind, metadata)
    }

    async fn take(&mut self, event: Event<Item>) {
        let index = self.handle.index;
        // An error means that the reconciler has ended, and so will this task.
        self.events.send(SourceEvent { index, event }).await.ok();
    }

    fn wants_list(&self) -> bool {
        self.handle.wants_list.load(Ordering::Relaxed)
    }
}

/// The interval between lists.
const RELIST: Duration = Duration::from_secs(300);
