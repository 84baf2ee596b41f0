//! What the admin port tells of a running process.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::LogLinesDropped;
use super::admin::{Pages, Progress};
use super::readiness::Readiness;
use crate::tunnel::Shared;

/// The pages of a process. `drain_asked` is cancelled when somebody asks there for a drain.
pub(super) fn of(
    shared: &Arc<Shared>,
    readiness: &Readiness,
    drain_asked: &CancellationToken,
    log_lines_dropped: LogLinesDropped,
) -> Pages {
    Pages {
        readiness: readiness.clone(),
        scrape: scrape(Arc::clone(shared), log_lines_dropped),
        progress: progress(Arc::clone(shared)),
        begin_drain: drain_asked.clone(),
    }
}

/// How far a drain is, for the page `/drain`.
fn progress(shared: Arc<Shared>) -> Box<dyn Fn() -> Progress + Send + Sync> {
    Box::new(move || Progress {
        phase: shared.drain.phase().label().to_owned(),
        tunnels: shared.tunnels.taken(),
        connections: u32::try_from(shared.metrics.connections_active.get()).unwrap_or_default(),
    })
}

/// The page `/metrics`: what nobody counts as it happens is looked up now.
fn scrape(shared: Arc<Shared>, log_lines_dropped: LogLinesDropped) -> Box<dyn Fn() -> String + Send + Sync> {
    Box::new(move || {
        let metrics = &shared.metrics;
        metrics.pipes_in_use.set(as_gauge(shared.resources.pipes_in_use()));
        metrics.connections_unfinished.set(as_gauge(shared.unfinished.len()));
        metrics.allowlist_targets.set(as_gauge(shared.allowlist.targets()));
        metrics
            .allowlist_name_conflicts
            .set(as_gauge(shared.allowlist.conflicts()));
        metrics.log_lines_dropped.set(as_gauge(log_lines_dropped()));
        metrics.encode().unwrap_or_else(|error| format!("# {error}\n"))
    })
}

fn as_gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
