//! Starts the workloads of requested targets without an endpoint.

use std::sync::Arc;

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::event_recorder::{EventRecorder, ServiceEvent};
use crate::base::text::excerpt;
use crate::kubernetes::api::api_client::ApiClient;
use crate::kubernetes::api::failure::ApiError;
use crate::kubernetes::metrics::ClusterMetrics;
use crate::kubernetes::objects::model::Key;
use crate::policy::allowlist::{WakeRequest, Workload, WorkloadKind, Writer};

/// Starts workloads.
#[derive(Clone)]
pub(crate) struct WorkloadStarter {
    /// The API client.
    pub(crate) api: Arc<ApiClient>,
    /// The targets, and the requests to wake them.
    pub(crate) writer: Writer,
    /// The counts.
    pub(crate) metrics: ClusterMetrics,
    /// The recorder of Events; `None` if Events are off.
    pub(crate) recorder: Option<EventRecorder>,
}

impl WorkloadStarter {
    /// Serves requests to start a workload; never returns.
    pub(crate) async fn run(self) {
        let mut requests = self.writer.wakes().subscribe();
        let mut started = JoinSet::new();
        loop {
            tokio::select! {
                request = requests.recv(), if started.len() < AT_ONCE => match request {
                    Some(wake) => drop(started.spawn(self.clone().wake(wake))),
                    // A newer `WorkloadStarter` has subscribed.
                    None => return std::future::pending().await,
                },
                Some(_) = started.join_next() => {}
            }
        }
    }

    async fn wake(self, wake: WakeRequest) {
        let WakeRequest { target, workload } = wake;
        let service = Key::new(&target.namespace, &target.service);
        let note = |note| {
            if let Some(recorder) = &self.recorder {
                recorder.note(note);
            }
        };
        match self.start(&service.namespace, &workload).await {
            Ok(true) => {
                self.metrics.wakes.count(["started"]);
                info!(%service, %workload, "a request starts the workload of the Service");
                let message = format!("Starting {workload} for a client");
                note(ServiceEvent::normal(service, "Waking", &message));
            }
            Ok(false) => self.metrics.wakes.count(["running"]),
            Err(error) => {
                self.writer.wakes().failed(&target);
                self.metrics.wakes.count(["failed"]);
                let reason = excerpt(&error.reason, MAX_REASON);
                warn!(%service, %workload, "the workload of the Service cannot be started: {reason}");
                let message = format!("Cannot start {workload}: {reason}");
                note(ServiceEvent::warning(service, "WakeFailed", &message));
            }
        }
    }

    /// Starts a workload. Returns `false` if it was running; `true` for every Notebook.
    async fn start(&self, namespace: &str, workload: &Workload) -> Result<bool, ApiError> {
        let Workload { kind, name } = workload;
        let plural = match kind {
            WorkloadKind::StatefulSet => "statefulsets",
            WorkloadKind::Deployment => "deployments",
            WorkloadKind::Notebook => {
                // The controller of Notebooks keeps a Notebook with this annotation at 0 replicas.
                let resume = json!({"metadata": {"annotations": {"kubeflow-resource-stopped": null}}});
                self.api.patch(&notebook_path(namespace, name), &resume).await?;
                return Ok(true);
            }
        };
        let path = format!("/apis/apps/v1/namespaces/{namespace}/{plural}/{name}/scale");
        let mut has_conflicted = false;
        loop {
            let scale: Value = serde_json::from_str(&self.api.get(&path).await?.json)?;
            let replicas = scale.pointer("/spec/replicas").and_then(Value::as_u64);
            if replicas.is_some_and(|replicas| replicas > 0) {
                return Ok(false);
            }
            // With the version that was read, so that a workload scaled up since then is not scaled down to 1.
            let version = scale.pointer("/metadata/resourceVersion").cloned().unwrap_or_default();
            let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"replicas": 1}});
            match self.api.patch(&path, &patch).await {
                Ok(_) => return Ok(true),
                // Any change is a conflict, also one of the status.
                Err(error) if error.status == Some(StatusCode::CONFLICT) && !has_conflicted => has_conflicted = true,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns the path of a Notebook.
pub(crate) fn notebook_path(namespace: &str, name: &str) -> String {
    format!("/apis/kubeflow.org/v1/namespaces/{namespace}/notebooks/{name}")
}

/// Workloads that are started at the same time.
const AT_ONCE: usize = 16;
/// Characters of a reason in the log and in an Event.
const MAX_REASON: usize = 300;
