//! Reports activity to Kubeflow Notebooks, for Services with the annotation `report-activity`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{debug, warn};

use super::workload_starter::notebook_path;
use crate::base::text::excerpt;
use crate::kubernetes::api::api_client::ApiClient;
use crate::kubernetes::api::failure::ApiError;
use crate::policy::allowlist::{TargetId, Writer};
use crate::tunnel::metrics::Metrics;

/// The task that writes the last activity of targets to their Notebooks.
pub(crate) struct ActivityReports {
    /// The API client.
    pub(crate) link: Arc<ApiClient>,
    /// The targets.
    pub(crate) writer: Writer,
    /// The counts.
    pub(crate) metrics: Metrics,
}

/// The last report about a target. If it failed, `activity` is 1970.
#[derive(Clone, Copy, Debug)]
struct Report {
    activity: SystemTime,
    at: Instant,
}

impl ActivityReports {
    /// Reports activity; never returns.
    pub(crate) async fn run(self) {
        let mut reports: HashMap<TargetId, Report> = HashMap::new();
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            reports.retain(|_, report| report.at.elapsed() < REMEMBERED);
            for target in self.writer.targets() {
                let terms = target.terms();
                let (Some(notebook), Some(activity)) = (&terms.workloads.report_activity, target.last_activity())
                else {
                    continue;
                };
                let id = target.id();
                let is_told = |report: &Report| report.activity >= activity || report.at.elapsed() < REPORT_EVERY;
                if reports.get(id).is_some_and(is_told) {
                    continue;
                }
                let told = self.report(&id.namespace, &notebook.name, activity).await;
                // A failure delays the next report as much as a success: the Notebook may not exist.
                let report = Report {
                    activity: told.as_ref().map_or(UNIX_EPOCH, |()| activity),
                    at: Instant::now(),
                };
                reports.insert(id.clone(), report);
                self.metrics
                    .activity_reports
                    .count([if told.is_ok() { "written" } else { "failed" }]);
                match told {
                    Err(error) if error.status == Some(StatusCode::NOT_FOUND) => {
                        debug!(target = %id, %notebook, "there is no such Notebook to report activity to");
                    }
                    Err(error) => {
                        let reason = excerpt(&error.reason, MAX_REASON);
                        warn!(target = %id, %notebook, "activity cannot be reported: {reason}");
                        if error.failure.is_of_connection() {
                            // Each other report would wait for its deadline, too.
                            break;
                        }
                    }
                    Ok(()) => {}
                }
            }
        }
    }

    async fn report(&self, namespace: &str, name: &str, activity: SystemTime) -> Result<(), ApiError> {
        let path = notebook_path(namespace, name);
        let notebook: Value = self.link.get(&path).await?;
        let known = notebook
            .pointer("/metadata/annotations")
            .and_then(|annotations| annotations.get(LAST_ACTIVITY)?.as_str());
        // Jupyter may have been used since, or another replica may have reported a later time.
        // The annotation has whole seconds.
        let is_later =
            |known: &str| humantime::parse_rfc3339(known).is_ok_and(|known| known + Duration::from_secs(1) > activity);
        if known.is_some_and(is_later) {
            return Ok(());
        }
        let moment = humantime::format_rfc3339_seconds(activity).to_string();
        let patch = json!({"metadata": {"annotations": {LAST_ACTIVITY: moment}}});
        self.link.patch(&path, &patch).await
    }
}

/// The annotation that Kubeflow's culler compares with its CULL_IDLE_TIME.
const LAST_ACTIVITY: &str = "notebooks.kubeflow.org/last-activity";
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The interval between reports about one target.
const REPORT_EVERY: Duration = Duration::from_secs(300);
const REMEMBERED: Duration = Duration::from_secs(3600);
/// Characters of a reason in the log.
const MAX_REASON: usize = 300;
