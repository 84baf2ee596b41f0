//! The entry of one Service, or of one pod without a Service: its objects as far as they are known.

use crate::kubernetes::objects::model::{Key, Service, Slice};
use crate::kubernetes::targets::notices::ServiceNotice;
use crate::policy::allowlist::TargetId;

/// A Service and its slices, or a pod that is a target by itself. Slices may exist before and after their Service.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// The Service; `None` while only its slices are known.
    pub(super) service: Option<Box<Service>>,
    /// The identity of the pod; `None` for a Service.
    pub(super) uid: Option<Box<str>>,
    /// The slices with their names, by which they are sorted, so that the order of events does not matter. All slices of a
    /// cluster are kept, even if few Services are on the allowlist: only labels can select slices, and a Service's labels
    /// reach its slices late.
    pub(super) slices: Vec<(Box<str>, Slice)>,
    /// True if the Service is on the allowlist.
    pub(super) is_listed: bool,
    /// The names of its pods on the allowlist, sorted.
    pub(super) pods: Box<[Box<str>]>,
    /// The current notices, so that none is repeated.
    pub(super) notices: Box<[ServiceNotice]>,
}

impl Entry {
    /// Returns its targets on the allowlist: that of the Service, and those of its pods.
    pub(super) fn targets(&self, key: &Key) -> impl Iterator<Item = TargetId> {
        let own = self.is_listed.then(|| key.target_id());
        own.into_iter().chain(self.pods.iter().map(|pod| pod_id(key, pod)))
    }

    /// Returns the index of the slice with this name; as an error, the index to insert it at.
    pub(super) fn find(&self, slice: &str) -> Result<usize, usize> {
        self.slices.binary_search_by_key(&slice, |(name, _)| name)
    }

    /// Adds a slice, or replaces the one with this name. Returns `false` if nothing changes.
    pub(super) fn put(&mut self, name: &str, slice: Slice) -> bool {
        match self.find(name) {
            Ok(at) => {
                let known = self.slices.get_mut(at).filter(|(_, known)| *known != slice);
                known.map(|(_, known)| *known = slice).is_some()
            }
            Err(at) => {
                // Most Services have one slice, and never another: no memory is reserved for more.
                self.slices.reserve_exact(1);
                self.slices.insert(at, (name.into(), slice));
                true
            }
        }
    }
}

/// Returns the identity of a pod: its name below that of its Service.
pub(super) fn pod_id(key: &Key, pod: &str) -> TargetId {
    TargetId {
        namespace: key.namespace.clone(),
        service: format!("{pod}.{}", key.name).into(),
    }
}
