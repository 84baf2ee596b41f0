//! Reports activity to workloads such as Kubeflow Notebooks, for Services with the annotation `report-activity`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{debug, warn};

use crate::base::text::excerpt;
use crate::base::values;
use crate::kubernetes::api::api_client::ApiClient;
use crate::kubernetes::api::failure::ApiError;
use crate::kubernetes::metrics::ClusterMetrics;
use crate::kubernetes::options::Options;
use crate::policy::allowlist::{TargetId, Workload, Writer};

/// The task that writes the last activity of targets to their workloads.
pub(crate) struct ActivityReports {
    /// The API client.
    pub(crate) api: Arc<ApiClient>,
    /// The settings, with the kinds of workloads.
    pub(crate) options: Arc<Options>,
    /// The targets.
    pub(crate) writer: Writer,
    /// The counts.
    pub(crate) metrics: ClusterMetrics,
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
                let rules = target.rules();
                let (Some(workload), Some(activity)) = (&rules.workloads.report_activity, target.last_activity())
                else {
                    continue;
                };
                let id = target.id();
                let is_told = |report: &Report| report.activity >= activity || report.at.elapsed() < REPORT_EVERY;
                if reports.get(id).is_some_and(is_told) {
                    continue;
                }
                let told = self.report(&id.namespace, workload, activity).await;
                // A failure delays the next report as much as a success: the workload may not exist.
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
                        debug!(target = %id, %workload, "there is no such workload to report activity to");
                    }
                    Err(error) => {
                        let reason = excerpt(&error.reason, MAX_REASON);
                        warn!(target = %id, %workload, "activity cannot be reported: {reason}");
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

    /// Writes `activity` to a workload, unless that has a later one.
    async fn report(&self, namespace: &str, workload: &Workload, activity: SystemTime) -> Result<(), ApiError> {
        let kind = self.options.kind(workload);
        // Settings without it have restarted this task.
        let Some((resource, annotation)) = kind.and_then(|kind| Some((&kind.resource, &**kind.activity.as_ref()?)))
        else {
            return Ok(());
        };
        let path = resource.object_path(namespace, &workload.name);
        let mut conflicts = 0;
        loop {
            let object = self.api.get(&path).await?;
            let ReportedObject { metadata } = serde_json::from_str(&object.json)?;
            let known = metadata.annotations.as_ref().and_then(|known| known.get(annotation));
            // Jupyter may have been used since, or another replica may have reported a later time. Without its annotations
            // the last time is unknown.
            if !object.is_whole || known.is_some_and(|known| is_later(known, activity)) {
                return Ok(());
            }
            let moment = humantime::format_rfc3339_seconds(activity).to_string();
            // With the version that was read, so that a later time that is written between the two stays.
            let patch = json!({"metadata": {
                "resourceVersion": metadata.resource_version, "annotations": {annotation: moment},
            }});
            match self.api.patch(&path, &patch).await {
                // Any change is a conflict, also one of the status.
                Err(error) if error.status == Some(StatusCode::CONFLICT) && conflicts < MAX_CONFLICTS => conflicts += 1,
                written => return written.map(drop),
            }
        }
    }
}

/// The fields of a workload that a report needs.
#[derive(Deserialize)]
struct ReportedObject {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
    annotations: Option<BTreeMap<String, String>>,
}

/// Returns whether `known`, in whole seconds of any time zone, is not before `activity`.
fn is_later(known: &str, activity: SystemTime) -> bool {
    values::moment(known).is_some_and(|known| known + Duration::from_secs(1) > activity)
}

const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The interval between reports about one target.
const REPORT_EVERY: Duration = Duration::from_secs(300);
const REMEMBERED: Duration = Duration::from_secs(3600);
/// Conflicts of one report with other writers of the object.
const MAX_CONFLICTS: u32 = 5;
/// Characters of a reason in the log.
const MAX_REASON: usize = 300;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_compared_as_instants() {
        let activity = humantime::parse_rfc3339("2026-11-28T10:00:00.5Z").unwrap();
        for (known, expected) in [
            ("2026-11-28T10:00:00Z", true),
            ("2026-11-28T09:59:59Z", false),
            ("2026-11-28T10:00:01.25Z", true),
            ("2026-11-28T19:00:00+09:00", true),
            ("2026-11-28T18:59:59+09:00", false),
            ("2026-11-28T10:30:00+09:00", false),
            ("2026-11-28T05:00:00-05:00", true),
            ("2026-11-29T00:00:00+14:00", true),
            ("2026-11-27T22:00:00-12:00", true),
            ("9999-12-31T23:59:59Z", true),
            ("2026-11-28T12:00:00", false),
            ("yesterday", false),
            ("", false),
        ] {
            assert_eq!(is_later(known, activity), expected, "{known}");
        }
    }
}
