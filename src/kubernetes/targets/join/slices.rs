//! The EndpointSlices of one Service, in one allocation.
//!
//! A cluster has slices of every Service, and few of its Services may be on the allowlist. Only labels can select
//! slices, and a Service's labels are copied to its slices late, so all are watched. As plain values a slice takes 6
//! allocations and 320 bytes, as JSON, which snapshots have anyway, 190.

use std::collections::BTreeMap;

use crate::kubernetes::objects::model::Slice;

/// Slices by name, as JSON; empty without any. The name of their Service is not kept.
#[derive(Debug, Default)]
pub(super) struct Slices(Box<[u8]>);

impl Slices {
    /// Returns whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the slices by their names, sorted, so that the order of events does not matter.
    pub(super) fn unpack(&self) -> BTreeMap<Box<str>, Slice> {
        // An error for the empty text alone: all other JSON is written below.
        serde_json::from_slice(&self.0).unwrap_or_default()
    }

    /// Adds a slice, or replaces the one of that name. Returns `false` if nothing changes.
    pub(super) fn put(&mut self, name: &str, slice: Slice) -> bool {
        let slice = Slice {
            service: Box::default(),
            ..slice
        };
        let mut slices = self.unpack();
        let is_new = slices.get(name) != Some(&slice);
        if is_new {
            slices.insert(name.into(), slice);
            self.pack(&slices);
        }
        is_new
    }

    /// Removes the slice of that name. Returns `false` if there is none.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        let mut slices = self.unpack();
        let is_known = slices.remove(name).is_some();
        if is_known {
            self.pack(&slices);
        }
        is_known
    }

    fn pack(&mut self, slices: &BTreeMap<Box<str>, Slice>) {
        self.0 = match slices.is_empty() {
            true => Box::default(),
            // Serialization fails for maps whose keys are no text, and for foreign errors: there are neither.
            // Copied, so that it takes no more memory than it has bytes.
            false => Box::from(&*serde_json::to_vec(slices).unwrap_or_default()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_that_is_put_again_is_no_change_and_the_last_one_that_goes_leaves_nothing() {
        let slice = |service: &str, has_unusable_address| Slice {
            service: service.into(),
            has_unusable_address,
            ..Slice::default()
        };
        let mut slices = Slices::default();
        for (name, unusable, is_new) in [
            ("b", true, true),
            ("a", false, true),
            ("b", true, false),
            ("b", false, true),
        ] {
            assert_eq!(slices.put(name, slice("svc", unusable)), is_new, "{name}");
        }
        let expected = [("a".into(), slice("", false)), ("b".into(), slice("", false))];
        assert_eq!(slices.unpack(), expected.into());
        assert!(slices.remove("a") && slices.remove("b") && !slices.remove("b"));
        assert!(slices.is_empty() && slices.unpack().is_empty());
    }
}
