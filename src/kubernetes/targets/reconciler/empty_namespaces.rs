//! Namespaces that count as empty: a deleted one is forbidden to read, as one without a Role is.

use tracing::warn;

use super::Reconciler;
use super::source_state::SourceState;
use crate::kubernetes::objects::model::Kind;
use crate::kubernetes::targets::source::Source;

impl Reconciler {
    /// Treats sources whose namespaces seem to be deleted as empty, until the API server answers.
    pub(super) fn treat_as_empty(&mut self) {
        for index in 0..self.sources.len() {
            let Some(source) = self.sources.get(index).filter(|source| self.seems_deleted(source)) else {
                continue;
            };
            let (kind, namespace) = (
                source.handle.source.kind.name(),
                source.handle.source.namespace.as_deref(),
            );
            warn!(
                kind,
                namespace,
                "the API server forbids to read the namespace, which counts as empty until that changes: was it deleted?"
            );
            if source.current.is_none() {
                // The objects of a snapshot stay for 5 minutes, like those that an empty list misses.
                self.replace(index, Vec::new());
            }
            if let Some(source) = self.sources.get_mut(index) {
                source.is_treated_as_empty = true;
            }
        }
    }

    /// Returns whether the API server forbids reading the namespace of a source, as it does once the namespace is
    /// deleted with its Role. Returns `false` if objects that this process has listed remain, or targets of before a reload: then
    /// only the permission is lost. Returns `false`, too, if no other namespace was ever read: then all permissions are missing.
    fn seems_deleted(&self, source: &SourceState) -> bool {
        let Source { kind, namespace, .. } = &source.handle.source;
        let is_known = |kind| !self.cluster.keys(kind, namespace.as_deref()).is_empty();
        let has_targets = || self.cluster.has_targets(*kind, namespace.as_deref());
        let is_other = |other: &&SourceState| other.handle.source.namespace != *namespace;
        namespace.is_some()
            && source.is_refused
            && !source.is_treated_as_empty
            && self
                .sources
                .iter()
                .filter(is_other)
                .any(|other| other.current.is_some())
            && (source.is_listed || !has_targets())
            && (source.current.is_none() || ![Kind::Service, Kind::Slice, Kind::Pod].into_iter().any(is_known))
    }
}
