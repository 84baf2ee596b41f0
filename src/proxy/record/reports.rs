//! Counts and notes what `ssh_only` would have refused, while `allowlist.report` has it refuse nothing.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::proxy::open_tunnels::facts::Seen;
use crate::tunnel::direction::Direction;
use crate::tunnel::metrics::Metrics;
use crate::tunnel::outcome::Side;
use crate::tunnel::relay::Inspect;
use crate::tunnel::ssh::identification::{self, NotSsh, Software};

/// Looks at the first bytes of both sides of a tunnel, for the first side that does not begin as SSH does.
#[derive(Debug)]
pub struct Watch {
    pub(super) seen: Arc<Seen>,
    pub(super) metrics: Metrics,
}

impl Watch {
    /// Counts and notes that side, unless the tunnel has one already.
    pub(super) fn refuses(&self, side: Side) {
        if self.seen.not_ssh.set(side).is_ok() {
            self.metrics.reported_refusals.count(["ssh_only"]);
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
