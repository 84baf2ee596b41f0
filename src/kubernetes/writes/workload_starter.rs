//! Starts the workloads of requested targets without an endpoint.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use hyper::StatusCode;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::event_recorder::{EventRecorder, ServiceEvent};
use crate::base::text::excerpt;
use crate::kubernetes::api::api_client::ApiClient;
use crate::kubernetes::api::failure::{ApiError, Failure};
use crate::kubernetes::api::json_stream::ObjectText;
use crate::kubernetes::metrics::ClusterMetrics;
use crate::kubernetes::objects::model::Key;
use crate::kubernetes::options::Options;
use crate::policy::allowlist::{WakeRequest, Workload, Writer};

/// Starts workloads.
#[derive(Clone)]
pub(crate) struct WorkloadStarter {
    /// The API client.
    pub(crate) api: Arc<ApiClient>,
    /// The settings, with the kinds of workloads.
    pub(crate) options: Arc<Options>,
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
        let started = AssertUnwindSafe(self.start(&service.namespace, &workload)).catch_unwind();
        let started = started.await;
        match started.unwrap_or_else(|_| Err(ApiError::new(Failure::Malformed, "a defect of this program"))) {
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

    /// Starts a workload by the patch of its kind. Returns `false` if it was running.
    async fn start(&self, namespace: &str, workload: &Workload) -> Result<bool, ApiError> {
        let kind = self.options.kind(workload);
        // Settings without it have restarted this task.
        let Some((resource, patch)) = kind.and_then(|kind| Some((&kind.resource, kind.patch.as_ref()?))) else {
            return Ok(false);
        };
        let path = resource.path(namespace, &workload.name);
        let mut conflicts = 0;
        loop {
            let object = self.api.get(&path).await?;
            let decoding = DECODING.lock().await;
            let missing = missing_part(patch, &object)?;
            drop(decoding);
            let Some(patch) = missing else {
                return Ok(false);
            };
            match self.api.patch(&path, &patch).await {
                Ok(_) => return Ok(true),
                // Any change is a conflict, also one of the status.
                Err(error) if error.status == Some(StatusCode::CONFLICT) && conflicts < MAX_CONFLICTS => conflicts += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns the part of a patch that an object lacks, for the version that was read, so that a workload scaled up since then is
/// not scaled down to 1; `None` if it lacks nothing.
///
/// The caller holds [`DECODING`]: a tenant's object may take 50 MB.
fn missing_part(patch: &Value, object: &ObjectText) -> Result<Option<Value>, ApiError> {
    if !object.is_whole {
        return Err(ApiError::new(Failure::Malformed, "the object is too large to be read"));
    }
    let known: Value = serde_json::from_str(&object.json)?;
    let mut missing = unmet(patch, Some(&known));
    let metadata = missing
        .as_mut()
        .and_then(Value::as_object_mut)
        .and_then(|fields| fields.entry("metadata").or_insert_with(|| json!({})).as_object_mut());
    if let Some(metadata) = metadata {
        let version = known.pointer("/metadata/resourceVersion");
        metadata.insert("resourceVersion".to_owned(), version.cloned().unwrap_or_default());
    }
    Ok(missing)
}

/// Returns the values of a patch that an object does not have; `None` if it has all. A number counts as a minimum: nothing that
/// runs is scaled down. An absent value counts as 0, false or null, since the API server omits such ones.
fn unmet(patch: &Value, object: Option<&Value>) -> Option<Value> {
    let is_absent = object.is_none_or(Value::is_null);
    let is_met = match patch {
        // A merge patch makes an object of it.
        Value::Object(fields) if fields.is_empty() => object.is_some_and(Value::is_object),
        Value::Object(fields) => {
            let fields = fields.iter().filter_map(|(key, patch)| {
                let unmet = unmet(patch, object.and_then(|object| object.get(key)))?;
                Some((key.clone(), unmet))
            });
            let fields: Map<_, _> = fields.collect();
            return (!fields.is_empty()).then_some(Value::Object(fields));
        }
        Value::Null => is_absent,
        Value::Number(least) => {
            object.and_then(Value::as_f64).unwrap_or_default() >= least.as_f64().unwrap_or_default()
        }
        Value::Bool(false) if is_absent => true,
        Value::Bool(_) | Value::String(_) | Value::Array(_) => object == Some(patch),
    };
    (!is_met).then(|| patch.clone())
}

/// Workloads that are started at the same time.
const AT_ONCE: usize = 16;
/// Held while an object is decoded.
static DECODING: Mutex<()> = Mutex::const_new(());
/// Conflicts of one start with other writers of the object.
const MAX_CONFLICTS: u32 = 5;
/// Characters of a reason in the log and in an Event.
const MAX_REASON: usize = 300;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_that_runs_has_what_its_patch_would_set() {
        for (patch, object, expected) in [
            (json!({"spec": {"replicas": 1}}), json!({"spec": {}}), false),
            (
                json!({"spec": {"replicas": 1}}),
                json!({"spec": {"replicas": 0}}),
                false,
            ),
            (json!({"spec": {"replicas": 1}}), json!({"spec": {"replicas": 3}}), true),
            (
                json!({"spec": {"paused": false}}),
                json!({"spec": {"paused": true}}),
                false,
            ),
            (json!({"spec": {"paused": false}}), json!({}), true),
            (json!({"spec": {"started": true}}), json!({}), false),
            (
                json!({"spec": {"mode": "Running"}}),
                json!({"spec": {"mode": "Suspended"}}),
                false,
            ),
            (
                json!({"spec": {"mode": "Running"}}),
                json!({"spec": {"mode": "Running", "a": 1}}),
                true,
            ),
            (
                json!({"metadata": {"annotations": {"stopped": null}}}),
                json!({"metadata": {}}),
                true,
            ),
            (
                json!({"metadata": {"annotations": {"stopped": null}}}),
                json!({"metadata": {"annotations": {"stopped": "now"}}}),
                false,
            ),
            (
                json!({"spec": {"runStrategy": "Always", "running": null}}),
                json!({"spec": {"running": false}}),
                false,
            ),
            (json!({"spec": {"on": {}}}), json!({"spec": {}}), false),
            (json!({"spec": {"on": {}}}), json!({"spec": {"on": null}}), false),
            (json!({"spec": {"on": {}}}), json!({"spec": {"on": {"a": 1}}}), true),
        ] {
            assert_eq!(unmet(&patch, Some(&object)).is_none(), expected, "{patch} {object}");
        }
    }

    #[test]
    fn only_the_values_that_an_object_lacks_are_sent_with_its_version() {
        let object = |json: &Value, is_whole| ObjectText {
            json: json.to_string(),
            is_whole,
        };
        let patch = json!({"metadata": {"annotations": {"stopped": null}}, "spec": {"replicas": 1, "paused": false}});
        for (known, expected) in [
            (
                json!({"metadata": {"resourceVersion": "7"}, "spec": {"replicas": 5, "paused": true}}),
                json!({"metadata": {"resourceVersion": "7"}, "spec": {"paused": false}}),
            ),
            (
                json!({"metadata": {"resourceVersion": "8", "annotations": {"stopped": "x", "a": "b"}}, "spec": {"replicas": 1}}),
                json!({"metadata": {"resourceVersion": "8", "annotations": {"stopped": null}}}),
            ),
            (
                json!({"metadata": {"resourceVersion": "9"}, "spec": {"replicas": 1}}),
                json!(null),
            ),
        ] {
            let missing = missing_part(&patch, &object(&known, true)).unwrap();
            assert_eq!(missing.unwrap_or_default(), expected, "{known}");
            missing_part(&patch, &object(&known, false)).unwrap_err();
        }
        missing_part(&json!({"metadata": "x"}), &object(&json!({}), true)).unwrap();
    }
}
