//! Reports what a rule would have refused, while `allowlist.report` has it refuse nothing.

use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::info;

use super::{LONGEST_REASON, Telemetry};
use crate::base::authority::Authority;
use crate::base::text::excerpt;
use crate::proxy::open_tunnels::facts::{Facts, Seen};
use crate::proxy::open_tunnels::ids::Id;
use crate::tunnel::direction::Direction;
use crate::tunnel::metrics::Metrics;
use crate::tunnel::outcome::Side;
use crate::tunnel::relay::Inspect;
use crate::tunnel::ssh::identification::{self, NotSsh, Software};

/// The rule that would have refused a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// `ssh_only`, of the process or of the target.
    SshOnly,
    /// The users of `access`.
    Access,
}

impl Rule {
    /// The label of the metric, and the field `rule` of the line.
    fn label(self) -> &'static str {
        match self {
            Self::SshOnly => "ssh_only",
            Self::Access => "access",
        }
    }
}

/// The tunnel or request of a report.
#[derive(Debug)]
pub(super) struct Report {
    client: IpAddr,
    asked: String,
    target: String,
    id: Id,
    metrics: Metrics,
    reports: Arc<Reports>,
}

impl Report {
    /// A report of what is known as that.
    pub(super) fn of(facts: &Facts, telemetry: Telemetry<'_>) -> Self {
        Self {
            client: facts.client.ip(),
            asked: facts.authority.as_ref().map(Authority::to_string).unwrap_or_default(),
            target: facts
                .target
                .as_ref()
                .map(|target| target.id().to_string())
                .unwrap_or_default(),
            id: facts.id,
            metrics: telemetry.metrics.clone(),
            reports: Arc::clone(&telemetry.access_log.reports),
        }
    }

    /// Counts it, and writes a line if there may be one now.
    pub(super) fn write(&self, rule: Rule, why: &str) {
        self.metrics.reported_refusals.count([rule.label()]);
        if let Some(left_out) = self.reports.admits() {
            let Self {
                client,
                asked,
                target,
                id,
                ..
            } = self;
            let (rule, why) = (rule.label(), excerpt(why, LONGEST_REASON));
            info!(rule, %client, asked, target, tunnel_id = %id, left_out, "allowlist.report: would be refused: {why}");
        }
    }
}

/// Looks at the first bytes of both sides of a tunnel, and reports the first side that does not begin as SSH does.
#[derive(Debug)]
pub struct Watch {
    report: Report,
    seen: Arc<Seen>,
}

impl Watch {
    pub(super) fn new(report: Report, seen: Arc<Seen>) -> Self {
        Self { report, seen }
    }

    /// Reports the side, unless the tunnel has its report.
    pub(super) fn refuses(&self, side: Side) {
        if !self.seen.is_reported.swap(true, Ordering::Relaxed) {
            self.report.write(
                Rule::SshOnly,
                match side {
                    Side::Client => "the client does not begin with an SSH identification",
                    Side::Target | Side::Proxy => "the target does not begin with an SSH identification",
                },
            );
        }
    }
}

impl Inspect for Watch {
    fn inspect(&self, direction: Direction, beginning: &[u8]) -> ControlFlow<()> {
        let side = direction.sender();
        match identification::read(beginning, side) {
            Ok(None) => return ControlFlow::Continue(()),
            Ok(Some(line)) => self.seen.identified(side, Software::of(line.software)),
            Err(NotSsh) => self.refuses(side),
        }
        ControlFlow::Break(())
    }
}

/// The lines of this second, for all clients together: each of them chooses how often it would be refused.
#[derive(Debug, Default)]
pub(super) struct Reports(Mutex<Option<Second>>);

#[derive(Debug)]
struct Second {
    began: Instant,
    lines: u32,
    /// The reports without a line since the last line.
    left_out: u64,
}

impl Reports {
    /// Whether a line may be written now, and how many reports before it have none.
    pub(super) fn admits(&self) -> Option<u64> {
        let mut second = self.0.lock();
        let now = Instant::now();
        let second = second.get_or_insert(Second {
            began: now,
            lines: 0,
            left_out: 0,
        });
        if now.duration_since(second.began) >= SECOND {
            (second.began, second.lines) = (now, 0);
        }
        if second.lines >= MOST_LINES {
            second.left_out += 1;
            return None;
        }
        second.lines += 1;
        Some(std::mem::take(&mut second.left_out))
    }
}

const SECOND: Duration = Duration::from_secs(1);
/// A second: the metric counts all of them.
const MOST_LINES: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_second_has_ten_lines_and_the_next_one_says_how_many_had_none() {
        let reports = Reports::default();
        for _ in 0..MOST_LINES {
            assert_eq!(reports.admits(), Some(0));
        }
        for _ in 0..90 {
            assert_eq!(reports.admits(), None);
        }
        advance(SECOND).await;
        assert_eq!(reports.admits(), Some(90));
        assert_eq!(reports.admits(), Some(0));
    }
}
