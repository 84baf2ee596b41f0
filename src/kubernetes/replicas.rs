//! Watches the replicas of the proxy: the ready endpoints of its own Service.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::api::requests::encoded;
use super::api::thread::BackgroundRuntime;
use super::api::watcher::{Event, Objects, Scope, WatchContext, WatchSpec, keep_following};
use crate::kubernetes::metrics::ClusterMetrics;

/// Watches the Service in the pod's or kubeconfig's namespace, and calls `changed` with the names of its ready pods. An
/// empty set is left out, since it lacks this process itself.
///
/// # Errors
/// The thread or its runtime cannot be started.
pub fn watch_replicas(
    context: WatchContext,
    service: &str,
    changed: impl Fn(BTreeSet<Box<str>>) + Clone + Send + Sync + 'static,
) -> io::Result<BackgroundRuntime> {
    let spec = WatchSpec {
        kind: "endpointslices",
        group: "discovery.k8s.io",
        scope: Scope::Own,
        selector: format!(
            "labelSelector={}&",
            encoded(&format!("kubernetes.io/service-name={service}"))
        ),
        effect: "anchors do not learn of other replicas",
        is_optional: false,
        relist: RELIST,
    };
    BackgroundRuntime::start("replicas", async move {
        let metrics = context.metrics.clone();
        let reader = || SliceReader {
            metrics: metrics.clone(),
            slices: HashMap::new(),
            changed: changed.clone(),
        };
        keep_following(spec, reader, context, || {}).await;
    })
}

/// The EndpointSlices of one Service.
struct SliceReader<C> {
    metrics: ClusterMetrics,
    /// The names of the ready pods, by slice.
    slices: HashMap<String, Vec<Box<str>>>,
    changed: C,
}

impl<C: Fn(BTreeSet<Box<str>>) + Send> SliceReader<C> {
    fn publish(&self) {
        let ready: BTreeSet<Box<str>> = self.slices.values().flatten().cloned().collect();
        if !ready.is_empty() {
            (self.changed)(ready);
        }
    }
}

impl<C: Fn(BTreeSet<Box<str>>) + Send> Objects for SliceReader<C> {
    /// The name of a slice, and of its ready pods.
    type Object = (String, Vec<Box<str>>);

    fn read(&self, json: &str) -> Result<Option<Self::Object>, serde_json::Error> {
        let slice: EndpointSlice = serde_json::from_str(json)?;
        let ready = slice.endpoints.into_iter().filter_map(|endpoint| {
            let conditions = endpoint.conditions.unwrap_or_default();
            let is_ready = conditions.ready.unwrap_or(true) && !conditions.terminating.unwrap_or_default();
            endpoint.target_ref.filter(|_| is_ready)?.name
        });
        let ready = ready.map(String::into_boxed_str).collect();
        Ok(slice.metadata.name.map(|name| (name, ready)))
    }

    async fn take(&mut self, event: Event<Self::Object>) {
        match event {
            Event::Listed(slices) => self.slices = slices.into_iter().collect(),
            Event::Applied((name, ready)) => drop(self.slices.insert(name, ready)),
            Event::Deleted((name, _)) => drop(self.slices.remove(&name)),
            Event::Failed(failure) => self.metrics.watch_errors.count([failure.label()]),
            Event::UpToDate | Event::Refused => {}
        }
        self.publish();
    }
}

/// The interval between lists.
const RELIST: Duration = Duration::from_secs(900);
