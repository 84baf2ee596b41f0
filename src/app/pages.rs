//! What the admin port tells of a running process.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::LogLinesDropped;
use super::admin::{Pages, Progress};
use super::readiness::Readiness;
use crate::tunnel::World;

/// The pages of a process. `drain_asked` is cancelled when somebody asks there for a drain.
pub(super) fn of(
    world: &Arc<World>,
    readiness: &Readiness,
    drain_asked: &CancellationToken,
    log_lines_dropped: LogLinesDropped,
) -> Pages {
    Pages {
        readiness: readiness.clone(),
        scrape: scrape(Arc::clone(world), log_lines_dropped),
        progress: progress(Arc::clone(world)),
        begin_drain: drain_asked.clone(),
    }
}

/// How far a drain is, for the page `/drain`.
fn progress(world: Arc<World>) -> Box<dyn Fn() -> Progress + Send + Sync> {
    Box::new(move || Progress {
        phase: world.drain.phase().label().to_owned(),
        tunnels: world.tunnels.taken(),
        connections: u32::try_from(world.metrics.connections_active.get()).unwrap_or_default(),
    })
}

/// The page `/metrics`: what nobody counts as it happens is looked up now.
fn scrape(world: Arc<World>, log_lines_dropped: LogLinesDropped) -> Box<dyn Fn() -> String + Send + Sync> {
    Box::new(move || {
        let metrics = &world.metrics;
        metrics.pipes_in_use.set(as_gauge(world.resources.pipes_in_use()));
        metrics.connections_unfinished.set(as_gauge(world.unfinished.len()));
        metrics.allowlist_targets.set(as_gauge(world.allowlist.targets()));
        metrics
            .allowlist_name_conflicts
            .set(as_gauge(world.allowlist.conflicts()));
        metrics.log_lines_dropped.set(as_gauge(log_lines_dropped()));
        metrics.encode().unwrap_or_else(|error| format!("# {error}\n"))
    })
}

fn as_gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
