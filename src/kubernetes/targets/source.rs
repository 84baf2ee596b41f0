//! A source: the objects of one kind in one namespace, or in all, and the paths of the API that list and watch them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::requests::encoded;
use crate::kubernetes::objects::model::{Key, Kind, Object};
use crate::kubernetes::options::Options;

/// The objects of one kind in one namespace or in all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// Its index among all sources.
    pub(crate) index: usize,
    /// The kind of the objects.
    pub(crate) kind: Kind,
    /// The namespace of the objects; `None` for all.
    pub(crate) namespace: Option<Box<str>>,
    /// The label selector of the objects.
    pub(crate) selector: Option<Box<str>>,
    /// The prefix of annotation names.
    pub(crate) prefix: Arc<str>,
    /// The kubeconfig file of the API server.
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// An event of a source.
#[derive(Debug)]
pub(crate) struct SourceEvent {
    /// [`Source::index`].
    pub(crate) source: usize,
    /// The event.
    pub(crate) event: Event,
}

/// Something learned from the API server.
#[derive(Debug)]
pub(crate) enum Event {
    /// A complete list: the source has these objects and no others.
    Listed(Vec<(Key, Object)>),
    /// An object was created or changed.
    Applied(Key, Object),
    /// An object was deleted, or no longer matters.
    Deleted(Key),
    /// Nothing has changed up to now.
    Current,
    /// A list or a watch has failed.
    Failed(Failure),
}

/// A source that is followed, and the way back from the reconciler to its reflector.
#[derive(Clone, Debug)]
pub(crate) struct Feed {
    /// The source.
    pub(crate) source: Source,
    wants_list: Arc<AtomicBool>,
    is_given_up: Arc<AtomicBool>,
    /// Notified when another source of the namespace can be read again.
    hurry: Arc<Notify>,
}

impl Feed {
    /// A feed of that source.
    pub(crate) fn new(source: Source) -> Self {
        Self {
            source,
            wants_list: Arc::default(),
            is_given_up: Arc::default(),
            hurry: Arc::default(),
        }
    }

    /// Tells the reflector whether the next list is wanted soon, because the last one is in doubt.
    pub(crate) fn set_wants_list(&self, wants_list: bool) {
        self.wants_list.store(wants_list, Ordering::Relaxed);
    }

    /// Whether the next list is wanted soon.
    pub(crate) fn wants_list(&self) -> bool {
        self.wants_list.load(Ordering::Relaxed)
    }

    /// Tells the reflector whether its namespace counts as empty, since the API server forbids to read it.
    pub(crate) fn set_given_up(&self, is_given_up: bool) {
        self.is_given_up.store(is_given_up, Ordering::Relaxed);
    }

    /// Whether its namespace counts as empty.
    pub(crate) fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }

    /// Ends the wait of the reflector: its namespace seems to be back.
    pub(crate) fn hurry(&self) {
        self.hurry.notify_one();
    }

    /// Completes after that time, or when the namespace seems to be back.
    pub(crate) async fn pause(&self, longest: Duration) {
        tokio::select! {
            () = sleep(longest) => {}
            () = self.hurry.notified() => {}
        }
    }
}

/// The sources of a cluster: Services and EndpointSlices of each named namespace, or of all; and the Namespaces, if there
/// is a selector for them.
pub(crate) fn sources(options: &Options) -> Vec<Source> {
    let prefix: Arc<str> = (&*options.annotation_prefix).into();
    let all = [None];
    let named: Vec<_> = options.namespaces.iter().cloned().map(Some).collect();
    let namespaces = if named.is_empty() { &all[..] } else { &named };
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
        // Without a selector: the labels of a Service reach its slices with a delay.
        add(Kind::Slice, namespace.clone(), None);
    }
    if let Some(selector) = &options.namespace_selector {
        add(Kind::Namespace, None, Some(selector.clone()));
    }
    sources
}

impl Source {
    /// The path of one page of a list. `token` is empty for the first page, else the `continue` of the page before.
    pub(crate) fn page_path(&self, token: &str) -> String {
        let path = self.path();
        match token {
            "" => format!("{path}limit={PAGE}"),
            token => format!("{path}limit={PAGE}&continue={}", encoded(token)),
        }
    }

    /// The path of a list in one page.
    pub(crate) fn list_path(&self) -> String {
        self.path()
    }

    /// The path of a watch from that resource version, which the server ends after `lasts`.
    pub(crate) fn watch_path(&self, version: &str, lasts: Duration) -> String {
        let (path, version, seconds) = (self.path(), encoded(version), lasts.as_secs());
        format!("{path}watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={seconds}")
    }

    fn path(&self) -> String {
        let group = match self.kind {
            Kind::Service | Kind::Namespace => "/api/v1",
            Kind::Slice => "/apis/discovery.k8s.io/v1",
        };
        let kind = self.kind.name();
        let mut path = match &self.namespace {
            Some(namespace) => format!("{group}/namespaces/{}/{kind}?", encoded(namespace)),
            None => format!("{group}/{kind}?"),
        };
        if let Some(selector) = &self.selector {
            path.push_str(&format!("labelSelector={}&", encoded(selector)));
        }
        path
    }
}

/// Objects a page: an answer of a few hundred kilobytes.
pub(crate) const PAGE: usize = 500;
