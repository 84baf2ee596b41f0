//! The EndpointSlices of one Service, each in one allocation.
//!
//! All slices of a cluster are watched, even if few Services are on the allowlist: only labels can select slices, and a
//! Service's labels reach its slices late. As plain values a slice takes 320 bytes in 6 allocations; as JSON, which
//! snapshots need anyway, 190 bytes in one.
//!
//! A Service may have thousands of slices. So an event about one slice parses no other; only targets
//! and snapshots parse all.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::kubernetes::objects::model::Slice;

/// Slices, each as a string of its name, a line feed, and its JSON. The name of their Service is not kept.
#[derive(Debug, Default)]
pub(super) enum Slices {
    #[default]
    None,
    /// The most frequent case, without an allocation for a list.
    One(Box<str>),
    /// At least two, sorted by name.
    Many(Box<[Box<str>]>),
}

impl Slices {
    /// Returns whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.texts().is_empty()
    }

    /// Returns the names of the slices, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.texts().iter().map(|text| split(text).0)
    }

    /// Returns the slices by their names, sorted, so that the order of events does not matter.
    pub(super) fn unpack(&self) -> BTreeMap<Box<str>, Slice> {
        let texts = self.texts().iter().map(|text| split(text));
        // Never an error: `put` writes the JSON.
        let parsed = texts.filter_map(|(name, json)| Some((name.into(), serde_json::from_str(json).ok()?)));
        parsed.collect()
    }

    /// Adds a slice, or replaces the one with this name. Returns `false` if nothing changes.
    pub(super) fn put(&mut self, name: &str, mut slice: Slice) -> bool {
        slice.service = Box::default();
        // Never an error: only maps with other keys than strings cause one, and there are none.
        let json = serde_json::to_string(&slice).unwrap_or_default();
        // `concat` allocates no more than it needs.
        let text = [name, "\n", &json].concat().into_boxed_str();
        let place = match self.find(name) {
            Ok(at) if self.texts().get(at) == Some(&text) => return false,
            Ok(at) => at..at + 1,
            Err(at) => at..at,
        };
        self.replace(place, Some(text));
        true
    }

    /// Removes the slice with this name. Returns `false` if there is none.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        self.find(name).map(|at| self.replace(at..at + 1, None)).is_ok()
    }

    fn texts(&self) -> &[Box<str>] {
        match self {
            Self::None => &[],
            Self::One(text) => std::slice::from_ref(text),
            Self::Many(texts) => texts,
        }
    }

    /// Returns the index of the slice with this name; as an error, the index to insert it at.
    pub(super) fn find(&self, name: &str) -> Result<usize, usize> {
        self.texts().binary_search_by_key(&name, |text| split(text).0)
    }

    fn replace(&mut self, place: Range<usize>, text: Option<Box<str>>) {
        let mut texts = match std::mem::take(self) {
            Self::None => Vec::new(),
            Self::One(text) => vec![text],
            Self::Many(texts) => texts.into_vec(),
        };
        texts.splice(place, text);
        *self = match <[_; 1]>::try_from(texts) {
            Ok([text]) => Self::One(text),
            Err(texts) if texts.is_empty() => Self::None,
            Err(texts) => Self::Many(texts.into()),
        };
    }
}

/// Returns the name and the JSON, which has no line feed.
fn split(text: &str) -> (&str, &str) {
    text.rsplit_once('\n').unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Slices {
        /// Makes the slice of that name one that cannot be parsed: whoever parses it loses it.
        pub(in super::super) fn spoil(&mut self, name: &str) {
            let at = self.find(name).unwrap();
            self.replace(at..at + 1, Some(format!("{name}\n?").into()));
        }
    }

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
