//! The watches that revoke access. While one is out of step with the cluster, a revoked ticket may still look valid.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// All watches that revoke access.
#[derive(Debug, Default)]
pub struct Watches {
    /// Watches that were dropped do not count.
    watches: Mutex<Vec<Weak<StaleSince>>>,
}

/// A handle of one watch, which counts until its last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Watch(Arc<StaleSince>);

/// The time since when a watch is out of step; `None` while it is in step.
type StaleSince = Mutex<Option<Instant>>;

impl Watches {
    /// Adds a watch, in step until [`Watch::note`] says otherwise.
    pub(crate) fn add(&self) -> Watch {
        let since = Arc::default();
        let mut watches = self.watches.lock();
        watches.retain(|watch| watch.strong_count() > 0);
        watches.push(Arc::downgrade(&since));
        Watch(since)
    }

    /// Returns whether one of them has been out of step for 5 s or longer.
    pub(in crate::policy::access) fn are_out_of_date(&self) -> bool {
        let watches = self.watches.lock();
        let mut out_of_step = watches
            .iter()
            .filter_map(Weak::upgrade)
            .filter_map(|since| *since.lock());
        out_of_step.any(|since| since.elapsed() >= MAX_OUT_OF_STEP)
    }
}

impl Watch {
    /// Notes whether it is in step.
    pub(crate) fn note(&self, is_in_step: bool) {
        let mut since = self.0.lock();
        *since = (!is_in_step).then(|| since.unwrap_or_else(Instant::now));
    }
}

/// A watch that is cut, or an API server that hands over to another one, is back within a second or two.
const MAX_OUT_OF_STEP: Duration = Duration::from_secs(5);
