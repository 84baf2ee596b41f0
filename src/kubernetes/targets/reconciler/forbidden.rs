//! Notices that the API server forbids to read a namespace for good: the namespace was deleted, and its Role with it.

use tokio::time::Instant;
use tracing::warn;

use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::outage::Refusals;
use crate::kubernetes::targets::source::Source;

/// The refusals of one source.
#[derive(Debug, Default)]
pub(super) struct Forbidden {
    refusals: Refusals,
    /// Whether the source counts as empty.
    is_given_up: bool,
}

impl Forbidden {
    /// Takes note of a failure.
    pub(super) fn failed(&mut self, failure: Failure, now: Instant) {
        self.refusals.failed(failure, now);
    }

    /// Takes note of a success. `true` if the source has counted as empty until now.
    pub(super) fn answered(&mut self) -> bool {
        std::mem::take(self).is_given_up
    }

    /// Whether it has been forbidden for so long that it hardly passes.
    pub(super) fn is_lasting(&self, now: Instant) -> bool {
        self.refusals.are_lasting(now)
    }

    /// Counts the source as empty until the API server answers, and says so once.
    pub(super) fn give_up(&mut self, source: &Source) {
        if !std::mem::replace(&mut self.is_given_up, true) {
            let (kind, namespace) = (source.kind.name(), source.namespace.as_deref().unwrap_or_default());
            warn!(
                kind,
                namespace,
                "the API server forbids to read the namespace, which counts as empty until that changes: was it deleted?"
            );
        }
    }

    /// Whether the source counts as empty.
    pub(super) fn is_given_up(&self) -> bool {
        self.is_given_up
    }
}
