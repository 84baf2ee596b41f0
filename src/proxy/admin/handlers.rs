//! The handlers of the admin port, on the state of the running process.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::daemon::admin::{Handlers, Progress, Routes};
use crate::daemon::logging::LogLinesDropped;
use crate::daemon::readiness::Readiness;
use crate::proxy::admin;
use crate::proxy::connection::Shared;

/// The routes of a process. A POST to `/drain` cancels `drain_request`.
pub(crate) fn routes(
    shared: &Arc<Shared>,
    readiness: &Readiness,
    drain_request: &CancellationToken,
    log_lines_dropped: LogLinesDropped,
) -> Routes {
    let handlers = Handlers {
        readiness: readiness.clone(),
        scrape: scrape(Arc::clone(shared), log_lines_dropped),
        progress: progress(Arc::clone(shared)),
        drain_request: drain_request.clone(),
    };
    admin::routes(handlers, shared)
}

/// The state of the drain, for the page `/drain`.
fn progress(shared: Arc<Shared>) -> Box<dyn Fn() -> Progress + Send + Sync> {
    Box::new(move || Progress {
        phase: shared.drain.phase().label().to_owned(),
        tunnels: shared.tunnels.taken(),
        resumable: Some(u32::try_from(shared.drain.resumable()).unwrap_or(u32::MAX)),
        connections: u32::try_from(shared.metrics.connections_active.get()).unwrap_or_default(),
    })
}

/// The page `/metrics`. Gauges of state that others keep are set at the scrape.
fn scrape(shared: Arc<Shared>, log_lines_dropped: LogLinesDropped) -> Box<dyn Fn() -> String + Send + Sync> {
    Box::new(move || {
        let metrics = &shared.metrics;
        metrics.pipes_in_use.set(as_gauge(shared.resources.pipes_in_use()));
        metrics.relay_splices(shared.resources.splices());
        metrics.tunnels_resumable.set(as_gauge(shared.drain.resumable()));
        metrics.connections_unfinished.set(as_gauge(shared.unfinished.len()));
        metrics.allowlist_targets.set(as_gauge(shared.allowlist.targets()));
        metrics
            .allowlist_name_conflicts
            .set(as_gauge(shared.allowlist.conflicts()));
        shared.access.count();
        metrics.log_lines_dropped.set(as_gauge(log_lines_dropped()));
        metrics.encode().unwrap_or_else(|error| format!("# {error}\n"))
    })
}

fn as_gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
