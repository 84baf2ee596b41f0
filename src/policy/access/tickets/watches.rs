//! The watches that take access back. While one of them is not in step with the cluster, a ticket that is remembered may
//! have been taken back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The state of all of them.
#[derive(Debug, Default)]
pub struct Watches {
    /// Those that are not in step, and since when.
    late: Mutex<HashMap<&'static str, Instant>>,
}

/// One of them. It counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    watches: Arc<Watches>,
    name: &'static str,
}

impl Watches {
    /// Adds the watch of that name, which is in step.
    pub(crate) fn watch(self: &Arc<Self>, name: &'static str) -> Watch {
        Watch {
            watches: Arc::clone(self),
            name,
        }
    }

    /// Returns whether one of them has not been in step for 5 s.
    pub(in crate::policy::access) fn are_late(&self) -> bool {
        self.late.lock().values().any(|since| since.elapsed() >= LATE)
    }
}

impl Watch {
    /// Notes whether it is in step.
    pub(crate) fn note(&self, is_in_step: bool) {
        let mut late = self.watches.late.lock();
        if is_in_step {
            late.remove(self.name);
        } else {
            late.entry(self.name).or_insert_with(Instant::now);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.note(true);
    }
}

/// A watch that is cut, or an API server that hands over to another one, is back within a second or two.
const LATE: Duration = Duration::from_secs(5);
